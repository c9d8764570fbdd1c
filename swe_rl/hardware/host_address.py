"""This host as others reach it, and ports that are free on it.

Invariants:
- No packet is sent.
"""

import socket
from contextlib import suppress

LOOPBACK = "127.0.0.1"
_OUTSIDE = ("192.0.2.1", 9)  # an address of nobody (RFC 5737)


def own_address() -> str:
    """By which other hosts reach this one; loopback where it has no other."""
    with suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_OUTSIDE)  # the kernel chooses the address that it would send from
        return str(probe.getsockname()[0])
    return LOOPBACK


def free_port(host: str = LOOPBACK) -> int:
    """One that is free now at an address of this host; somebody else may take it before it is used."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
