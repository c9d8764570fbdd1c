"""Runs torch and transformers on the CPU, in one thread of this process, behind `Engine`.

- transformers' own continuous batching (5.19) was measured first, 32 prompts of 350 tokens and 31 sampled, 1.8 M
  parameters, one thread: `generate_batch` 8.1 s, start-up included (4.8 s for one token each), `generate` 1.1-1.5 s,
  this engine 0.75 s. It offers log-probabilities, per-request temperature, cancellation and pause, but one seed for all
  requests, set with `torch.manual_seed` on the whole process.
- A request's tokens and log-probabilities are the same bits in any order, timing and company, whatever its session's
  slot has gone through, and in a process that was started anew (on one machine, as on another the matrix library may
  sum in another order). So a resumed run repeats an uninterrupted one to the digit.
- This has a price: a session's next request prefills again what the last one sampled, as decoding rounds otherwise, and
  single tokens are summed in chunks (8 to 23 % more of the engine's time with 64 sessions of four turns).
- Every request but a session's own continuation shares long prompt prefixes with others.

Invariants:
- All access to the core goes through `post`: commands run in the engine's thread, in order, between two steps.
- An exception in a step is fatal: pending and later requests fail with EngineError whose cause is the real one.
- `close` ends the thread and joins it; what is pending then fails.
- `num_threads` is set inside the thread, once, and only where it differs. Measured on torch 2.13: threads that have
  used torch keep their own intra-op count, but a thread that first uses torch later starts with the last count that any
  thread has set. A trainer whose count differs from the engine's sets it in its own thread.
"""

import asyncio
import contextlib
import copy
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from swe_rl.config.choices import FAST_ARCHITECTURES
from swe_rl.config.schema import EngineConfig
from swe_rl.engine.embedded.any_decoder import AnyDecoder
from swe_rl.engine.embedded.core import EngineCore, Outcome, SamplingRequest, WeightLoader, refuse_request
from swe_rl.engine.embedded.decoder import Decoder
from swe_rl.engine.embedded.model import PackedDecoder
from swe_rl.engine.embedded.slot_cache import as_ids
from swe_rl.engine.engine import (
    Completion,
    ContextOverflowError,
    Engine,
    EngineError,
    EngineState,
    EngineStats,
    SamplingParams,
)
from swe_rl.engine.sampling import to_seed

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Command = Callable[[], None]


