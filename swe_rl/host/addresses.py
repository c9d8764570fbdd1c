"""This module checks addresses of servers, finds those of this host, as others reach it and as nobody does, and finds
free ports.

Invariants:
- No packet is sent, and nothing is connected to. A server's address is not looked up.
- A user and a password in an address are in no text that leaves here.
"""

import ipaddress
import socket
from contextlib import suppress
from urllib.parse import urlsplit


def base_address(url: str) -> str:
    """Returns scheme, host and path without a closing `/v1`, so that two spellings of a server are equal. Raises
    ValueError with what is wrong."""
    shown = repr(url)
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is no address like http://host:8000 ({error})") from None
    if parts.username or parts.password:
        raise ValueError(f"{parts.scheme}://***@{parts.hostname} holds a user and a password, which would be in files")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise ValueError(f"{shown} is no address like http://host:8000")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


LOOPBACK = "127.0.0.1"
# Nobody has this address (RFC 5737).
_OUTSIDE = ("192.0.2.1", 9)


def own_address() -> str:
    """Returns the address by which other hosts reach this one, or loopback if it has no other."""
    with suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # The kernel chooses the address that it would send from.
        probe.connect(_OUTSIDE)
        return str(probe.getsockname()[0])
    return LOOPBACK


def address_of(name: str) -> str:
    """Returns the number of this host's own `name`, as other hosts reach it: some hosts say that their name is
    loopback."""
    with suppress(OSError):
        address = socket.gethostbyname(name)
        if not address.startswith("127.") or name.startswith("127."):
            return address
    return own_address()


def interface_of(address: str) -> str | None:
    """Returns the network interface of this host that has `address`, which is a number, or None."""
    import psutil

    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(known.address == address for known in addresses)), None)


def interface_towards(host: str) -> str | None:
    """Returns the network interface by which this host reaches `host`, or None if that is not known."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # The kernel chooses the address that it would send from.
            probe.connect((host, _OUTSIDE[1]))
            return interface_of(str(probe.getsockname()[0]))
    except OSError:
        return None


def free_port(host: str = LOOPBACK) -> int:
    """Returns a port that is free now at an address of this host; another program may take it before it is used."""
    with _bind_socket(host) as probe:
        return port_of(probe)


def held_port(host: str = LOOPBACK) -> socket.socket:
    """Binds a free port that nobody else is given until the socket is closed. A server that sets SO_REUSEADDR, as
    torch's store does, listens there all the same."""
    return _bind_socket(host, reused=1)


def port_of(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def _bind_socket(host: str, reused: int = 0) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reused)
    bound.bind((host, 0))
    return bound
