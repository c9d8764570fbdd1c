"""The sessions that are open, and what each has used so far.

Invariants:
- An opened session lives until it is closed; one that a client began by using it is let go of when too many are idle.
- A closed session's id is refused from then on: an agent that outlives its trajectory cannot go on sampling.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from swe_rl.engine.protocol import Completion
from swe_rl.gateway.errors import ApiError, GatewayError
from swe_rl.gateway.reply import Answer
from swe_rl.gateway.session import Recorded, Session, SessionSettings
from swe_rl.gateway.trace import Break

_IDLE_SESSIONS = 1024
_MAX_ID_CHARS = 512


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """`times_s` sums over the session's calls: queue (held by the router or waiting in the engine), prefill, decode."""

    num_calls: int
    sampled_tokens: int
    breaks: dict[Break, int]
    times_s: dict[str, float]


@dataclass(eq=False, slots=True)
class LiveSession:
    session_id: str
    state: Session
    settings: SessionSettings | None  # None: the client's own parameters
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: "set[asyncio.Task[Answer]]" = field(default_factory=set)
    num_calls: int = 0
    sampled_tokens: int = 0
    breaks: Counter[Break] = field(default_factory=Counter)
    times_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("queue", "prefill", "decode"), 0.0))

    def count(self, recorded: Recorded, completion: Completion, held_s: float) -> None:
        self.num_calls += 1
        self.sampled_tokens += len(completion.token_ids)
        if recorded.break_kind is not None:
            self.breaks[recorded.break_kind] += 1
        spent_s = {
            "queue": held_s + completion.queue_s,
            "prefill": completion.prefill_s,
            "decode": completion.decode_s,
        }
        for name, value in spent_s.items():
            self.times_s[name] += value

    def summary(self) -> SessionSummary:
        return SessionSummary(self.num_calls, self.sampled_tokens, dict(self.breaks), dict(self.times_s))

    async def cancel_calls(self) -> None:
        calls = list(self.calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


class LiveSessions:
    """`new_state` makes a session's state; `released` is told of each that is gone."""

    def __init__(self, new_state: Callable[[str], Session], released: Callable[[str], None]) -> None:
        self._new_state = new_state
        self._released = released
        self._opened: dict[str, LiveSession] = {}
        self._implicit: OrderedDict[str, LiveSession] = OrderedDict()
        self._closed: set[str] = set()

    def open(self, session_id: str, settings: SessionSettings) -> None:
        """Raises GatewayError for an id that is open."""
        if session_id in self._opened or session_id in self._implicit:
            raise GatewayError(f"session {session_id} is already open; close it first, or take another id")
        self._closed.discard(session_id)
        self._opened[session_id] = LiveSession(session_id, self._new_state(session_id), settings)

    def find(self, session_id: str) -> LiveSession:
        """Of a request; a session nobody knows begins here. Raises ApiError."""
        if session_id in self._opened:
            return self._opened[session_id]
        if session_id in self._closed:
            raise ApiError(410, f"Session {session_id!r} is closed.", code="session_closed")
        if session_id in self._implicit:
            self._implicit.move_to_end(session_id)
            return self._implicit[session_id]
        if len(session_id) > _MAX_ID_CHARS or not session_id.isprintable():
            raise ApiError(400, f"A session id has at most {_MAX_ID_CHARS} printable characters.", code="session_id")
        self._implicit[session_id] = live = LiveSession(session_id, self._new_state(session_id), None)
        self._let_go()
        return live

    async def close(self, session_id: str) -> SessionSummary:
        """Ends its calls in flight. Raises GatewayError for an id that is not open."""
        live = self._opened.pop(session_id, None) or self._implicit.pop(session_id, None)
        if live is None:
            raise GatewayError(f"session {session_id} is not open")
        self._closed.add(session_id)
        try:
            await live.cancel_calls()
        finally:
            self._released(session_id)
        return live.summary()

    def forget(self, session_id: str) -> None:
        """An implicit session that will not come back."""
        if self._implicit.pop(session_id, None) is not None:
            self._released(session_id)

    def all(self) -> list[LiveSession]:
        return [*self._opened.values(), *self._implicit.values()]

    def __len__(self) -> int:
        return len(self._opened) + len(self._implicit)

    def _let_go(self) -> None:
        idle = [name for name, live in self._implicit.items() if not live.calls]
        for name in idle[: max(0, len(self._implicit) - _IDLE_SESSIONS)]:
            self.forget(name)
