"""Treats a vLLM server that this run starts, watches and starts again as an engine.

Invariants:
- When the server dies, what waits for it fails at once with the reason from its log; later requests wait for the
  restart, which is tried `max_restarts` times in a run, and fail when there is none left.
- A server that dies before it is up fails `start`; where the run had one up before, it is a death like any other.
- A restarted server serves only with the weights that the dead one had, or newer ones; otherwise it stays down.
- New weights reach a server that dies while it takes them once it is back.
- A server that dies between `sleep` and `may_wake` leaves its GPUs free until `may_wake`; one that is started anew
  while it waits for weights gets them by the next update, and serves nobody before.
- A server that dies for want of a compiler is started again without compiled kernels, once, with a line that says so;
  one that does not understand the name of a MIG slice is given the slice's number.
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
from swe_rl.engine.vllm.log import Cause
from swe_rl.engine.vllm.server import ServerDiedError, VllmServer

if TYPE_CHECKING:
    import torch

# Between our look for a free port and the server's listening another process may take it; three times is no accident.
_PORT_TRIES = 3
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
        self._eager = False
        self._by_number = False
        self._server: VllmServer | None = None
        self._http: HttpEngine | None = None
        self._paused = False
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._death: EngineError | None = None
        self._failure: EngineError | None = None
        self._keeper: asyncio.Task[None] | None = None
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
        return self._server

    async def start(self) -> None:
        """Raises UserError for a server that cannot serve this run, or EngineError; nothing is left running then."""
        death = None
        try:
            try:
                await self._launch(self._model_path)
                self._up.set()
            except EngineError as error:
                if self._server is None or self.name not in self._ledger:  # its settings would let it die again
                    raise
                self._http, death = self._maker.client(self._server.url), error  # with nothing in flight
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
            if await self._dies():  # whose reason is known now
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
                explained = self.explained(error)  # before another start begins a log of its own
                if last or not await self._dies():
                    raise explained from error

    def explained(self, error: EngineError) -> EngineError:
        if self._server is None or not isinstance(error, ServerFailingError):
            return error
        return type(error)(f"{error}; {self._server.said()}")

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
        self._up.set()  # whoever waits learns of the failure
        keeper = self._keeper
        self._keeper = None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        if self._http is not None:
            await self._http.close()
        if self._server is not None:
            await self._server.stop()

    async def _serving(self) -> HttpEngine:
        if self._keeper is None and self._failure is None:
            raise EngineError(f"Engine `{self.name}` was not started; await start() first.")
        while not self._up.is_set():  # it may have died once more before this task had its turn
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
        """Starts a healthy, probed server; a lost port is tried again, a missing compiler answered with eager mode."""
        took_s = None
        attempt = 0
        while took_s is None:
            attempt += 1
            self._server = server = self._maker.server(model_path, self._eager, self._by_number)
            try:
                took_s = await server.start()
            except ServerDiedError as error:
                if not self._try_again(error, attempt):
                    raise
        http = self._maker.client(server.url)
        try:
            await http.start()
        except BaseException as error:
            if isinstance(error, Exception):  # what a server answers that is about to end says nothing of its features
                with contextlib.suppress(TimeoutError):
                    error = await asyncio.wait_for(server.wait(), _DEATH_S)
            await server.stop()
            raise error
        if self._paused:  # by somebody who does not hear of the restart
            await http.pause()
        http.on_change = self._seen
        self._http = http
        self._say(f"{self.name} is up after {took_s:.0f} s: {http.features}")

    def _try_again(self, error: ServerDiedError, attempt: int) -> bool:
        if error.cause is Cause.no_compiler and not self._eager:
            self._go_eager(error)
            return True
        if error.cause is Cause.mig_name and not self._by_number:
            self._by_number = True
            self._say(f"{self.name}: this vLLM does not take the name of a MIG slice, so it is given a number. {error}")
            return True
        return error.cause is Cause.port_in_use and attempt < _PORT_TRIES

    def _go_eager(self, error: ServerDiedError) -> None:
        self._eager = True
        self._say(
            f"{self.name}: no compiler for vLLM's kernels here, so it runs without compiled ones (as with "
            f"engine.enforce_eager=true), which is slower. {error}"
        )

    async def _keep(self, death: EngineError | None) -> None:
        """Starts the server again whenever it dies. `death` is one from before it was up."""
        while self._server is not None:
            self._death = error = death or await self._server.wait()
            death = None
            self._up.clear()  # before anybody is told: who asks then waits for the restart, and misses the dead server
            self._lost(error)
            await self._server.stop()  # also where the guard was killed: nothing of it may stay on the GPUs
            self._down.set()
            try:
                await self._start_again(error)
            except EngineError as failure:
                self._failure = failure
                self._say(str(failure))
                self._up.set()  # whoever waits learns of it
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
                await self._may_start.wait()  # until then the trainer has the GPUs
                await self._restart(error, lost)
                return
            except Exception as again:  # UserError and DiskError would come again
                failure = EngineError(f"{error}; the restart failed: {again}")
                await self._end_attempt()
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
        if self._server is not None:
            await self._server.stop()

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
            self._before = self.stats()  # totals only grow, and the new server begins at 0
            self._http = None
            await lost.close()
        if isinstance(error, ServerDiedError) and error.cause is Cause.no_compiler and not self._eager:
            self._go_eager(error)
        folder = self._weights.find(version) if self._weights is not None else None
        adapter = self._weights is not None and self._weights.adapter is not None
        await self._launch(str(folder) if folder and not adapter else self._model_path)
        assert self._http is not None
        if lost.held:  # the next update wakes it; weights of before would be given for nothing
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

    def _seen(self, up: bool) -> None:
        """Ends a server that hangs, or holds half of an update: `_keep` then starts it again."""
        if not up and self.state is EngineState.up and self._server is not None:
            self._ending = asyncio.get_running_loop().create_task(self._server.stop())
