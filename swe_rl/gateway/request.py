"""A request for one reply, in whatever dialect it came: what is common to all, and how its fields are checked.

Invariants:
- What cannot be honoured is refused by name (400), never ignored; a field that nobody knows is ignored.
- A request that passes renders without an error.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from swe_rl.gateway.conversation import Conversation, KnownBodies, Message, Sent
from swe_rl.gateway.errors import ApiError, invalid

_PROGRAM = re.compile(rb'"program_id"[ \t\n\r]*:[ \t\n\r]*"([^"\\]+)"')
_PROGRAM_BYTES = 1024
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Kept:
    """What a later request may go on from by the reply's id: the messages of this one, without its instructions, and
    the reply before them."""

    previous_id: str | None
    messages: Sequence[Message] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`echo`: what its dialect needs to answer it."""

    conversation: Conversation
    tools: list[dict[str, Any]]
    stream: bool
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    program_id: str | None
    logprobs: bool = False
    echo: Mapping[str, Any] = field(default_factory=dict)
    sent: Sent | None = None  # to be kept with the name of its session
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """What is known of a request before it is read: `bodies` remembers those of this session, or of one of the same
    `name`; `said_before(program_id, reply_id)` has the messages up to that reply, and `answered` what its client was
    sent; None where it is not known."""

    model_name: str
    bodies: KnownBodies | None = None
    name: str = ""
    said_before: Callable[[str | None, str], Sequence[Message] | None] = lambda program_id, reply_id: None
    answered: Callable[[str | None, str], bytes | None] = lambda program_id, reply_id: None


def read_tools(tools: Any, tool: Callable[[Any, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """As Chat Completions has them; `tool` reads one of them and knows its place by name. Raises ApiError."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise invalid("'tools' must be a list.", "tools")
    return [tool(sent, f"tools[{index}]") for index, sent in enumerate(tools)]


def read_body(raw: bytes, names: Sequence[str]) -> dict[str, Any]:
    """A request for the model that these names stand for, the first of them its own. Raises ApiError."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid(f"The body is not valid JSON: {error}.") from error
    if not isinstance(body, dict):
        raise invalid("The body must be a JSON object.")
    check_model(body, names)
    return body


def check_model(body: Mapping[str, Any], names: Sequence[str]) -> None:
    if body.get("model", names[0]) not in names:
        asked = repr(body["model"])[:600] if isinstance(body["model"], str) else "of that name"
        message = f"The model {asked} does not exist; this gateway serves {names[0]!r}."
        raise ApiError(404, message, param="model", code="model_not_found")


def program_named(raw: bytes) -> str:
    """The program_id that a body seems to have, near its begin or its end; empty: none. Only its parser knows."""
    name = _PROGRAM.search(raw, 0, _PROGRAM_BYTES) or _PROGRAM.search(raw, max(0, len(raw) - _PROGRAM_BYTES))
    return name[1].decode(errors="replace") if name else ""


def program_of(body: Mapping[str, Any]) -> str | None:
    program_id = body.get("program_id")
    if program_id is not None and (not isinstance(program_id, str) or not program_id):
        raise invalid("'program_id' must be a non-empty string.", "program_id")
    return program_id


def too_deep() -> ApiError:
    return invalid("The messages, tools or other fields are nested too deeply.", "messages")


def refuse(refused: Mapping[str, bool]) -> None:
    """Raises ApiError for the first parameter that is present and cannot be honoured."""
    for param, present in refused.items():
        if present:
            raise invalid(f"{param!r} with this value is not supported.", param, "unsupported_parameter")


def texts(content: Any, where: str, kinds: Sequence[str] = ("text",)) -> None:
    """Checks a content: a string, nothing, or a list of parts that are text. Raises ApiError."""
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise invalid(f"'{where}' must be a string or a list of text parts.", where)
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in kinds or not isinstance(part.get("text"), str):
            raise invalid(f"'{where}' has a part that is not text; only text is supported.", where)


def string(part: Mapping[str, Any], name: str, where: str) -> str:
    value = part.get(name)
    if not isinstance(value, str):
        raise invalid(f"'{where}.{name}' must be a string.", where)
    return value


def flag(body: Mapping[str, Any], param: str, default: bool = False) -> bool:
    value = body.get(param)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"'{param}' must be true or false.", param)
    return default if value is None else value


def integer(body: Mapping[str, Any], param: str, least: int) -> int | None:
    value = body.get(param)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise invalid(f"'{param}' must be an integer of at least {least}.", param)
    return value


def number(body: Mapping[str, Any], param: str, least: float, most: float) -> float:
    value = body.get(param)
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise invalid(f"'{param}' must be a number between {least:g} and {most:g}.", param)
    return float(value)
