"""Asks an OpenEnv server who it is: whether it serves, its name and description, and the form of its actions.

Invariants:
- A server elsewhere is asked only where the configuration allows it; no proxy stands between us and one on this
  machine.
- A server is looked at once in a process. What it says is text for the model, and nothing of it is run.
"""

import functools
import json
from dataclasses import dataclass
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from swe_rl.dataset.openenv_address import LOCAL_HOSTS, find_address_problem
from swe_rl.errors import UserError, one_line

_LOOK_S = 20.0
_MOST_BYTES = 4_000_000
# Servers whose actions are calls of tools name one of these as the form of an action.
_TOOL_ACTIONS = frozenset({"Action", "CallToolAction", "ListToolsAction"})


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Holds what an OpenEnv server says of itself. `action` is the JSON schema of its actions."""

    name: str
    description: str
    action: dict[str, Any]

    @property
    def has_tools(self) -> bool:
        """Tells whether an action is the call of a tool that the server lists."""
        return self.action.get("title") in _TOOL_ACTIONS


def clean_address(address: str, *, allow_remote: bool = False) -> str:
    """Returns the address of a server without a closing slash. Raises UserError for one that cannot be used."""
    problem = find_address_problem(address, allow_remote=allow_remote)
    if problem is not None:
        raise UserError(f"env.dataset={address} {problem.words}; {problem.fix}")
    return address.strip().rstrip("/")


@functools.lru_cache(maxsize=8)
def look_at_server(address: str) -> ServerFacts:
    """Returns what the server at a clean address says of itself. It blocks. Raises UserError."""
    schema = _read_object(address, "/schema")
    action = schema.get("action")
    if not isinstance(action, dict) or not _is_form(action):
        raise UserError(
            f"env.dataset={address}: GET /schema has no form of an action, so it is no OpenEnv server (tried: 0.3 and "
            "0.10 of the package openenv)"
        )
    metadata = _read_object(address, "/metadata")
    return ServerFacts(
        name=str(metadata.get("name") or schema.get("title") or "environment"),
        description=str(metadata.get("description") or ""),
        action=action,
    )


def _is_form(action: dict[str, Any]) -> bool:
    """Tells whether a JSON schema says its fields as the ones of OpenEnv do, as far as it says any."""
    required = action.get("required") or []
    is_list = isinstance(required, list) and all(isinstance(name, str) for name in required)
    return is_list and isinstance(action.get("properties") or {}, dict) and isinstance(action.get("title", ""), str)


def _read_object(address: str, path: str) -> dict[str, Any]:
    # Other proxies than none would send requests for this machine elsewhere.
    handlers = [ProxyHandler({})] if urlsplit(address).hostname in LOCAL_HOSTS else []
    try:
        with build_opener(*handlers).open(f"{address}{path}", timeout=_LOOK_S) as answer:
            read = json.loads(answer.read(_MOST_BYTES))
    except (URLError, OSError, ValueError) as error:
        raise UserError(
            f"env.dataset={address}: GET {path} gives no answer of an OpenEnv server ({type(error).__name__}: "
            f"{one_line(error)}). Start the server, for example with uvicorn PACKAGE.server.app:app --port 8000"
        ) from error
    if not isinstance(read, dict):
        raise UserError(f"env.dataset={address}: GET {path} is no JSON object, so it is no OpenEnv server")
    return read
