"""A request for one reply, whatever its dialect: this module has what all dialects share, and checks the fields.

Invariants:
- What can be answered is answered: `gateway/mending.py` says what is mended, and each mend is named in `notes`.
- A request that passes renders without an error.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from swe_rl.gateway import json_slices
from swe_rl.gateway.chains.segment import ACTS, Purpose
from swe_rl.gateway.conversation import KnownBodies, Message, RequestMessages, SentBody
from swe_rl.gateway.errors import INVALID_JSON, MODEL_NOT_FOUND, TOO_LARGE, ApiError, invalid_request

_PROGRAM = re.compile(rb'"program_id"[ \t\n\r]*:[ \t\n\r]*"([^"\\]+)"')
# Clients write short fields before or after the messages, so only the ends of a body are searched.
_PROGRAM_BYTES = 1024
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Kept:
    """Holds what a later request may go on from by the reply's id: this request's messages without its instructions,
    and the id of the reply before them."""

    previous_id: str | None
    messages: Sequence[Message] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Holds a request in the form that is common to all dialects. `echo` has what its dialect needs to answer it."""

    conversation: RequestMessages
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
    # The body is kept with the name of its session.
    sent: SentBody | None = None
    kept: Kept | None = None
    # False means that a call in the reply is text like any other.
    calls: bool = True
    # These are the kinds of what was mended.
    notes: frozenset[str] = frozenset()
    purpose: Purpose = ACTS


@dataclass(frozen=True, slots=True)
class Arrived:
    """Holds what is known of a request before it is read. `bodies` remembers the bodies of sessions, and `name` is this
    session's name there. `said_before(program_id, reply_id)` returns the messages up to that reply, and `answered`
    returns what its client was sent; both return None for a reply that is not known."""

    model_name: str
    bodies: KnownBodies | None = None
    name: str = ""
    said_before: Callable[[str | None, str], Sequence[Message] | None] = lambda program_id, reply_id: None
    answered: Callable[[str | None, str], bytes | None] = lambda program_id, reply_id: None
    # True means that the session was opened, and its settings hold.
    pinned: bool = False


def check_values(raw: bytes, most_values: int) -> None:
    """Raises ApiError (413) for a body with too many JSON values."""
    if json_slices.has_too_many_values(raw, most_values):
        message = (
            f"The request body has more than {json_slices.MOST_CONTAINERS} JSON objects and lists, or more than "
            f"{most_values} values."
        )
        raise ApiError(413, message, code=TOO_LARGE)


def read_body(raw: bytes, names: Sequence[str]) -> dict[str, Any]:
    """Parses a request for the model that `names` stand for; messages show the first of these names. Raises
    ApiError."""
    try:
        body = json_slices.loads(raw)
    except orjson.JSONDecodeError as error:
        raise invalid_request(f"The body is not valid JSON: {error}.", code=INVALID_JSON) from error
    if not isinstance(body, dict):
        raise invalid_request("The body must be a JSON object.")
    check_model(body, names)
    return body


def check_model(body: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raises ApiError for the name of another model. A value that is not text is not a name, so the only model is
    meant."""
    asked = body.get("model")
    if isinstance(asked, str) and asked not in names:
        message = f"The model {asked[:600]!r} does not exist; this gateway serves {names[0]!r}."
        raise ApiError(404, message, param="model", code=MODEL_NOT_FOUND)


def program_named(raw: bytes) -> str:
    """Returns the program_id that a body seems to have near its begin or its end, or an empty text. Only the body's
    parser knows for certain."""
    name = _PROGRAM.search(raw, 0, _PROGRAM_BYTES) or _PROGRAM.search(raw, max(0, len(raw) - _PROGRAM_BYTES))
    if name:
        return name[1].decode(errors="replace")
    return ""


def program_of(body: Mapping[str, Any]) -> str | None:
    program_id = body.get("program_id")
    if program_id is not None and (not isinstance(program_id, str) or not program_id):
        raise invalid_request("'program_id' must be a non-empty string.", "program_id")
    return program_id


def too_deep() -> ApiError:
    return invalid_request("The messages, tools or other fields are nested too deeply.", "messages")


def _value_of(body: Mapping[str, Any], param: str) -> Any:
    """Returns a field's value, and reads it if a client wrote a number, true or false as a text."""
    value = body.get(param)
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def kind_of_choice(body: Mapping[str, Any]) -> Any:
    """Returns what `tool_choice` asks for, as a word or as the type of an object; None stands for nothing. Dialects
    differ here, and clients write what they are used to."""
    choice = body.get("tool_choice") or None
    if isinstance(choice, dict):
        return choice.get("type")
    return choice


def read_flag(body: Mapping[str, Any], param: str, default: bool = False) -> bool:
    value = _value_of(body, param)
    if value is not None and not isinstance(value, bool):
        raise invalid_request(f"'{param}' must be true or false.", param)
    if value is None:
        return default
    return value


def read_integer(body: Mapping[str, Any], param: str, least: int) -> int | None:
    value = _value_of(body, param)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise invalid_request(f"'{param}' must be an integer of at least {least}.", param)
    return value


def read_number(body: Mapping[str, Any], param: str, least: float, most: float) -> float:
    value = _value_of(body, param)
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise invalid_request(f"'{param}' must be a number between {least:g} and {most:g}.", param)
    return float(value)
