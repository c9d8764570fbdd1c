"""Says which addresses a server of an environment may have: one on this machine, unless another one is allowed."""

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from swe_rl.errors import UserError

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class ServerKind:
    """Describes the servers of one protocol. Messages call such a server by `words`."""

    words: str  # an OpenEnv server
    key: str  # The key of the configuration that has the address.
    start: str  # How such a server is started.

    @property
    def example(self) -> str:
        return f"{self.key}=http://127.0.0.1:8000"


class AddressProblem(NamedTuple):
    """Says what is wrong with an address, and the way out."""

    words: str
    fix: str


OPENENV_SERVER = ServerKind(
    words="an OpenEnv server", key="env.dataset", start="uvicorn PACKAGE.server.app:app --port 8000"
)
NEMO_GYM_SERVER = ServerKind(
    words="a resource server of NeMo-Gym", key="env.params.server", start="gym env start --resources-server NAME"
)


def find_address_problem(address: str, kind: ServerKind, *, allow_remote: bool) -> AddressProblem | None:
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
        return AddressProblem(f"is no address of {kind.words}", f"{kind.example}, with the server there: {kind.start}")
    if host not in LOCAL_HOSTS and not allow_remote:
        return AddressProblem(
            "is a server on another machine; its rewards are believed, and it reads all that the model says",
            "a server on this machine, or env.params.allow_remote=true",
        )
    return None


def clean_address(address: str, kind: ServerKind, *, allow_remote: bool = False) -> str:
    """Returns the address of a server without a closing slash. Raises UserError for one that cannot be used."""
    problem = find_address_problem(address, kind, allow_remote=allow_remote)
    if problem is not None:
        raise UserError(f"{kind.key}={address} {problem.words}; {problem.fix}")
    return address.strip().rstrip("/")
