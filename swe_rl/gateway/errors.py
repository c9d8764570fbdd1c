"""What a client is told when a request cannot be answered: in OpenAI's shape, or in that of the path's dialect.

Invariants:
- OpenAI's body is `{"error": {"message", "type", "param", "code"}}`; only 503 carries Retry-After.
- What is logged or said names a route, never a session's address: what is said may end in a trajectory's error.
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
CONTEXT_OVERFLOW = "context_length_exceeded"  # OpenAI's word
CALL_LIMIT = "call_limit_reached"
RETRY_AFTER_S = 1
_log = logging.getLogger(__name__)


class GatewayError(RunError):
    """A session is used in a way that the gateway does not allow."""


class GatewayLostError(RunError):
    """The process that had a session has ended, and with it the session."""


class GatewayConfigError(UserError):
    """The gateway cannot be started as configured."""


class ApiError(Exception):
    """A refusal: an HTTP status and OpenAI's error fields."""

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
        headers = {"Retry-After": str(RETRY_AFTER_S)} if self.status == 503 else {}
        headers |= {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        data = orjson.dumps(form(self) if form is not None else self.body())
        return web.Response(body=data, status=self.status, headers=headers, content_type="application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def call_limit(limit: int) -> ApiError:
    return ApiError(400, f"This session has had its {limit} replies (rollout.max_turns).", code=CALL_LIMIT)


def context_overflow(prompt_tokens: int, limit: int, key: str) -> ApiError:
    return ApiError(
        400,
        f"This request's prompt has {prompt_tokens} tokens, which leaves no room to answer: the limit is {limit} "
        f"tokens ({key}). Please shorten the messages.",
        param="messages",
        code=CONTEXT_OVERFLOW,
    )


def engine_failure(status: int, message: str) -> ApiError:
    return ApiError(status, message, kind="engine_error", code="engine_error")


def internal_failure(error: Exception) -> ApiError:
    """Of an error that nobody foresaw; its text may be nobody's to read."""
    return ApiError(500, f"The gateway failed: {type(error).__name__}.", kind="server_error", code="internal_error")


def no_reply(reply_id: str) -> ApiError:
    message = f"Response with id {reply_id[:600]!r} not found: replies are kept while their session is open."
    return ApiError(404, message, code="response_not_found")


def no_session(session_id: str) -> ApiError:
    """Also for one that is there and whose secret the address does not have: who guesses is told nothing."""
    message = (
        f"There is no session {session_id!r} at this address. A run answers at the addresses that it gives to its "
        "agents; only job=serve lets clients begin sessions."
    )
    return ApiError(404, message, code="session_not_found")


def unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, kind="service_unavailable", code=code)


def refusal_of(error: TraceStoreError) -> ApiError:
    return ApiError(500, str(error), kind="trace_store_error", code="trace_store_error")


def _without_secret(path: str) -> str:
    return re.sub(r"/sessions/.*(?=/v1(?:/|$))|/sessions/.*", "/sessions/...", path, flags=re.DOTALL)


def error_middleware(forms: Mapping[str, Form]) -> Callable[..., Awaitable[web.StreamResponse]]:
    """`forms`: of errors, by the end of the path that they are for; elsewhere they are OpenAI's."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as error:
            form = next((form for path, form in forms.items() if request.path.endswith(path)), None)
            return refusal(request, error).response(form)

    return answer


def refusal(request: web.Request, error: Exception) -> ApiError:
    """What the client is told. Raises an error again that is none of the gateway's."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        limit_mb = request.client_max_size // 2**20
        message = f"The request body is larger than {limit_mb} MB (gateway.max_body_mb)."
        return ApiError(413, message, code="request_too_large")
    if isinstance(error, web.HTTPNotFound):
        return ApiError(404, f"There is nothing at {request.method} {_without_secret(request.path)}.", code="not_found")
    if isinstance(error, web.HTTPMethodNotAllowed):
        message = f"{request.method} is not allowed at {_without_secret(request.path)}."
        return ApiError(405, message, code="method_not_allowed")
    if isinstance(error, TraceStoreError):
        return refusal_of(error)
    if isinstance(error, web.HTTPException | ConnectionResetError):
        raise error
    resource = request.match_info.route.resource  # its pattern: a path has a session's secret
    _log.error("%s %s failed", request.method, resource.canonical if resource else "of no route", exc_info=error)
    return internal_failure(error)
