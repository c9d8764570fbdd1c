"""This module has the errors that tell a client why a request cannot be answered, in OpenAI's form or in that of the
path's dialect.

Invariants:
- OpenAI's body is `{"error": {"message", "type", "param", "code"}}`; only 503 carries Retry-After.
- A message or log line names a route, never a session's address, because a message may end in a trajectory's error.
- Messages say what was wrong with the request or the engine, never a traceback.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from swe_rl.errors import RunError, UserError
from swe_rl.gateway.trace import TraceStoreError

Form = Callable[["ApiError"], dict[str, Any]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# This is OpenAI's word. Agents look for it to shorten their conversation.
CONTEXT_OVERFLOW = "context_length_exceeded"
CALL_LIMIT = "call_limit_reached"
INVALID_JSON = "invalid_json"
MODEL_NOT_FOUND = "model_not_found"
TOO_LARGE = "request_too_large"
# Clients of OpenAI wait so many seconds before they repeat a call that was refused with 503.
RETRY_AFTER_S = 1
_log = logging.getLogger(__name__)


class GatewayError(RunError):
    """A session is used in a way that the gateway does not allow."""


class GatewayLostError(RunError):
    """The process that had a session has ended, and the session with it."""


class GatewayConfigError(UserError):
    """The gateway cannot be started as configured."""


class ApiError(Exception):
    """A refusal, with an HTTP status and OpenAI's error fields."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self, form: Form | None = None) -> web.Response:
        if self.status == 503:
            headers = {"Retry-After": str(RETRY_AFTER_S)}
        else:
            headers = {}
        if self.status == 401:
            headers |= {"WWW-Authenticate": "Bearer"}
        data = orjson.dumps(form(self) if form is not None else self.body())
        return web.Response(body=data, status=self.status, headers=headers, content_type="application/json")


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def call_limit(limit: int) -> ApiError:
    return ApiError(400, f"This session has had its {limit} replies (rollout.max_turns).", code=CALL_LIMIT)


def context_overflow(prompt_tokens: int, limit: int, key: str, *, at_least: bool = False) -> ApiError:
    """Refuses a prompt that leaves no room to answer. The message is OpenAI's sentence, because clients recognize a
    full context by it; `key` is the setting that has the limit. With `at_least`, the prompt was not counted to its
    end."""
    if at_least:
        number = f"at least {prompt_tokens}"
    else:
        number = f"{prompt_tokens}"
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested {number} tokens in the "
        f"messages, which leaves no room to answer ({key}). Please reduce the length of the messages.",
        param="messages",
        code=CONTEXT_OVERFLOW,
    )


def overflow_figures(error: ApiError) -> tuple[int, int] | None:
    """Returns the prompt's tokens and the limit that a `context_overflow` names, or None for another error. It reads
    the message, as another process may have written it."""
    figures = re.search(
        r"length is ([0-9]+) tokens\. However, you requested (?:at least )?([0-9]+) tokens", error.message
    )
    if error.code == CONTEXT_OVERFLOW and figures:
        return (int(figures[2]), int(figures[1]))
    return None


def engine_failure(status: int, message: str) -> ApiError:
    return ApiError(status, message, kind="engine_error", code="engine_error")


def internal_failure(error: Exception) -> ApiError:
    """Refuses because of an error that nobody foresaw. Only the error's type is shown, as its text may hold what no
    client should read."""
    return ApiError(500, f"The gateway failed: {type(error).__name__}.", kind="server_error", code="internal_error")


def no_reply(reply_id: str) -> ApiError:
    message = f"Response with id {reply_id[:600]!r} not found: replies are kept while their session is open."
    return ApiError(404, message, code="response_not_found")


def no_session(session_id: str) -> ApiError:
    """Refuses a session that is not there, or whose secret the address does not have: who guesses cannot tell the two
    apart."""
    message = (
        f"There is no session {session_id!r} at this address. A run answers at the addresses that it gives to its "
        "agents; only job=serve lets clients begin sessions."
    )
    return ApiError(404, message, code="session_not_found")


def unavailable_error(message: str, code: str) -> ApiError:
    return ApiError(503, message, kind="service_unavailable", code=code)


def refusal_of(error: TraceStoreError) -> ApiError:
    return ApiError(500, str(error), kind="trace_store_error", code="trace_store_error")


def _without_secret(path: str) -> str:
    return re.sub(r"/sessions/.*(?=/v1(?:/|$))|/sessions/.*", "/sessions/...", path, flags=re.DOTALL)


def error_middleware(forms: Mapping[str, Form]) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Makes a middleware that writes errors in a dialect's form. `forms` has the form by the end of the path; other
    paths get OpenAI's."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as error:
            form = next((form for path, form in forms.items() if request.path.endswith(path)), None)
            return refuse_request(request, error).response(form)

    return answer


def refuse_request(request: web.Request, error: Exception) -> ApiError:
    """Returns the refusal that the client is told. Raises the error again if aiohttp has to handle it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        limit_mb = request.client_max_size // 2**20
        message = f"The request body is larger than {limit_mb} MB (gateway.max_body_mb)."
        return ApiError(413, message, code=TOO_LARGE)
    if isinstance(error, web.HTTPNotFound):
        return ApiError(404, f"There is nothing at {request.method} {_without_secret(request.path)}.", code="not_found")
    if isinstance(error, web.HTTPMethodNotAllowed):
        message = f"{request.method} is not allowed at {_without_secret(request.path)}."
        return ApiError(405, message, code="method_not_allowed")
    if isinstance(error, TraceStoreError):
        return refusal_of(error)
    if isinstance(error, web.HTTPException | ConnectionResetError):
        raise error
    # The log names the route's pattern, because the path has a session's secret.
    resource = request.match_info.route.resource
    _log.error("%s %s failed", request.method, resource.canonical if resource else "of no route", exc_info=error)
    return internal_failure(error)
