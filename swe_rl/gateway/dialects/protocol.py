"""What a dialect is: it reads a request, and writes the reply or the error in its own form.

Invariants:
- A dialect keeps nothing: what it knows of a conversation is in the request.
- The events of a stream add up to the plain reply.
- Equal conversations become equal messages, whatever the dialect, and so the same chain of tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import orjson

from swe_rl.gateway.errors import ApiError
from swe_rl.gateway.reply import ChatAnswer
from swe_rl.gateway.request import Arrived, ChatRequest, too_deep


class Dialect(ABC):
    """`path`: where its requests go, below `/v1`; `count_path`: those that want their prompt's tokens counted."""

    path: ClassVar[str]
    count_path: ClassVar[str | None] = None

    def parse(self, raw: bytes, arrived: Arrived) -> ChatRequest:
        """Raises ApiError."""
        try:
            return self._read(raw, arrived)
        except RecursionError as error:
            raise too_deep() from error

    @abstractmethod
    def _read(self, raw: bytes, arrived: Arrived) -> ChatRequest:
        """Raises ApiError, RecursionError."""

    def reply_id(self, answer: ChatAnswer) -> str:
        """By which a later request may go on from it, where `ChatRequest.kept` says that it may."""
        return answer.name

    @abstractmethod
    def whole(self, request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
        """The plain reply, as `orjson` writes it."""

    @abstractmethod
    def events(self, request: ChatRequest, answer: ChatAnswer) -> Iterator[bytes]:
        """Of a stream, to its end."""

    def error(self, error: ApiError) -> dict[str, Any]:
        """The body of a refusal."""
        return error.body()

    def broken_off(self, error: ApiError) -> bytes:
        """The last event of a stream that fails after it was begun."""
        return event(self.error(error))


def event(payload: object, name: str | None = None) -> bytes:
    """Of server-sent events."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(payload) + b"\n\n"
