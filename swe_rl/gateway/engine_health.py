"""This module finds the engines that fail the requests that they take, although their servers say that they are well.

An engine is blamed for a failed request on evidence alone: either it fails a tiny request of our own, too (a probe), or
another engine answers the request. So a request that nobody can answer takes no engine down. A blamed engine gets no
new requests, and its programs go to the others, until a probe succeeds. The first probe comes a second later, the next
ones more and more rarely.

Invariants:
- Routers know nothing of this: to them a blamed engine is drained, and added again later.
- While another engine is open, no blamed engine is. While none is, all blamed engines are open, and requests fail there
  with their reasons.
- An engine has one probe at a time. An engine that is lost or gone is not probed: its server's owner brings it back.
- A server that lets requests hang is blamed if nothing came from it for `engine.stalled_s` and it does not answer a
  probe either. What waits there then begins anew elsewhere.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from swe_rl.engine.engine import Completion, Engine, EngineError, EngineState, LossTeller, SamplingParams, ServerLoss
from swe_rl.router.core import EngineAdded, EngineDrained, EngineLost, Event

# The first probe comes so long after the blame. Each later wait is twice as long.
FIRST_PROBE_S = 1.0
# A server that is well again waits at most so long for its next request.
_LONGEST_WAIT_S = 10.0
# A probe may go unanswered for so long: a busy engine first finishes what it has begun.
_PROBE_S = 20.0
# A server that has requests shows a sign within so many seconds, or it is probed.
_STALL_S = 30.0
_LOOK_S = 2.0
# A probe is the begin of the first prompt that was answered: ids that the model is known to have.
_PROBE_TOKENS = 4
# This is the prompt of a probe before any other was answered. Each model has the id 0.
_ANY_PROMPT = (0,)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Blame:
    """Holds the reason why an engine gets no requests. `since_s` and `probe_s` (when the next probe comes) are on the
    clock of its EngineHealth."""

    reason: str
    since_s: float
    probe_s: float
    probes: int = 0
    drained: bool = False
    probing: "asyncio.Task[None] | None" = field(default=None, repr=False)


class EngineHealth:
    """Blames and probes engines. `feed` gives the router an event; `tellers` hear when an engine is blamed, and when it
    serves again."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        feed: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Counts by engine the requests that it did not answer.
        self.failures: Counter[str] = Counter()
        self.tellers: Mapping[str, LossTeller] = {}
        self._engines = engines
        self._feed = feed
        self._clock = clock
        self._blames: dict[str, Blame] = {}
        self._examinations: dict[str, asyncio.Task[str]] = {}
        self._numbers = count()
        # Probes ask this: ids that an engine is known to have.
        self._prompt: Sequence[int] = ()
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._watch_for_stalls())

    async def close(self) -> None:
        tasks: list[asyncio.Task[None] | asyncio.Task[str] | None] = [self._watch, *self._examinations.values()]
        tasks += [blame.probing for blame in self._blames.values()]
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)

    def is_open(self, name: str) -> bool:
        """Tells whether the engine serves and is not blamed."""
        return self._engines[name].state is EngineState.up and name not in self._blames

    def any_open(self) -> bool:
        return any(self.is_open(name) for name in self._engines)

    def is_blamed(self, name: str) -> bool:
        return name in self._blames

    def other_open(self, name: str) -> Engine | None:
        """Returns the open engine with the fewest requests among the others, or None."""
        others = [engine for engine in self._engines.values() if engine.name != name and self.is_open(engine.name)]
        return min(others, key=lambda engine: engine.stats().running, default=None)

    async def fails_probe(self, name: str) -> str:
        """Returns why the engine does not answer a tiny request either, or an empty text if it does. Callers that ask
        at the same time share one probe."""
        if name not in self._examinations:
            task = asyncio.get_running_loop().create_task(self._probe(name))
            self._examinations[name] = task
            task.add_done_callback(lambda _: self._examinations.pop(name, None))
        return await asyncio.shield(self._examinations[name])

    def blame(self, name: str, reason: str, wait_s: float = 0.0) -> None:
        """Takes the engine out of use until it answers a probe. The first probe comes after `wait_s` seconds at the
        earliest, which a server may have asked for."""
        now_s = self._clock()
        blame = self._blames.get(name)
        if self._engines[name].state is not EngineState.up:
            return
        if blame is not None:
            blame.probe_s = max(blame.probe_s, now_s + wait_s)
            return
        self._blames[name] = blame = Blame(reason, now_s, now_s + max(FIRST_PROBE_S, wait_s))
        _log.warning("engine %s fails requests and gets no more until it answers a probe: %s", name, reason)
        if name in self.tellers:
            self.tellers[name].lost(reason, ServerLoss(), "its programs go to the others until it answers a probe")
        blame.probing = asyncio.get_running_loop().create_task(self._probe_until_well(name, blame))
        self._arrange()

    def answered(self, name: str, prompt_ids: Sequence[int]) -> None:
        """Notes that the engine answered a request as it should, which ends its blame."""
        if not self._prompt:
            self._prompt = tuple(prompt_ids[:_PROBE_TOKENS])
        if name in self._blames:
            self._clear(name)

    def changed(self, name: str, up: bool) -> None:
        """Notes that the engine's server was lost, or is back (`up`). A blame of before does not count any more."""
        self._forget(name)
        self._feed(EngineAdded(name, self._capacity(name)) if up else EngineLost(name))
        self._arrange()

    def snapshot(self) -> list[dict[str, object]]:
        return [self._row(engine) for engine in self._engines.values()]

    def _row(self, engine: Engine) -> dict[str, object]:
        blame = self._blames.get(engine.name)
        now_s = self._clock()
        row: dict[str, object] = {"engine": engine.name, "failed_requests": self.failures[engine.name]}
        if blame is None:
            lost = engine.why_lost
            return row | {"state": engine.state.name, "reason": "" if lost is None else str(lost)}
        times = {"for_s": round(now_s - blame.since_s, 1), "next_probe_s": round(max(0.0, blame.probe_s - now_s), 1)}
        return row | {"state": "failing", "reason": blame.reason, **times, "probes": blame.probes}

    def _arrange(self) -> None:
        """Drains blamed engines while another one is open, and opens them while none is."""
        open_there = self.any_open()
        for name, blame in self._blames.items():
            if open_there and not blame.drained:
                blame.drained = True
                self._feed(EngineDrained(name))
            elif blame.drained and not open_there:
                blame.drained = False
                self._feed(EngineAdded(name, self._capacity(name)))

    def _clear(self, name: str) -> None:
        drained = self._blames[name].drained
        self._forget(name)
        _log.warning("engine %s answers again", name)
        if name in self.tellers:
            self.tellers[name].back()
        if drained:
            self._feed(EngineAdded(name, self._capacity(name)))
        self._arrange()

    def _forget(self, name: str) -> None:
        blame = self._blames.pop(name, None)
        if blame is not None and blame.probing is not None and blame.probing is not asyncio.current_task():
            blame.probing.cancel()

    def _capacity(self, name: str) -> int:
        return self._engines[name].stats().kv_capacity_tokens

    async def _probe_until_well(self, name: str, blame: Blame) -> None:
        wait_s = FIRST_PROBE_S
        while True:
            await asyncio.sleep(max(0.0, blame.probe_s - self._clock()))
            # The server asked for more time meanwhile.
            if blame.probe_s > self._clock():
                continue
            blame.probes += 1
            if not await self.fails_probe(name):
                self._clear(name)
                return
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            blame.probe_s = max(blame.probe_s, self._clock() + wait_s)

    async def _probe(self, name: str) -> str:
        engine = self._engines[name]
        params = SamplingParams(max_tokens=1, seed=0)
        request_id = f"probe#{name}#{next(self._numbers)}"
        try:
            async with asyncio.timeout(_PROBE_S):
                completion = await engine.generate(self._prompt or _ANY_PROMPT, params, request_id=request_id)
        except TimeoutError:
            return f"it does not answer a request of one token within {_PROBE_S:g} s"
        except EngineError as error:
            if error.retry_after_s is not None and name in self._blames:
                self._blames[name].probe_s = self._clock() + error.retry_after_s
            # An engine that refuses the probe for its content has read it, so it is well.
            if error.of_request:
                return ""
            return str(error)
        except Exception as error:
            # The fault is ours. Callers wait for the probe, so they are told, whatever it is.
            _log.exception("a probe of engine %s went wrong", name)
            return f"{type(error).__name__}: {error}"
        return wrong_completion(completion)

    async def _watch_for_stalls(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            stalled = [name for name, engine in self._engines.items() if engine.stalled_s() >= _STALL_S]
            with contextlib.suppress(EngineError):
                await asyncio.gather(*(self._examine_stalled(name) for name in stalled if self.is_open(name)))

    async def _examine_stalled(self, name: str) -> None:
        engine = self._engines[name]
        reason = await self.fails_probe(name)
        if reason and self.is_open(name) and engine.stalled_s() >= _STALL_S:
            self.blame(name, f"nothing came from it for {engine.stalled_s():.0f} s, and {reason}")
            engine.give_up(reason)


def wrong_completion(completion: Completion) -> str:
    """Returns what in the completion would poison a row, or an empty text if it is sound."""
    sampled = len(completion.token_ids)
    logprobs = completion.logprobs
    if sampled and sampled == len(logprobs) and all(map(math.isfinite, logprobs)):
        return ""
    return f"it answered with {sampled} tokens and {len(logprobs)} log-probabilities, not all finite"
