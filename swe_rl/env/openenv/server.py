"""Asks an OpenEnv server who it is: whether it serves, its name and description, and the form of its actions.

Invariants:
- A server is looked at once in a process. What it says is text for the model, and nothing of it is run.
"""

import functools
from dataclasses import dataclass
from typing import Any

from swe_rl.dataset.server_address import OPENENV_SERVER
from swe_rl.env.served import read_object
from swe_rl.errors import UserError

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


@functools.lru_cache(maxsize=8)
def look_at_server(address: str) -> ServerFacts:
    """Returns what the server at a clean address says of itself. It blocks. Raises UserError."""
    schema = read_object(address, "/schema", OPENENV_SERVER)
    action = schema.get("action")
    if not isinstance(action, dict) or not _is_form(action):
        raise UserError(
            f"env.dataset={address}: GET /schema has no form of an action, so it is no OpenEnv server (tried: 0.3 and "
            "0.10 of the package openenv)"
        )
    metadata = read_object(address, "/metadata", OPENENV_SERVER)
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
