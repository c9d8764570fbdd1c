"""This module remembers what was said in a session, by the ids of its replies: a client may go on from a reply without
sending the conversation again.

Invariants:
- A reply has the messages that came with its request, as JSON, and the reply before them: memory is what was sent.
- Memory is bounded, for one session and for all. What was forgotten is not there: nothing is made up.
- A session's replies are found by its name alone, which has its secret.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import orjson

from swe_rl.gateway.conversation import Message

# All sessions together may hold 512 MB, and one session 64 MB: four requests of the largest size (gateway.max_body_mb).
_LIMIT_BYTES = 512 * 2**20
_SESSION_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class _Said:
    previous_id: str | None
    messages: bytes
    # These are the bytes that the client got.
    answer: bytes

    @property
    def held_bytes(self) -> int:
        return len(self.messages) + len(self.answer)


@dataclass(slots=True)
class _Talk:
    # The reply that was used least lately comes first, as it is dropped first.
    replies: OrderedDict[str, _Said] = field(default_factory=OrderedDict)
    held_bytes: int = 0


class Histories:
    def __init__(self, limit_bytes: int = _LIMIT_BYTES, session_bytes: int = _SESSION_BYTES) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._session_bytes = session_bytes
        # The session that was used least lately comes first, as it is dropped first.
        self._talks: OrderedDict[str, _Talk] = OrderedDict()
        # Large requests are read in threads, which look up replies at the same time.
        self._lock = Lock()

    def keep(
        self, name: str, reply_id: str, previous_id: str | None, messages: Sequence[Message], answer: bytes = b""
    ) -> None:
        """Remembers a reply. `messages` are those of the request and the reply itself; `answer` is what its client was
        sent."""
        said = _Said(previous_id, orjson.dumps(list(messages)), answer)
        with self._lock:
            talk = self._talks.setdefault(name, _Talk())
            self._talks.move_to_end(name)
            talk.replies[reply_id] = said
            self._hold(talk, said.held_bytes)
            while talk.held_bytes > self._session_bytes:
                self._hold(talk, -talk.replies.popitem(last=False)[1].held_bytes)
            while self.held_bytes > self._limit_bytes:
                self._forget(next(iter(self._talks)))

    def up_to(self, name: str, reply_id: str) -> list[dict[str, Any]] | None:
        """Returns all messages to the end of that reply, or None if any of them is not known."""
        line: list[_Said] = []
        wanted: str | None = reply_id
        with self._lock:
            talk = self._talks.get(name)
            while wanted is not None:
                said = None
                if talk is not None:
                    said = talk.replies.get(wanted)
                if talk is None or said is None:
                    return None
                talk.replies.move_to_end(wanted)
                line.append(said)
                wanted = said.previous_id
        return [message for said in reversed(line) for message in orjson.loads(said.messages)]

    def answer(self, name: str, reply_id: str) -> bytes | None:
        """Returns what the client of that reply was sent, or None if it is not known."""
        talk = self._talks.get(name)
        said = None
        if talk is not None:
            said = talk.replies.get(reply_id)
        if said is not None:
            return said.answer
        return None

    def remove(self, name: str, reply_id: str) -> bool:
        """Removes a reply and tells whether it was known. Nothing goes on from it any more, nor from those that went on
        from it."""
        with self._lock:
            talk = self._talks.get(name)
            said = None
            if talk is not None:
                said = talk.replies.pop(reply_id, None)
            if talk is None or said is None:
                return False
            self._hold(talk, -said.held_bytes)
        return True

    def forget(self, name: str) -> None:
        """Forgets a session that is over."""
        with self._lock:
            self._forget(name)

    def _forget(self, name: str) -> None:
        talk = self._talks.pop(name, None)
        if talk is not None:
            self.held_bytes -= talk.held_bytes

    def _hold(self, talk: _Talk, more_bytes: int) -> None:
        talk.held_bytes += more_bytes
        self.held_bytes += more_bytes
