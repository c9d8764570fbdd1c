"""Holds one server: pauses it, puts it to sleep, and keeps the requests that wait for it.

Invariants:
- While paused here, `passed` holds new requests back; those already there freeze in the server.
- A server that refuses to pause leaves the gate open, unless it is held.
- A server that is held, asleep or not, gets no request before `release`, whatever else is asked of it.
- `fail` ends every waiting request with its reason at once, and refuses new ones until `readmit`.
- `interrupt` ends every waiting request, too, but to be sent again.
- `Cuts.cut_short` ends every request with what the server has sampled for it, and lets none through after it.
- What the loss of the server has cost is counted once: requests that broke off since its last reply, and those that
  were still waiting when it was given up.
- A caller that is cancelled takes its request with it; that is never mistaken for a failure.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from swe_rl.engine.engine import EngineError, ServerLoss
from swe_rl.engine.server.client import HttpClient, ServerFailingError, UnreachableError
from swe_rl.engine.server.monitor import ServerMetrics

if TYPE_CHECKING:
    from swe_rl.engine.server.features import Features

T = TypeVar("T")
# Where a server tells nothing of its work, a stall counts for a tenth: a long reply gives no other sign either.
_UNTOLD_SHARE = 0.1
_log = logging.getLogger(__name__)


class Interrupted(Exception):
    """The request was ended here and is to be sent again."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    prompt_tokens: int
    since_s: float


class InFlight:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failure: EngineError | None = None
        self._clock = clock
        self._waiting: dict[asyncio.Task[Any], _Waiting] = {}
        # These are waiting tasks that were cancelled here, and why.
        self._ended: dict[asyncio.Task[Any], EngineError | None] = {}
        self._broken_s: list[float] = []
        # This is the latest loss.
        self.loss = ServerLoss()
        # This is the sign of the server's work when it was last looked at.
        self._sign: object = None
        self._sign_s = clock()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """The number of tokens of the prompts of all that wait."""
        return sum(request.prompt_tokens for request in self._waiting.values())

    def check(self) -> None:
        """Raises EngineError while the server is lost."""
        if self.failure is not None:
            raise EngineError(str(self.failure)) from self.failure

    async def run(self, request: Coroutine[Any, Any, T], prompt_tokens: int) -> T:
        """Runs `request` in the caller's task.

        Raises EngineError when `fail` was called meanwhile, Interrupted, or what `request` raises.
        """
        task = asyncio.current_task()
        assert task is not None, "requests are sent by tasks"
        before = task.cancelling()
        self._waiting[task] = _Waiting(prompt_tokens, self._clock())
        try:
            done = await request
        # Nothing was sent, so nothing was lost.
        except UnreachableError:
            raise
        except ServerFailingError:
            self._broken_s.append(self._clock() - self._waiting[task].since_s)
            raise
        except asyncio.CancelledError:
            reason = self._ended.get(task)
            # The cancellation is the caller's wish, perhaps ours as well.
            if not self._took_back(task) or task.cancelling() > before:
                raise
            self.check()
            if reason is not None:
                raise EngineError(str(reason)) from reason
            raise Interrupted from None
        else:
            self._broken_s.clear()
            return done
        finally:
            self._took_back(task)
            del self._waiting[task]

    def oldest_s(self, now_s: float) -> float:
        """Returns when the oldest of those that wait was sent; now where none waits."""
        return min((request.since_s for request in self._waiting.values()), default=now_s)

    def stalled_s(self, sampled_tokens: int, latest: ServerMetrics | None, paused: bool) -> float:
        """Returns for how many seconds requests wait without a sign of the server's work.

        It is a tenth of that where the server tells nothing of its work, as long replies are no stall. `sampled_tokens`
        is the number in all replies so far.
        """
        now_s = self._clock()
        counts = None
        if latest is not None:
            counts = (latest.sampled_tokens_total, latest.prompt_tokens_total)
        sign = (counts, sampled_tokens)
        if sign != self._sign or paused or self.failure is not None:
            self._sign = sign
            self._sign_s = now_s
        stalled_s = now_s - max(self._sign_s, self.oldest_s(now_s))
        if counts is not None:
            return stalled_s
        return stalled_s * _UNTOLD_SHARE

    def interrupt(self) -> None:
        self._end_all()

    def end(self, error: EngineError) -> None:
        """Fails what waits now, and nothing that comes."""
        self._end_all(error)

    async def ended(self, timeout_s: float) -> bool:
        """Returns whether all that wait now have their replies, after so long at most."""
        tasks = list(self._waiting)
        return not tasks or not (await asyncio.wait(tasks, timeout=timeout_s))[1]

    def fail(self, error: EngineError) -> None:
        if self.failure is None:
            now_s = self._clock()
            spent_s = self._broken_s + [now_s - request.since_s for request in self._waiting.values()]
            self.loss = ServerLoss(len(spent_s), sum(spent_s))
            self._broken_s = []
        self.failure = error
        self._end_all()

    def readmit(self) -> None:
        self.failure = None

    def _took_back(self, task: asyncio.Task[Any]) -> bool:
        """Takes the cancellation from here back, if there was one: the caller's task lives on."""
        if task not in self._ended:
            return False
        del self._ended[task]
        task.uncancel()
        return True

    def _end_all(self, error: EngineError | None = None) -> None:
        """Ends each waiting request once, whatever comes together: one cancellation is taken back."""
        for task in self._waiting:
            if task not in self._ended:
                self._ended[task] = error
                task.cancel()


