"""Says which addresses an OpenEnv server may have: one on this machine, unless another one is allowed."""

from typing import NamedTuple
from urllib.parse import urlsplit

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class AddressProblem(NamedTuple):
    """Says what is wrong with an address, and the way out."""

    words: str
    fix: str


def find_address_problem(address: str, *, allow_remote: bool) -> AddressProblem | None:
    """Returns what is wrong with the address of a server, or None."""
    try:
        parts = urlsplit(address.strip())
        host = parts.hostname or ""
        has_port = parts.port is not None or parts.scheme == "https"
    except ValueError:
        host = ""
        has_port = False
    is_address = bool(host) and has_port and parts.scheme in ("http", "https")
    if not is_address or parts.query or parts.fragment or parts.username:
        return AddressProblem(
            "is no address of an OpenEnv server",
            "env.dataset=http://127.0.0.1:8000, with the server there: uvicorn PACKAGE.server.app:app --port 8000",
        )
    if host not in LOCAL_HOSTS and not allow_remote:
        return AddressProblem(
            "is a server on another machine; its rewards are believed, and it reads all that the model says",
            "a server on this machine, or env.params.allow_remote=true",
        )
    return None
