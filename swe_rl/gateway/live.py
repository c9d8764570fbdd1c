"""This module has the sessions that are open, and counts what each has used so far.

Invariants:
- An opened session lives until it is closed, and is found with its secret only, as its id can be guessed. Without the
  secret the answer is that of an id that nobody knows.
- A session that a client began by using it (implicit), where clients may, has no secret. It ends when its client closes
  it, when it was idle for long, or when too many are idle. A session with a call in flight is kept.
- The ids of the last `_REMEMBERED_CLOSED` closed sessions are refused: no agent that outlives its trajectory samples.
"""

import asyncio
import hmac
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.engine import Completion
from swe_rl.gateway.chains.recall import Recall
from swe_rl.gateway.conversation import KnownBodies
from swe_rl.gateway.dialects.history import Histories
from swe_rl.gateway.errors import (
    CALL_LIMIT,
    CONTEXT_OVERFLOW,
    MODEL_NOT_FOUND,
    TOO_LARGE,
    ApiError,
    GatewayError,
    no_session,
    unavailable_error,
)
from swe_rl.gateway.forwarding.counted import CountedCalls
from swe_rl.gateway.session import Session, SessionSettings
from swe_rl.gateway.trace import Break, Recorded
from swe_rl.gateway.waits import Waits
from swe_rl.model.chat import ChatRenderer

_REMEMBERED_CLOSED = 65536
_MAX_ID_CHARS = 512
# An opened session may have so many calls in flight. A program in a sandbox could otherwise take the places of all
# others.
_MAX_CALLS = 32
_SECRET_BYTES = 32


def new_secret() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