class EngineThread:
    def __init__(self, core: EngineCore, name: str, num_threads: int, failed: Callable[[], None]) -> None:
        """Keeps the core. `failed` is called in the engine's thread when that ends by an error."""
        self._core = core
        self._name = name
        self._num_threads = num_threads
        self._failed = failed
        self._inbox: deque[Command] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.failure: EngineError | None = None

    @property
    def alive(self) -> bool:
        return self._thread is not None and self.failure is None and not self._closing

    def start(self) -> None:
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name=f"engine-{self._name}", daemon=True)
        self._thread.start()

    def post(self, command: Command) -> None:
        """Runs `command` in the engine's thread between two steps; raises EngineError when that will never happen."""
        with self._wake:
            if not self.alive:
                raise self.unavailable()
            self._inbox.append(command)
            self._wake.notify()

    def close(self) -> None:
        """Blocks until the current step is over and the thread has ended."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def unavailable(self) -> EngineError:
        if self.failure is not None:
            error = EngineError(str(self.failure))
            error.__cause__ = self.failure.__cause__
            return error
        state = "was not started; await start() first"
        if self._closing:
            state = "is closed"
        return EngineError(f"Engine `{self._name}` {state}.")

    def _run(self) -> None:
        try:
            if torch.get_num_threads() != self._num_threads:
                torch.set_num_threads(self._num_threads)
            with torch.inference_mode():
                self._serve()
            self._end(EngineError(f"Engine `{self._name}` was closed before this request was done."))
        # Whatever it is, nobody may be left waiting for this thread.
        except BaseException as cause:
            error = EngineError(f"Engine `{self._name}` failed: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            self._end(error, failed=True)

    def _end(self, error: EngineError, failed: bool = False) -> None:
        with self._wake:
            if failed:
                self.failure = error
            self._closing = True
            late = list(self._inbox)
            self._inbox.clear()
        # Submissions only queue; their requests then fail below with the rest.
        for command in late:
            with contextlib.suppress(Exception):
                command()
        self._core.fail_all(error)
        if failed:
            self._failed()

    def _serve(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing or self._inbox or self._ready())
                if self._closing:
                    return
                commands = list(self._inbox)
                self._inbox.clear()
            for command in commands:
                command()
            if self._ready():
                self._core.step()

    def _ready(self) -> bool:
        return self._core.has_work and not self._core.paused


class EmbeddedEngine(Engine):
    def __init__(
        self,
        model: "PreTrainedModel",
        config: EngineConfig,
        *,
        name: str = "engine0",
        pad_token_id: int,
        routes: bool = False,
    ) -> None:
        """Copies `model`. With `routes` completions tell the experts of each token.

        Raises EngineError when its architecture or `config.max_model_len` cannot be served.
        """
        super().__init__(name)
        self._config = config
        copied: Any = copy.deepcopy(model).float().eval().requires_grad_(False)
        decoder = _make_decoder(copied, config.max_model_len, pad_token_id, routes=routes)
        self._vocab_size = decoder.vocab_size
        self._core = EngineCore(decoder, WeightLoader(copied), config.max_num_seqs, config.max_model_len)
        self._thread = EngineThread(self._core, name, config.num_threads, self._thread_failed)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def state(self) -> EngineState:
        if self.why_lost is None:
            return EngineState.up
        return EngineState.gone

    @property
    def why_lost(self) -> EngineError | None:
        return self._thread.failure

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, request_id: str, session_id: str | None = None
    ) -> Completion:
        """Raises ContextOverflowError, or EngineError. Cancelling the awaiting task aborts the request.

        A request of the same `session_id` prefills only what its prompt adds to the session's earlier tokens.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        request = self._request(prompt_ids, params, request_id, session_id, _make_deliverer(loop, future))
        self._thread.post(lambda: self._core.submit(request))
        try:
            return await future
        except asyncio.CancelledError:
            self._post_if_alive(lambda: self._core.abort_request(request))
            raise

    async def abort(self, request_id: str) -> None:
        self._post_if_alive(lambda: self._core.abort(request_id))

    async def pause(self) -> None:
        """Returns once no step is running: in-flight requests stay frozen, new ones queue."""
        await self._call(lambda: setattr(self._core, "paused", True))

    async def resume(self) -> None:
        await self._call(lambda: setattr(self._core, "paused", False))

    async def update_weights(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Copies `weights` in place between two steps and forgets all cached prefixes; running requests go on.

        Raises EngineError, naming the first mismatch and with nothing changed, when names or shapes differ from the
        model's `state_dict` (tied parameters may be given under one of their names).
        """
        await self._call(lambda: self._core.update_weights(weights, version))

    def release_session(self, session_id: str) -> None:
        """Frees the session's cached tokens at once; unknown ids are ignored."""
        self._post_if_alive(lambda: self._core.release_session(session_id))

    def stats(self) -> EngineStats:
        """Returns a snapshot, at most one step old. `kv_used_tokens` counts running requests, not idle sessions."""
        return self._core.stats()

    async def close(self) -> None:
        """Ends the thread after its current step; pending requests fail with EngineError. May be called twice."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.close)

    def _thread_failed(self) -> None:
        """Tells whoever routes to this engine that nobody starts it again, in the event loop that started it."""
        assert self._loop is not None
        # The loop was closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell, False)

    def _request(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        request_id: str,
        session_id: str | None,
        deliver: Callable[[Outcome], None],
    ) -> SamplingRequest:
        prompt = as_ids(prompt_ids)
        if len(prompt) + 1 > self._config.max_model_len:
            raise ContextOverflowError(
                f"Request `{request_id}` has a prompt of {len(prompt)} tokens, which leaves no room to sample within "
                f"engine.max_model_len={self._config.max_model_len}."
            )
        reason = refuse_request(prompt, params, self._vocab_size)
        if reason:
            raise EngineError(f"Engine `{self.name}` refuses request `{request_id}`: {reason}.")
        if params.seed is None:
            seed = secrets.randbits(64)
        else:
            seed = to_seed(params.seed)
        stops = frozenset(params.stop_token_ids)
        return SamplingRequest(request_id, session_id, prompt, params, seed, deliver, time.monotonic(), stops)

    async def _call(self, command: Callable[[], None]) -> None:
        """Runs `command` in the engine's thread and waits for it; its EngineError is raised here."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def run() -> None:
            failure: Exception | None = None
            try:
                command()
            except Exception as error:
                failure = error
            _settle_future(loop, done, failure)
            if failure is not None and not isinstance(failure, EngineError):
                # The update is half applied, so this is fatal for the engine, too.
                raise failure

        self._thread.post(run)
        await done

    def _post_if_alive(self, command: Callable[[], None]) -> None:
        if self._thread.alive:
            self._thread.post(command)


def _make_decoder(model: Any, max_model_len: int, pad_token_id: int, *, routes: bool) -> Decoder[Any]:
    """Returns the fast decoder for the families that it computes, else the one for all. Raises EngineError."""
    if model.config.model_type in FAST_ARCHITECTURES:
        return PackedDecoder(model, max_model_len, pad_token_id, routes=routes)
    if routes:
        raise EngineError(
            f"The embedded engine does not tell the experts of a `{model.config.model_type}` model; set "
            "trainer.routing_replay=none."
        )
    return AnyDecoder(model, max_model_len)


def _make_deliverer(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Completion]") -> Callable[[Outcome], None]:
    return lambda outcome: _settle_future(loop, future, outcome)


def _settle_future(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", outcome: object) -> None:
    """Settles `future` from the engine's thread; a client or a loop that has gone is no error of the engine."""

    def settle() -> None:
        if future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    # The loop was closed.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)
