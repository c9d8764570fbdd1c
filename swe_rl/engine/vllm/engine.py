"""Treats a vLLM server that this run starts, watches and starts again as an engine.

Invariants:
- When the server dies, what waits for it fails at once with the reason from its log; later requests wait for the
  restart, which is tried `max_restarts` times in a run, and fail when there is none left.
- A server that dies before it is up fails `start`; where the run had one up before, it is a death like any other.
- A restarted server serves only with the weights that the dead one had, or newer ones; otherwise it stays down.
- New weights reach a server that dies while it takes them once it is back.
- A server that dies between `sleep` and `may_wake` leaves its GPUs free until `may_wake`; one that is started anew
  while it waits for weights gets them by the next update, and serves nobody before.
- `close` ends the process and everything below it. Of a restart that failed no process is left, whatever went wrong.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from swe_rl.engine.engine import (
    Completion,
    Engine,
    EngineError,
    EngineState,
    EngineStats,
    LossTeller,
    Record,
    SamplingParams,
)
from swe_rl.engine.server.client import ServerFailingError
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.weights import WeightFolders
from swe_rl.engine.vllm.server import ServerDiedError, VllmServer
from swe_rl.engine.vllm.starter import ServerStarter

if TYPE_CHECKING:
    import torch

_DEATH_S = 2.0  # So much passes at most between the first failure and the end of the process.


class WeightsGoneError(EngineError):
    """No further restart helps."""


class Maker(Protocol):
    """Makes the servers and clients of a supervised engine: nothing is started, every call makes a new one."""

    def server(self, model_path: str, eager: bool, by_number: bool) -> VllmServer:
        """Returns a server. With `by_number` a MIG slice is called by its number. Raises DeviceError."""
        ...

    def client(self, url: str) -> HttpEngine: ...


class VllmEngine(Engine):
    """An engine whose server this run starts. `say` and `record` are told when it is lost, and when it serves again.

    `record` is for `events.jsonl` (see `loss`). `ledger` has the restarts so far of each of the run's engines that was
    up once, by name; those that are made later go on with it.
    """

    def __init__(
        self,
        maker: Maker,
        *,
        name: str,
        model_path: str,
        max_restarts: int,
        say: Callable[[str], None],
        weights: WeightFolders | None = None,
        record: Record | None = None,
        ledger: MutableMapping[str, int] | None = None,
    ) -> None:
        super().__init__(name)
        self._ledger = {} if ledger is None else ledger
        self._maker = maker
        self._model_path = model_path
        self._max_restarts = max_restarts
        self._say = say
        self._weights = weights
        self._teller = LossTeller(name, say, record or (lambda *_: None))
        self._starter = ServerStarter(maker.server, name, say)
        self._http: HttpEngine | None = None
        self._paused = False
        # Requests wait for `_up`: it is set while the server serves, and at the end of all restarts, with `_failure`.
        self._up = asyncio.Event()
        self._failure: EngineError | None = None
        # It is set while the process is known to have ended: from then on `_death` has the reason.
        self._down = asyncio.Event()
        self._death: EngineError | None = None
        # It is cleared while the trainer has the GPUs.
        self._may_start = asyncio.Event()
        self._may_start.set()
        # This task waits for the server's death, and starts it again.
        self._keeper: asyncio.Task[None] | None = None
        # This task ends a server that hangs.
        self._ending: asyncio.Task[None] | None = None
        self._before = EngineStats(0, 0, 0, 0, 0)  # These are totals of earlier lives of the server.

    @property
    def restarts(self) -> int:
        return self._ledger.get(self.name, 0)

    @property
    def state(self) -> EngineState:
        if self._failure is not None:
            return EngineState.gone
        if self._up.is_set():
            return EngineState.up
        return EngineState.starting

    @property
    def why_lost(self) -> EngineError | None:
        return self._failure or (None if self._up.is_set() else self._death)

    @property
    def server(self) -> VllmServer | None:
        return self._starter.server

    async def start(self) -> None:
        """Raises UserError for a server that cannot serve this run, or EngineError; nothing is left running then."""
        death = None
        try:
            try:
                await self._launch(self._model_path)
                self._up.set()
            except EngineError as error:
                # A server that was never up would die of its settings again.
                if self.server is None or self.name not in self._ledger:
                    raise
                # Nothing is in flight at this client, which only says which weights the dead server had.
                self._http = self._maker.client(self.server.url)
                death = error
            self._ledger.setdefault(self.name, 0)
            self._keeper = asyncio.get_running_loop().create_task(self._keep(death))
            await self._up.wait()
        except BaseException:
            await self.close()
            raise

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, request_id: str, session_id: str | None = None
    ) -> Completion:
        http = await self._serving()
        try:
            return await http.generate(prompt_ids, params, request_id=request_id, session_id=session_id)
        except ServerFailingError as error:
            # If the server ended, its log has a better reason than the connection.
            if await self._dies():
                raise EngineError(str(self._death)) from error
            raise

    async def abort(self, request_id: str) -> None:
        if self._http is not None and self.state is EngineState.up:
            await self._http.abort(request_id)

    def stalled_s(self) -> float:
        return self._http.stalled_s() if self._http is not None and self.state is EngineState.up else 0.0

    def give_up(self, reason: str) -> None:
        """Gives the server up, which is then started anew."""
        if self._http is not None:
            self._http.lose(f"it does not answer: {reason}")

    async def pause(self) -> None:
        await (await self._serving()).pause()
        self._paused = True

    async def resume(self) -> None:
        self._paused = False
        await (await self._serving()).resume()

    async def sleep(self) -> None:
        """Puts the server to sleep; one that dies meanwhile has ended, which is as good."""
        http = await self._serving()
        self._may_start.clear()
        try:
            await http.sleep()
        except EngineError:
            if not await self._dies():
                raise

    async def may_wake(self) -> None:
        """Starts a server that ended meanwhile, and waits until it is up."""
        self._may_start.set()
        await self._serving()

    @property
    def wake_s(self) -> float:
        return self._http.wake_s if self._http is not None else 0.0

    async def update_weights(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Gives the weights, once more to a server that dies meanwhile and comes back. Raises EngineError."""
        for last in (False, True):
            http = await self._serving()
            try:
                await http.update_weights(weights, version)
                return
            except EngineError as error:
                # It is explained before another start begins a log of its own.
                explained = self.explained(error)
                if last or not await self._dies():
                    raise explained from error

    def explained(self, error: EngineError) -> EngineError:
        if self.server is None or not isinstance(error, ServerFailingError):
            return error
        return type(error)(f"{error}; {self.server.said()}")

    async def receiver(self) -> HttpEngine:
        """Returns the client of its server, or of the successor of one that was lost and has not ended yet."""
        http = await self._serving()
        if http.in_flight.failure is not None and await self._dies():
            http = await self._serving()
        return http

    def stats(self) -> EngineStats:
        if self._http is None:
            return self._before
        now = self._http.stats()
        if self.state is not EngineState.up:
            now = replace(now, running=0, waiting=0, kv_used_tokens=0)
        return replace(
            now,
            sampled_tokens_total=now.sampled_tokens_total + self._before.sampled_tokens_total,
            prefill_tokens_total=now.prefill_tokens_total + self._before.prefill_tokens_total,
            preemptions_total=now.preemptions_total + self._before.preemptions_total,
        )

    async def close(self) -> None:
        """Ends the server. It may be called twice."""
        if self._failure is None:
            self._failure = EngineError(f"Engine `{self.name}` is closed.")
        # Whoever waits learns of the failure.
        self._up.set()
        keeper = self._keeper
        self._keeper = None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        if self._http is not None:
            await self._http.close()
        if self.server is not None:
            await self.server.stop()

    async def _serving(self) -> HttpEngine:
        if self._keeper is None and self._failure is None:
            raise EngineError(f"Engine `{self.name}` was not started; await start() first.")
        # It may have died once more before this task had its turn.
        while not self._up.is_set():
            await self._up.wait()
        if self._failure is not None or self._http is None:
            raise EngineError(str(self._failure)) from self._failure
        return self._http

    async def _dies(self) -> bool:
        """Tells whether the process ends about now, by itself or ended from here.

        A request often breaks off before the end of the process is seen, and only that has the reason.
        """
        if self._ending is not None:
            await asyncio.wait({self._ending})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._down.wait(), _DEATH_S)
            return True
        return False

    async def _launch(self, model_path: str) -> None:
        """Starts a server that is healthy and answers a probe. Raises EngineError; nothing of it is left then."""
        server, took_s = await self._starter.start(model_path)
        http = self._maker.client(server.url)
        try:
            await http.start()
        except BaseException as error:
            # What a server answers that is about to end says nothing of its features: its end is the reason.
            if isinstance(error, Exception):
                with contextlib.suppress(TimeoutError):
                    error = await asyncio.wait_for(server.wait(), _DEATH_S)
            await server.stop()
            raise error
        # Whoever paused the last server does not hear of the restart.
        if self._paused:
            await http.pause()
        http.on_change = self._end_hanging
        self._http = http
        self._say(f"{self.name} is up after {took_s:.0f} s: {http.features}")

    async def _keep(self, death: EngineError | None) -> None:
        """Starts the server again whenever it dies. `death` is one from before it was up."""
        while self.server is not None:
            self._death = error = death or await self.server.wait()
            death = None
            # Before anybody is told: whoever asks then waits for the restart, and misses the dead server.
            self._up.clear()
            self._lost(error)
            # Also if its guard was killed, nothing of it may stay on the GPUs.
            await self.server.stop()
            self._down.set()
            try:
                await self._start_again(error)
            except EngineError as failure:
                self._failure = failure
                self._say(str(failure))
                self._up.set()
                self._tell(False)
                return
            self._down.clear()
            self._up.set()
            self._teller.back()
            self._tell(True)

    async def _start_again(self, error: EngineError) -> None:
        """Starts the server while restarts are left. Raises EngineError, whatever went wrong: nobody waits here."""
        assert self._http is not None
        lost = self._http
        failure = EngineError(f"{error}; it was restarted {self.restarts} times already")
        while self.restarts < self._max_restarts:
            self._ledger[self.name] = self.restarts + 1
            try:
                await self._may_start.wait()
                await self._restart(error, lost)
                return
            except Exception as again:
                failure = EngineError(f"{error}; the restart failed: {again}")
                await self._end_attempt()
                # What is no EngineError, as UserError and DiskError, would come again.
                if not isinstance(again, EngineError) or isinstance(again, WeightsGoneError):
                    break
                if self.restarts < self._max_restarts:
                    self._say(f"{failure}; restart {self.restarts + 1} of {self._max_restarts}")
        raise failure

    async def _end_attempt(self) -> None:
        http = self._http
        self._http = None
        if http is not None:
            await http.close()
        if self.server is not None:
            await self.server.stop()

    def _lost(self, error: EngineError) -> None:
        assert self._http is not None
        self._http.lose(str(error))
        left = self._max_restarts - self.restarts
        then = f"restart {self.restarts + 1} of {self._max_restarts}" if left > 0 else "it is not started again"
        then += " after the trainer's turn" if left > 0 and not self._may_start.is_set() else ""
        self._teller.lost(str(error), self._http.in_flight.loss, then)
        self._tell(False)

    async def _restart(self, error: EngineError, lost: HttpEngine) -> None:
        version = lost.weight_version
        if self._http is lost:
            # Totals only grow, and those of the new server begin at 0.
            self._before = self.stats()
            self._http = None
            await lost.close()
        if isinstance(error, ServerDiedError):
            self._starter.learn(error)
        folder = self._weights.find(version) if self._weights is not None else None
        adapter = self._weights is not None and self._weights.adapter is not None
        await self._launch(str(folder) if folder and not adapter else self._model_path)
        assert self._http is not None
        if lost.held:
            # The next update wakes it, and brings newer weights.
            self._http.hold()
        else:
            await self._give_weights(version, folder, adapter)

    async def _give_weights(self, version: int, folder: Path | None, adapter: bool) -> None:
        """Gives the server the weights of `version`, unless it was started with them. Raises EngineError."""
        assert self._http is not None
        if version and folder is not None and adapter:
            await self._http.take(folder, version)
        elif version and folder is not None:
            await self._http.adopt(version)
        elif version and self.restore is not None:
            await self.restore(self._http)
        if self._http.weight_version < version:
            raise WeightsGoneError(f"nothing has the weights of step {version} for it")

    def _end_hanging(self, up: bool) -> None:
        """Ends a server that hangs, or holds half of an update: `_keep` then starts it again."""
        if not up and self.state is EngineState.up and self.server is not None:
            self._ending = asyncio.get_running_loop().create_task(self.server.stop())
