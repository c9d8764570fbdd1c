"""Reads what an endpoint says about a call that it does not answer, and what follows from it.

Invariants:
- A full context is the only refusal that an attempt answers for, as with any other engine. Everything else is the
  endpoint's or ours: it ends an attempt as a failure of infrastructure.
- No message has the key: it is in the request's headers alone, and endpoints that repeat it are cut off here.
"""

import re
from typing import Any

import orjson

from swe_rl.engine.protocol import ContextOverflowError, EngineError
from swe_rl.engine.server.client import ServerAnswer

# Too many requests, and the statuses of servers that are overloaded, restart or were not reached by a gateway.
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_NO_MONEY = re.compile(r"insufficient_quota|insufficient[ _]balance|insufficient[ _]credit|billing", re.IGNORECASE)
_FULL = re.compile(
    r"context_length_exceeded|maximum context length|prompt is too long|context window|contextwindowexceeded|"
    r"input is too long|exceeds? the (?:maximum )?context|reduce the length of the messages",
    re.IGNORECASE,
)
# Fields that some models refuse. Without them the endpoint's own values hold.
OPTIONAL_FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_output_tokens")


class EndpointClosedError(EngineError):
    """The endpoint answers nobody any more: the budget is spent, or it refuses the key. The run ends."""


class PassingError(EngineError):
    """The endpoint cannot answer now. `limited` tells that it has too many requests of ours."""

    limited = False


def error_of(answer: ServerAnswer) -> EngineError:
    """Returns the error that an answer of a status other than 200 is, or one whose body has an error."""
    status = answer.status
    said = _words_of(answer)
    text = f"status {status}: {answer.reason()}"
    if status in (401, 402) or (status in (403, 429) and _NO_MONEY.search(said)):
        way_out = "Correct engine.key" if status == 401 else "Look at the account's limits"
        return EndpointClosedError(f"it refuses all calls with this key ({text}). {way_out}, and go on")
    if status in (400, 413, 422, 500) and _FULL.search(said):
        return ContextOverflowError(text)
    if status in _PASSING:
        passing = PassingError(text)
        passing.limited = status in (429, 503, 529)
        passing.retry_after_s = answer.retry_after_s
        return passing
    return EngineError(text)


def error_inside(answer: ServerAnswer, payload: Any) -> EngineError | None:
    """Returns the error that some endpoints put into an answer of status 200."""
    error = payload.get("error") if isinstance(payload, dict) else None
    if not error:
        return None
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return error_of(ServerAnswer(status, answer.body, answer.retry_after_s))


def refused_field(answer: ServerAnswer, sent: dict[str, Any]) -> str | None:
    """Returns the optional field that a refusal names, if it was sent."""
    if answer.status not in (400, 422):
        return None
    said = _words_of(answer)
    try:
        error = orjson.loads(answer.body).get("error")
        param = error.get("param") if isinstance(error, dict) else None
    except (orjson.JSONDecodeError, AttributeError):
        param = None
    if param in OPTIONAL_FIELDS and param in sent:
        return str(param)
    if not re.search(r"unsupported|not support|unknown|unrecognized|not permitted|extra inputs|deprecated", said, re.I):
        return None
    return next((name for name in OPTIONAL_FIELDS if name in sent and re.search(rf"\b{name}\b", said)), None)


def _words_of(answer: ServerAnswer) -> str:
    return answer.body[:20_000].decode(errors="replace")
