"""Has what environments share that are servers: the errors of an episode, and the first look at a server.

Invariants:
- No proxy stands between us and a server on this machine.
"""

import json
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from swe_rl.dataset.server_address import LOCAL_HOSTS, ServerKind
from swe_rl.errors import RunError, UserError, one_line

_LOOK_S = 20.0
_MOST_BYTES = 4_000_000


class EpisodeError(RunError):
    """The server or its environment failed. There is no reward."""


class RefusedActionError(Exception):
    """The server says that an action has not the form that it asks for. Nothing was done."""


def read_object(address: str, path: str, kind: ServerKind) -> dict[str, Any]:
    """Returns the JSON object that the server at a clean address has at `path`. It blocks. Raises UserError."""
    # Other proxies than none would send requests for this machine elsewhere.
    handlers = [ProxyHandler({})] if urlsplit(address).hostname in LOCAL_HOSTS else []
    try:
        with build_opener(*handlers).open(f"{address}{path}", timeout=_LOOK_S) as answer:
            read = json.loads(answer.read(_MOST_BYTES))
    except (URLError, OSError, ValueError) as error:
        raise UserError(
            f"{kind.key}={address}: GET {path} gives no answer of {kind.words} ({type(error).__name__}: "
            f"{one_line(error)}). Start the server: {kind.start}"
        ) from error
    if not isinstance(read, dict):
        raise UserError(f"{kind.key}={address}: GET {path} is no JSON object, so it is not {kind.words}")
    return read
