"""Addresses: of servers, what is none; of this host, as others reach it and as nobody does, and free ports.

Invariants:
- No packet is sent, and nothing is connected to. Of a server's address nothing is looked up.
- A user and a password in an address are in no text that leaves here.
"""

import ipaddress
import socket
from contextlib import suppress
from urllib.parse import urlsplit


def base_address(url: str) -> str:
    """Scheme, host and path without a closing `/v1`, so that two spellings of a server are equal. Raises ValueError
    with what is wrong."""
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


def address_of(name: str) -> str:
    """The number of this host's own `name`, as other hosts reach it: some hosts say that their name is loopback."""
    with suppress(OSError):
        address = socket.gethostbyname(name)
        if not address.startswith("127.") or name.startswith("127."):
            return address
    return own_address()


def interface_of(address: str) -> str | None:
    """The network interface of this host that has `address`, which is a number."""
    import psutil

    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(known.address == address for known in addresses)), None)


def interface_towards(host: str) -> str | None:
    """The network interface by which this host reaches `host`; None where that is not known."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _OUTSIDE[1]))  # the kernel chooses the address that it would send from
            return interface_of(str(probe.getsockname()[0]))
    except OSError:
        return None


def free_port(host: str = LOOPBACK) -> int:
    """One that is free now at an address of this host; somebody else may take it before it is used."""
    with _bound(host) as probe:
        return port_of(probe)


def held_port(host: str = LOOPBACK) -> socket.socket:
    """A free port that nobody else is given until the socket is closed. A server that sets SO_REUSEADDR, as torch's
    store does, listens there all the same."""
    return _bound(host, reused=1)


def port_of(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def _bound(host: str, reused: int = 0) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reused)
    bound.bind((host, 0))
    return bound
