"""A dialect reads a request, and writes the reply or the error in its own form.

Invariants:
- A dialect keeps nothing: what it knows of a conversation is in the request. A stream counts its own events.
- The events of a stream add up to the plain reply, however many of them only said that it is being written.
- Equal conversations become equal messages, whatever the dialect, and so the same chain of tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import orjson

from swe_rl.gateway.errors import INVALID_JSON, ApiError
from swe_rl.gateway.json_repair import repair_json
from swe_rl.gateway.mending import Mender
from swe_rl.gateway.reply import ChatAnswer, Opening
from swe_rl.gateway.request import Arrived, ChatRequest, too_deep


class ReplyStream(ABC):
    """Writes the server-sent events of one reply. `begin` comes first, `alive` as often as time passes without a word,
    and then `finish` or `fail`."""

    @abstractmethod
    def begin(self, opening: Opening) -> Iterator[bytes]:
        """Says that the request was taken and its reply is being written."""

    @abstractmethod
    def alive(self) -> bytes:
        """Says that the reply is still being written, by an event: clients do not count a comment as a sign of life."""

    @abstractmethod
    def finish(self, answer: ChatAnswer) -> Iterator[bytes]:
        """Writes all of the reply, to the stream's end."""

    @abstractmethod
    def fail(self, error: ApiError) -> bytes:
        """Ends a stream that fails after it was begun."""


class Dialect(ABC):
    """Reads requests and writes replies. Its requests go to `path`, below `/v1`; at `count_path` a prompt's tokens are
    counted."""

    path: ClassVar[str]
    count_path: ClassVar[str | None] = None

    def parse(self, raw: bytes, arrived: Arrived) -> ChatRequest:
        """Reads a body, and mends its JSON if it has to. Raises ApiError."""
        mender = Mender(pinned=arrived.pinned)
        try:
            return self._noted(raw, arrived, mender)
        except ApiError as error:
            repaired = None
            if error.code == INVALID_JSON:
                repaired = repair_json(raw)
            if repaired is None:
                raise
        body, kinds = repaired
        mender.kinds |= kinds
        return self._noted(body, arrived, mender)

    def _noted(self, raw: bytes, arrived: Arrived, mender: Mender) -> ChatRequest:
        try:
            request = self._read(raw, arrived, mender)
        except (RecursionError, orjson.JSONEncodeError) as error:
            raise too_deep() from error
        if mender.kinds:
            return replace(request, notes=request.notes | mender.kinds)
        return request

    @abstractmethod
    def _read(self, raw: bytes, arrived: Arrived, mender: Mender) -> ChatRequest:
        """Reads a sound body. `mender` gets the kinds of what is mended. Raises ApiError, RecursionError,
        orjson.JSONEncodeError."""

    def reply_id(self, answer: ChatAnswer) -> str:
        """Returns the id by which a later request may go on from the reply, if `ChatRequest.kept` allows it."""
        return answer.name

    @abstractmethod
    def whole(self, request: ChatRequest, answer: ChatAnswer) -> dict[str, Any]:
        """Returns the plain reply, which `orjson` writes."""

    @abstractmethod
    def stream(self, request: ChatRequest) -> ReplyStream:
        """Makes the stream of one reply."""

    def events(self, request: ChatRequest, answer: ChatAnswer) -> Iterator[bytes]:
        """Writes the whole stream of a reply that was there before anything of it was sent."""
        stream = self.stream(request)
        yield from stream.begin(Opening.of(answer))
        yield from stream.finish(answer)

    def error(self, error: ApiError) -> dict[str, Any]:
        """Returns the body of a refusal."""
        return error.body()


def encode_event(payload: object, name: str | None = None) -> bytes:
    """Writes one server-sent event."""
    head = b""
    if name:
        head = f"event: {name}\n".encode()
    return head + b"data: " + orjson.dumps(payload) + b"\n\n"
