"""The sessions that are open, and what each has used so far.

Invariants:
- An opened session lives until it is closed, and is found with its secret only: its id can be guessed. Without it the
  answer is that of an id that nobody knows.
- A session that a client began by using it (implicit), where clients may, has no secret. It is let go of when its
  client closes it, when it was idle for long, or when too many are idle. A session with a call in flight is kept.
- A closed session's id is refused from then on (the last `_REMEMBERED_CLOSED` of them): an agent that outlives its
  trajectory cannot go on sampling.
- What overlaps counts once, so the sum is never more than the time that passed.
- A wait that is under way counts already.
"""

import asyncio
import hmac
import secrets
import time
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.protocol import Completion
from swe_rl.gateway.conversation import KnownBodies
from swe_rl.gateway.dialects.history import Histories
from swe_rl.gateway.errors import CALL_LIMIT, CONTEXT_OVERFLOW, ApiError, GatewayError, no_session, unavailable
from swe_rl.gateway.session import Beginning, Recorded, Session, SessionSettings
from swe_rl.gateway.trace import Break
from swe_rl.model.chat import ChatRenderer

BACK_OFF_S = 60.0  # the longest that a client is thought to wait before it asks again


class Waits:
    """Of one session. Times are of `clock`, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spans: list[tuple[float, float]] = []  # apart from each other, in order
        self._spans_s = 0.0  # their sum
        self._open: dict[int, float] = {}
        self._number = 0
        self._refused_s: float | None = None

    def begin(self) -> Callable[[], None]:
        """A call waits from now on; the result ends that, and may be called again."""
        self._number += 1
        number = self._number
        self._open[number] = self._clock()

        def end() -> None:
            began_s = self._open.pop(number, None)
            if began_s is not None:
                self.add(began_s, self._clock())

        return end

    def refused(self) -> None:
        """A call was answered that it should come again; its client waits before it does."""
        if self._refused_s is None:
            self._refused_s = self._clock()

    def asked(self) -> None:
        """A call came: nobody backs off any more."""
        refused_s, self._refused_s = self._refused_s, None
        if refused_s is not None:
            self.add(refused_s, min(self._clock(), refused_s + BACK_OFF_S))

    def add(self, began_s: float, ended_s: float) -> None:
        if ended_s > began_s:
            self._spans_s += _unite(self._spans, began_s, ended_s)

    def total_s(self) -> float:
        """Seconds so far."""
        now_s, under_way = self._clock(), []
        if self._open:
            under_way.append((min(self._open.values()), now_s))
        if self._refused_s is not None:
            under_way.append((self._refused_s, min(now_s, self._refused_s + BACK_OFF_S)))
        if not under_way:
            return self._spans_s
        latest = self._spans[bisect_left(self._spans, min(under_way)[0], key=_end) :]
        return self._spans_s + sum(_unite(latest, *span) for span in under_way)


def _unite(spans: list[tuple[float, float]], began_s: float, ended_s: float) -> float:
    """Puts a span in; by how many seconds that makes them more. Only spans that it touches are looked at."""
    first = bisect_left(spans, began_s, key=_end)
    last = bisect_right(spans, ended_s, lo=first, key=_begin)
    touched = spans[first:last]
    if touched:
        began_s, ended_s = min(began_s, touched[0][0]), max(ended_s, touched[-1][1])
    spans[first:last] = [(began_s, ended_s)]
    return ended_s - began_s - sum(end_s - begin_s for begin_s, end_s in touched)


def _begin(span: tuple[float, float]) -> float:
    return span[0]


def _end(span: tuple[float, float]) -> float:
    return span[1]


_REMEMBERED_CLOSED = 65536
_MAX_ID_CHARS = 512
_MAX_CALLS = 32  # in flight, of an opened session: what a program sends from a sandbox leaves places for the others
_SECRET_BYTES = 32


def new_secret() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


def body_name(session_id: str, secret: str) -> str:
    """Of a session for `KnownBodies`. Who does not know its secret learns nothing of what was sent, by no time."""
    return f"{session_id}/{secret}" if secret else session_id


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """`times_s` sums over the session's calls: queue (held by the router or waiting in the engine), prefill, decode.

    `overflowed`: the last call was refused, as its prompt left no room to answer. `superseded_replies` are in no row.
    `had_all_calls`: the last call was refused, as it was one more than the session may have.
    `failed`: why the engines or the gateway could not answer the last call.
    `lost`: why the session ended before it was closed, with the process that it was in; then the counts are 0.
    """

    num_calls: int
    sampled_tokens: int
    breaks: dict[Break, int]
    times_s: dict[str, float]
    overflowed: bool = False
    superseded_replies: int = 0
    superseded_tokens: int = 0
    lost: str = ""
    had_all_calls: bool = False
    failed: str = ""


@dataclass(eq=False, slots=True)
class LiveSession:
    session_id: str
    state: Session
    settings: SessionSettings | None  # None: the client's own parameters
    secret: str = field(default="", repr=False)  # of an opened one; only its address has it
    used_s: float = 0.0  # when its last call began or ended, on the clock of its LiveSessions
    calls: "set[asyncio.Task[Any]]" = field(default_factory=set)
    num_calls: int = 0
    sampled_tokens: int = 0
    overflowed: bool = False
    had_all_calls: bool = False
    failed: str = ""
    waits: Waits = field(default_factory=Waits)
    breaks: Counter[Break] = field(default_factory=Counter)
    times_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("queue", "prefill", "decode"), 0.0))

    def count(self, recorded: Recorded, completion: Completion, held_s: float) -> None:
        self.num_calls += 1
        self.overflowed, self.had_all_calls, self.failed = False, False, ""
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

    def refuse(self, error: ApiError) -> None:
        """What its last call came to, so far."""
        self.overflowed = error.code == CONTEXT_OVERFLOW
        self.had_all_calls = error.code == CALL_LIMIT
        self.failed = error.message if error.status >= 500 else ""
        if self.failed:
            self.waits.refused()  # not the client's fault: it backs off and comes again

    def summary(self) -> SessionSummary:
        breaks, times_s = dict(self.breaks), dict(self.times_s)
        return SessionSummary(
            self.num_calls,
            self.sampled_tokens,
            breaks,
            times_s,
            self.overflowed,
            *self.state.superseded,
            had_all_calls=self.had_all_calls,
            failed=self.failed,
        )

    async def cancel_calls(self) -> None:
        calls = list(self.calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


class Released(Protocol):
    def release(self, program_id: str) -> None:
        """A session is gone."""


class Numbers(Protocol):
    def next_numbers(self, session_id: str) -> tuple[int, int]:
        """(turn, chain) that a session goes on with."""

    async def flush(self) -> None:
        """Returns once all traces so far are committed."""


class LiveSessions:
    """A session goes on where its traces in `store` end; `placement` hears of each that is gone. `clients_begin`:
    whether there are implicit ones."""

    def __init__(
        self,
        placement: Released,
        renderer: ChatRenderer,
        store: Numbers,
        config: GatewayConfig,
        *,
        clients_begin: bool = False,
        waits: Callable[[str], Waits] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_calls = 0  # in flight, of all sessions
        self.bodies = KnownBodies()
        self.histories = Histories()
        self._placement = placement
        self._renderer = renderer
        self._store = store
        self._config = config
        self._clients_begin = clients_begin
        self._clock = clock
        self._waits = waits or (lambda session_id: Waits(clock))
        self._opened: dict[str, LiveSession] = {}
        self._implicit: OrderedDict[str, LiveSession] = OrderedDict()  # used least lately first
        self._closed: OrderedDict[str, str] = OrderedDict()  # their secrets

    def open(self, session_id: str, settings: SessionSettings, *, secret: str | None = None) -> None:
        """Raises GatewayError for an id that is open."""
        if session_id in self:
            raise GatewayError(f"session {session_id} is already open; close it first, or take another id")
        self._closed.pop(session_id, None)
        state, secret = self._new_state(session_id), secret or new_secret()
        self._opened[session_id] = LiveSession(session_id, state, settings, secret, waits=self._waits(session_id))

    async def replay(self, session_id: str, beginning: Beginning) -> int:
        """As `Session.replay`, of an opened session, in a thread: nobody else has it yet."""
        return await asyncio.to_thread(self._opened[session_id].state.replay, beginning)

    def secret(self, session_id: str) -> str:
        """Of an opened session; empty for any other."""
        return self._opened[session_id].secret if session_id in self._opened else ""

    def known(self, session_id: str, secret: str) -> LiveSession | None:
        """The session at an address; None for one that a client may begin. Raises ApiError."""
        live = self._opened.get(session_id) or self._implicit.get(session_id)
        # Compared for every id, also one that nobody knows: who guesses learns nothing from the answer or its time.
        expected = live.secret if live is not None else self._closed.get(session_id, "")
        if not hmac.compare_digest(secret.encode(errors="surrogatepass"), expected.encode()):
            raise no_session(session_id)
        if live is None and session_id in self._closed:
            raise ApiError(410, f"Session {session_id!r} is closed.", code="session_closed")
        if live is None and not self._clients_begin:
            raise no_session(session_id)
        return live

    def find(self, session_id: str, secret: str = "") -> LiveSession:
        """For one more call; a session nobody knows begins here, where clients may begin them. Raises ApiError."""
        live = self.known(session_id, secret)
        if live is not None:
            if live.secret and len(live.calls) >= _MAX_CALLS:
                message = f"Session {session_id!r} has {_MAX_CALLS} calls in flight, as many as it may."
                raise unavailable(message, "session_busy")
            return live
        if len(session_id) > _MAX_ID_CHARS or not session_id.isprintable():
            raise ApiError(400, f"A session id has at most {_MAX_ID_CHARS} printable characters.", code="session_id")
        self.let_go(room=1)
        self._implicit[session_id] = live = LiveSession(
            session_id, self._new_state(session_id), None, used_s=self._clock()
        )
        return live

    def began(self, live: LiveSession, call: "asyncio.Task[Any]") -> None:
        live.waits.asked()
        live.calls.add(call)
        self.num_calls += 1
        self._used(live)

    def ended(self, live: LiveSession, call: "asyncio.Task[Any]") -> None:
        live.calls.discard(call)
        self.num_calls -= 1
        self._used(live)

    def check_room(self, session_id: str | None) -> None:
        """Raises ApiError while no call is taken; one of an opened session then waits before it comes again."""
        if self.num_calls < self._config.max_calls:
            return
        error = unavailable("The gateway takes no calls at the moment: overloaded.", "overloaded")
        if session_id in self._opened:
            self._opened[session_id].refuse(error)
        raise error

    def waited_s(self, session_id: str) -> float:
        """Of an opened session: for how long its calls waited, so far."""
        return self._opened[session_id].waits.total_s() if session_id in self._opened else 0.0

    def is_opened(self, session_id: str) -> bool:
        """By whoever runs the gateway, not by a client's first call."""
        return session_id in self._opened

    async def close(self, session_id: str) -> SessionSummary:
        """Ends its calls in flight; its traces are committed when this returns. Raises GatewayError for an id that is
        not open, TraceStoreError."""
        live = self._opened.pop(session_id, None) or self._implicit.pop(session_id, None)
        if live is None:
            raise GatewayError(f"session {session_id} is not open")
        self._closed[session_id] = live.secret
        self.bodies.forget(body_name(session_id, live.secret))
        self.histories.forget(body_name(session_id, live.secret))
        if len(self._closed) > _REMEMBERED_CLOSED:
            self._closed.popitem(last=False)
        try:
            await live.cancel_calls()
        finally:
            self._placement.release(session_id)
        await self._store.flush()
        return live.summary()

    def forget(self, session_id: str) -> None:
        """An implicit session that will not come back."""
        if self._implicit.pop(session_id, None) is not None:
            self.bodies.forget(session_id)
            self.histories.forget(session_id)
            self._placement.release(session_id)

    def all(self) -> list[LiveSession]:
        return [*self._opened.values(), *self._implicit.values()]

    def __len__(self) -> int:
        return len(self._opened) + len(self._implicit)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._opened or session_id in self._implicit

    def let_go(self, room: int = 0) -> None:
        """Of implicit sessions that nobody uses any more, so that `room` more may come; asked now and then, also when
        no call comes."""
        before_s = self._clock() - self._config.session_idle_s
        surplus = len(self._implicit) + room - self._config.max_idle_sessions
        gone = []
        for name, live in self._implicit.items():
            if surplus <= 0 and live.used_s >= before_s:
                break
            if not live.calls:
                gone.append(name)
                surplus -= 1
        for name in gone:
            self.forget(name)

    def unused(self) -> Session:
        """Of no conversation yet: to look at one that has no session."""
        return Session(self._renderer)

    def _new_state(self, session_id: str) -> Session:
        turn, chain = self._store.next_numbers(session_id)
        return Session(self._renderer, first_turn=turn, first_chain=chain)

    def _used(self, live: LiveSession) -> None:
        live.used_s = self._clock()
        if live.session_id in self._implicit:
            self._implicit.move_to_end(live.session_id)