# vLLM calls what sleeps by these names.
WEIGHTS = "weights"
KV_CACHE = "kv_cache"
_TIMEOUT_S = 120.0
# Waking maps the memory of all weights anew, which takes a minute for the largest models.
_SLEEP_TIMEOUT_S = 300.0
_ABORT_PATHS = ("/abort_requests", "/inference/v1/abort_requests")


class Control:
    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._gate = asyncio.Event()
        self._gate.set()
        self._asleep: set[str] = set()
        self.held = False
        # The last waking took this long.
        self.wake_s = 0.0

    @property
    def paused(self) -> bool:
        return not self._gate.is_set()

    @property
    def asleep(self) -> bool:
        return bool(self._asleep)

    def hold(self) -> None:
        """Holds requests back: none is sent before `release`."""
        self.held = True
        self._gate.clear()

    def release(self) -> None:
        """Ends the hold. The gate stays closed until the server is resumed."""
        self.held = False

    async def sleep(self, features: "Features") -> None:
        """Puts the server to sleep: it holds no weights and no cache then, and has to be held. Raises EngineError."""
        self.hold()
        if not features.sleep:
            raise EngineError(
                f"{self._client.url} cannot sleep: start the server with --enable-sleep-mode, and with "
                "VLLM_SERVER_DEV_MODE=1 in its environment"
            )
        await self._asked("/sleep?level=2", _SLEEP_TIMEOUT_S)
        self._asleep = {WEIGHTS, KV_CACHE}
        self.wake_s = 0.0

    async def wake(self, part: str) -> None:
        """Gives WEIGHTS or KV_CACHE its memory back, with anything in it, unless it is awake. Raises EngineError."""
        if part not in self._asleep:
            return
        began_s = time.monotonic()
        await self._asked(f"/wake_up?tags={part}", _SLEEP_TIMEOUT_S)
        self._asleep.discard(part)
        self.wake_s += time.monotonic() - began_s

    async def passed(self) -> None:
        """Returns when requests may be sent."""
        if self.paused:
            await self._gate.wait()

    def open_gate(self) -> None:
        """Opens the gate whatever the server's state: what waits then finds out."""
        self._gate.set()

    async def pause(self, features: "Features") -> None:
        """Returns once the server has frozen what runs there. Raises EngineError."""
        self._gate.clear()
        try:
            await self._post(features, "/pause?mode=keep")
        except BaseException:
            if not self.held:
                self._gate.set()
            raise

    async def resume(self, features: "Features") -> None:
        """Raises EngineError; requests are sent again in any case, but to a held server."""
        if self.held:
            return
        try:
            await self._post(features, "/resume")
        finally:
            self._gate.set()

    def close_gate(self) -> None:
        """Closes the gate: no request is sent until the server is resumed."""
        self._gate.clear()

    async def abort(self, server_ids: Sequence[str]) -> None:
        """Raises EngineError when the server does not offer it."""
        for path in _ABORT_PATHS:
            answer = await self._client.post(path, {"request_ids": list(server_ids)}, timeout_s=_TIMEOUT_S)
            if answer.ok:
                return
        raise EngineError(f"{self._client.url} cannot abort a request: {answer.status} {answer.reason()}")

    async def _post(self, features: "Features", path: str) -> None:
        if not features.pause:
            raise EngineError(
                f"{self._client.url} cannot be paused: start the server with VLLM_SERVER_DEV_MODE=1 in its environment"
            )
        await self._asked(path, _TIMEOUT_S)

    async def _asked(self, path: str, timeout_s: float) -> None:
        answer = await self._client.post(path, timeout_s=timeout_s)
        if not answer.ok:
            raise EngineError(f"{self._client.url}{path} answered {answer.status}: {answer.reason()}")


# A request that was sent just now may not be known to the server yet, so the abort is repeated for five seconds.
_CUT_TRIES = 20
_CUT_S = 0.25


class Cuts:
    """The requests of one server that new weights cut short."""

    def __init__(self, control: Control, in_flight: InFlight) -> None:
        self._control = control
        self._in_flight = in_flight
        self._server_ids: dict[str, str] = {}
        self._cut: set[str] = set()

    @contextmanager
    def sent(self, request_id: str, server_id: str) -> Iterator[None]:
        """Marks the request as in flight inside the block. The server knows it by `server_id`."""
        self._server_ids[request_id] = server_id
        self._cut.discard(request_id)
        try:
            yield
        finally:
            self._server_ids.pop(request_id, None)

    def server_id(self, request_id: str) -> str | None:
        return self._server_ids.get(request_id)

    def take(self, request_id: str) -> bool:
        """Tells whether its last reply was cut short here. It may be asked once."""
        was_cut = request_id in self._cut
        self._cut.discard(request_id)
        return was_cut

    async def cut_short(self) -> None:
        """Has what is in flight answered with what it has sampled; what comes waits until the server is resumed.

        A request that is not answered soon stays in flight.
        """
        self._control.close_gate()
        try:
            for _ in range(_CUT_TRIES):
                self._cut |= self._server_ids.keys()
                if self._server_ids:
                    await self._control.abort(list(self._server_ids.values()))
                # Otherwise it had not come to the server yet.
                if await self._in_flight.ended(_CUT_S):
                    return
        except EngineError as error:
            _log.warning("what is in flight begins anew with the next weights: %s", error)
        except BaseException:
            self._control.open_gate()
            raise