def body_name(session_id: str, secret: str) -> str:
    """Names a session for `KnownBodies`. Whoever does not know its secret learns nothing of what was sent, not even by
    the time that an answer takes."""
    if secret:
        return f"{session_id}/{secret}"
    return session_id


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """Says what a session used, and how its last call ended.

    `times_s` sums over the session's calls: queue (held by the router or waiting in the engine), prefill, decode.
    `superseded_replies` are in no row. `cut_replies` counts the replies that a limit of their length cut, and
    `cut_last` tells whether the last reply is one of them. `notes` counts the calls in which something was mended, by
    its kind. The replies of the first `recalled_turns` calls were recorded before; `times_s` has their time, too.

    These tell how the last call ended: `overflowed`, if it was refused because its prompt left no room to answer;
    `had_all_calls`, if it was one more than the session may have; `failed`, why the engines or the gateway could not
    answer it; `refused`, why the gateway refused its form, if an answer could have changed the end.

    `lost` says why the session ended before it was closed, with the process that it was in. Then the counts are 0.
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
    refused: str = ""
    notes: dict[str, int] = field(default_factory=dict)
    cut_replies: int = 0
    cut_last: bool = False
    recalled_turns: int = 0


@dataclass(eq=False, slots=True)
class LiveSession:
    session_id: str
    state: Session
    settings: SessionSettings | None  # None means that the client's own parameters hold.
    # Only the address of an opened session has it.
    secret: str = field(default="", repr=False)
    # The session's last call began or ended at this time, on the clock of its LiveSessions.
    used_s: float = 0.0
    calls: "set[asyncio.Task[Any]]" = field(default_factory=set)
    num_calls: int = 0
    sampled_tokens: int = 0
    total_tokens: int = 0  # of all segments: their prompts, and all that came after but superseded replies
    reserved_tokens: int = 0  # Calls in flight may still add so many tokens to the total.
    given_back: asyncio.Event = field(default_factory=asyncio.Event)  # Set, and replaced, when they become fewer.
    overflowed: bool = False
    had_all_calls: bool = False
    failed: str = ""
    refused: str = ""
    # The last reply used none of the tools that were offered, so its program is about to end.
    done: bool = False
    notes: Counter[str] = field(default_factory=Counter)
    cut_replies: int = 0
    cut_last: bool = False
    recall: Recall | None = None  # An earlier process recorded turns of it.
    waits: Waits = field(default_factory=Waits)
    breaks: Counter[Break] = field(default_factory=Counter)
    times_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("queue", "prefill", "decode"), 0.0))
    counted: CountedCalls = field(default_factory=CountedCalls)

    def count(self, recorded: Recorded, completion: Completion, held_s: float) -> None:
        if recorded.break_kind is not None:
            self.breaks[recorded.break_kind] += 1
        spent_s = {
            "queue": held_s + completion.queue_s,
            "prefill": completion.prefill_s,
            "decode": completion.decode_s,
        }
        was_cut = completion.finish_reason == "length"
        self.count_reply(len(completion.token_ids), was_cut=was_cut, spent_s=spent_s)

    def count_reply(self, sampled_tokens: int, *, was_cut: bool, spent_s: Mapping[str, float]) -> None:
        """Counts an answered call, which is the last one now."""
        self.num_calls += 1
        self.overflowed = False
        self.had_all_calls = False
        self.failed = ""
        self.refused = ""
        self.sampled_tokens += sampled_tokens
        self.cut_last = was_cut
        self.cut_replies += was_cut
        for name, value in spent_s.items():
            self.times_s[name] += value

    def noted(self, notes: frozenset[str], *, done: bool) -> None:
        """Notes of an answered call what was mended in it, and whether its reply looks like the last one."""
        self.notes.update(notes)
        self.done = done

    def refuse(self, error: ApiError) -> None:
        """Notes that the last call, so far, was refused."""
        if error.status < 500 and error.code not in (CONTEXT_OVERFLOW, CALL_LIMIT):
            self._refuse_form(error)
            return
        self.refused = ""
        self.overflowed = error.code == CONTEXT_OVERFLOW
        self.had_all_calls = error.code == CALL_LIMIT
        self.failed = error.message if error.status >= 500 else ""
        if self.failed:
            # The client is not at fault: it backs off and comes again.
            self.waits.refused()

    def _refuse_form(self, error: ApiError) -> None:
        """Notes that a call was refused for its form. Anybody in the sandbox can send such a call. So it never takes
        the place of an end that the session has already, and means nothing once the program has its last reply. A body
        that is too large counts as a full context."""
        if self.overflowed or self.had_all_calls or self.failed or self.done:
            return
        if error.code == TOO_LARGE:
            self.overflowed = True
        elif error.code != MODEL_NOT_FOUND or not self.num_calls:
            # Programs ask for small models beside their own, and go on without them.
            self.refused = error.message

    def summary(self) -> SessionSummary:
        return SessionSummary(
            self.num_calls,
            self.sampled_tokens,
            dict(self.breaks),
            dict(self.times_s),
            self.overflowed,
            *self.state.superseded,
            had_all_calls=self.had_all_calls,
            failed=self.failed,
            refused=self.refused,
            notes=dict(self.notes),
            cut_replies=self.cut_replies,
            cut_last=self.cut_last,
            recalled_turns=self.recall.recalled_turns if self.recall is not None else 0,
        )

    async def cancel_calls(self) -> None:
        calls = list(self.calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


class Released(Protocol):
    def release(self, program_id: str) -> None:
        """Notes that a session is gone."""


class Numbers(Protocol):
    def next_numbers(self, session_id: str) -> tuple[int, int]:
        """Returns the turn and the chain that a session goes on with."""

    async def flush(self) -> None:
        """Returns once all traces so far are committed."""


class LiveSessions:
    """Finds, opens and closes sessions. A session goes on where its traces in `store` end; `placement` hears of each
    session that is gone. `clients_begin` allows implicit sessions."""

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
        self.num_calls = 0  # Counts the calls in flight of all sessions.
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
        # The session that was used least lately comes first, as it is let go of first.
        self._implicit: OrderedDict[str, LiveSession] = OrderedDict()
        # Has the secrets of closed sessions.
        self._closed: OrderedDict[str, str] = OrderedDict()

    def open(self, session_id: str, settings: SessionSettings, *, secret: str | None = None) -> None:
        """Opens a session for a trajectory. Raises GatewayError for an id that is open."""
        if session_id in self:
            raise GatewayError(f"session {session_id} is already open; close it first, or take another id")
        self._closed.pop(session_id, None)
        waits = self._waits(session_id)
        known = secret or new_secret()
        self._opened[session_id] = LiveSession(session_id, self._new_state(session_id), settings, known, waits=waits)

    def recall_first(self, session_id: str, recall: Recall) -> None:
        """Lets an opened session give recorded replies before it samples any."""
        self._opened[session_id].recall = recall

    def secret(self, session_id: str) -> str:
        """Returns the secret of an opened session, or an empty text for any other."""
        if session_id in self._opened:
            return self._opened[session_id].secret
        return ""

    def known(self, session_id: str, secret: str) -> LiveSession | None:
        """Returns the session at an address, or None for one that a client may begin. Raises ApiError."""
        live = self._opened.get(session_id) or self._implicit.get(session_id)
        # Compared for every id, also one that nobody knows: who guesses learns nothing from the answer or its time.
        if live is not None:
            expected = live.secret
        else:
            expected = self._closed.get(session_id, "")
        if not hmac.compare_digest(secret.encode(errors="surrogatepass"), expected.encode()):
            raise no_session(session_id)
        if live is None and session_id in self._closed:
            raise ApiError(410, f"Session {session_id!r} is closed.", code="session_closed")
        if live is None and not self._clients_begin:
            raise no_session(session_id)
        return live

    def find(self, session_id: str, secret: str = "") -> LiveSession:
        """Returns the session for one more call. An unknown session begins here, if clients may begin sessions. Raises
        ApiError."""
        live = self.known(session_id, secret)
        if live is not None:
            if live.secret and len(live.calls) >= _MAX_CALLS:
                message = f"Session {session_id!r} has {_MAX_CALLS} calls in flight, as many as it may."
                raise unavailable_error(message, "session_busy")
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
        """Raises ApiError while the gateway takes no more calls. The client of an opened session then counts as
        waiting."""
        if self.num_calls < self._config.max_calls:
            return
        error = unavailable_error("The gateway takes no calls at the moment: overloaded.", "overloaded")
        if session_id in self._opened:
            self._opened[session_id].refuse(error)
        raise error

    def waited_s(self, session_id: str) -> float:
        """Returns how many seconds the calls of an opened session waited so far."""
        if session_id in self._opened:
            return self._opened[session_id].waits.total_s()
        return 0.0

    def refuse(self, session_id: str, secret: str, error: ApiError) -> None:
        """Notes that a call at an opened session's address was refused, maybe before it was known to belong to the
        session."""
        live = self._opened.get(session_id)
        if (
            error.status < 500
            and live is not None
            and hmac.compare_digest(secret.encode(errors="surrogatepass"), live.secret.encode())
        ):
            live.refuse(error)

    def is_opened(self, session_id: str) -> bool:
        """Tells whether whoever runs the gateway opened the session, rather than a client's first call."""
        return session_id in self._opened

    async def close(self, session_id: str) -> SessionSummary:
        """Ends the session's calls in flight and returns once its traces are committed. Raises GatewayError for an id
        that is not open, TraceStoreError."""
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
        """Removes an implicit session that will not come back."""
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
        """Removes implicit sessions that nobody uses any more, so that `room` more may come. It is also called now and
        then while no call comes."""
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
        """Makes a session without a conversation, to look at a request that has no session."""
        return Session(self._renderer)

    def _new_state(self, session_id: str) -> Session:
        turn, chain = self._store.next_numbers(session_id)
        return Session(self._renderer, first_turn=turn, first_chain=chain)

    def _used(self, live: LiveSession) -> None:
        live.used_s = self._clock()
        if live.session_id in self._implicit:
            self._implicit.move_to_end(live.session_id)
