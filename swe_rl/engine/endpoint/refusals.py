"""Reads what an endpoint says about a call that it does not answer, and what follows from it.

Invariants:
- A full context is the only refusal that an attempt answers for, as with any other engine. Everything else is the
  endpoint's or ours: it ends an attempt as a failure of infrastructure.
- Whether nothing will be answered any more is decided by a status or a code. Words are no sign of it: an endpoint that
  has too many requests of ours may speak of quotas and of billing, too.
"""

import re
from typing import Any

import orjson

from swe_rl.engine.engine import ContextOverflowError, EngineError
from swe_rl.engine.server.client import ServerAnswer

# Too many requests, and the statuses of servers that are overloaded, restart or were not reached by a gateway.
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_LIMITED = frozenset({429, 503, 529})
# Proxies put the codes of the endpoint behind them into their own message.
_NO_MONEY = re.compile(r"\b(?:insufficient_quota|billing_hard_limit_reached|billing_not_active|billing_error)\b")
# These sentences come with statuses that are about a request otherwise.
_NO_MONEY_SAID = re.compile(
    r"insufficient[ _](?:balance|credits?|funds)|credit balance is too low|billing hard limit", re.IGNORECASE
)
_FULL = re.compile(
    r"context_length_exceeded|maximum context length|prompt is too long|context window|contextwindowexceeded|"
    r"input is too long|exceeds? the (?:maximum )?context|context limit|reduce the length of the messages",
    re.IGNORECASE,
)
# A shorter reply makes no room for these.
_PROMPT_FULL = re.compile(r"prompt is too long|input is too long", re.IGNORECASE)
_UNKNOWN_FIELD = re.compile(
    r"unsupported|not support|unknown|unrecognized|not permitted|extra inputs|deprecated", re.IGNORECASE
)
# Fields of sampling that some models refuse. Without them the endpoint's own values hold.
_OPTIONAL_FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed")
# An error inside of an answer of status 200 has a code, or a type, in place of a status.
_STATUS_OF_CODE = {
    "authentication_error": 401,
    "billing_error": 402,
    "billing_hard_limit_reached": 402,
    "billing_not_active": 402,
    "content_policy_violation": 400,
    "context_length_exceeded": 400,
    "insufficient_quota": 402,
    "invalid_api_key": 401,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "model_not_found": 404,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "too_many_requests": 429,
}
_UNKNOWN_STATUS = 502


class EndpointClosedError(EngineError):
    """The endpoint answers nobody any more: the budget is spent, or it refuses the key. The run ends.

    `of_key` tells that it does not know the key, or not where the key was written.
    """

    of_key = False


class PassingError(EngineError):
    """The endpoint cannot answer now. `limited` tells that it has too many requests of ours. `unsure` tells that it may
    have answered, and may charge for it."""

    limited = False
    unsure = False


def error_of(answer: ServerAnswer) -> EngineError:
    """Returns the error that an answer of a status other than 200 is, or one whose body has an error."""
    status = answer.status
    said = words_of(answer)
    text = f"status {status}: {answer.reason()}"
    if status == 401:
        refused = EndpointClosedError(f"it refuses all calls with this key ({text}). Correct engine.key, and go on")
        refused.of_key = True
        return refused
    if status == 402 or _has_no_money(status, said):
        return EndpointClosedError(
            f"it refuses all calls with this key ({text}). Look at the account's limits, and go on"
        )
    if status in (400, 413, 422, 500) and _FULL.search(said):
        return ContextOverflowError(text)
    if status in _PASSING:
        passing = PassingError(text)
        passing.limited = status in _LIMITED
        passing.retry_after_s = answer.retry_after_s
        return passing
    return EngineError(text)


def error_inside(answer: ServerAnswer, payload: Any) -> EngineError | None:
    """Returns the error that some endpoints put into an answer of status 200, beside the reply or in its place."""
    error = _first_error(payload)
    if error is None:
        return None
    # What is said of the error is read from the error alone: the rest may be a reply, which can say anything.
    body = orjson.dumps({"error": error})
    return error_of(ServerAnswer(_status_of(error), body, answer.retry_after_s))


def refused_field(answer: ServerAnswer, sent: dict[str, Any]) -> str | None:
    """Returns the field of sampling that a refusal names, if it was sent."""
    if answer.status not in (400, 422):
        return None
    param = param_of(answer)
    if param in _OPTIONAL_FIELDS and param in sent:
        return param
    said = words_of(answer)
    if not _UNKNOWN_FIELD.search(said):
        return None
    return next((name for name in _OPTIONAL_FIELDS if name in sent and re.search(rf"\b{name}\b", said)), None)


def says_unknown_field(said: str) -> bool:
    return _UNKNOWN_FIELD.search(said) is not None


def has_full_prompt(error: EngineError) -> bool:
    """Tells whether a full context is the prompt's doing alone, so that no shorter reply fits."""
    return _PROMPT_FULL.search(str(error)) is not None


def param_of(answer: ServerAnswer) -> str:
    """Returns the name of the field that an error says to be about, or an empty text."""
    try:
        error = orjson.loads(answer.body).get("error")
    except (orjson.JSONDecodeError, AttributeError):
        return ""
    param = error.get("param") if isinstance(error, dict) else None
    return param if isinstance(param, str) else ""


def words_of(answer: ServerAnswer) -> str:
    return answer.body[:20_000].decode(errors="replace")


def _has_no_money(status: int, said: str) -> bool:
    if status in (400, 403) and _NO_MONEY_SAID.search(said):
        return True
    return status in (403, 429) and _NO_MONEY.search(said) is not None


def _first_error(payload: Any) -> Any:
    """Returns the error of an answer, or that of its first choice. None: it has no error."""
    if not isinstance(payload, dict):
        return None
    if payload.get("error"):
        return payload["error"]
    choices = payload.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0].get("error") or None
    return None


def _status_of(error: Any) -> int:
    """Returns the status that an error of an answer of status 200 would have had."""
    if not isinstance(error, dict):
        return _UNKNOWN_STATUS
    for name in ("status", "status_code", "code", "type"):
        value = error.get(name)
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600:
            return value
        if isinstance(value, str) and value.lower() in _STATUS_OF_CODE:
            return _STATUS_OF_CODE[value.lower()]
    return _UNKNOWN_STATUS
