"""The module is an engine whose replies are a function of the prompt: for tests and rehearsals without a model.

Invariants:
- It is deterministic: the same prompt gives the same tokens and log-probabilities, whatever else is in flight.
- Log-probabilities are made up but valid: finite, at most 0, exact in float32.
- Pause, abort, delay, cancellation and failures behave as the Engine interface says.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swe_rl.engine.engine import (
    Completion,
    ContextOverflowError,
    Engine,
    EngineError,
    EngineState,
    EngineStats,
    FinishReason,
    SamplingParams,
)

if TYPE_CHECKING:
    import torch

Reply = Callable[[Sequence[int]], Sequence[int]]


class ScriptedEngine(Engine):
    """An engine in which `reply(prompt_ids)` gives the tokens, end token included; each takes `token_delay_s`.

    `state` and `why_lost` are what they are set to.
    """

    state = EngineState.up
    why_lost: EngineError | None = None

    def __init__(
        self, reply: Reply, *, name: str = "scripted", max_model_len: int = 4096, token_delay_s: float = 0.0
    ) -> None:
        super().__init__(name)
        self.token_delay_s = token_delay_s
        # These are session, prompt and parameters.
        self.requests: list[tuple[str | None, tuple[int, ...], SamplingParams]] = []
        # These are the ids of requests whose caller went away.
        self.cancelled: list[str] = []
        self._reply = reply
        self._max_model_len = max_model_len
        self._failures: list[Exception] = []
        self._aborts: dict[str, asyncio.Event] = {}
        self._running = asyncio.Event()
        self._running.set()
        self._version = 0
        self._sampled = self._prefilled = 0

    def fail_next(self, *errors: Exception) -> None:
        """Has the next requests raise these, in order."""
        self._failures += errors

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, request_id: str, session_id: str | None = None
    ) -> Completion:
        self.requests.append((session_id, tuple(prompt_ids), params))
        if self._failures:
            raise self._failures.pop(0)
        if len(prompt_ids) >= self._max_model_len:
            raise ContextOverflowError(f"{len(prompt_ids)} prompt tokens, at most {self._max_model_len - 1} fit")
        room = min(params.max_tokens, self._max_model_len - len(prompt_ids))
        ids = _until_stop(self._reply(prompt_ids), params.stop_token_ids)[:room]
        abort = self._aborts[request_id] = asyncio.Event()
        try:
            versions = await self._sample(len(ids), abort)
        except asyncio.CancelledError:
            self.cancelled.append(request_id)
            raise
        finally:
            del self._aborts[request_id]
        self._sampled += len(versions)
        self._prefilled += len(prompt_ids)
        return self._completion(ids, versions, params, len(prompt_ids))

    async def abort(self, request_id: str) -> None:
        if request_id in self._aborts:
            self._aborts[request_id].set()

    async def pause(self) -> None:
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    async def update_weights(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        self._version = version

    def stats(self) -> EngineStats:
        return EngineStats(len(self._aborts), 0, 0, self._max_model_len, self._version, self._sampled, self._prefilled)

    async def close(self) -> None:
        for abort in self._aborts.values():
            abort.set()

    async def _sample(self, num_tokens: int, abort: asyncio.Event) -> list[int]:
        """Returns the version of each token that was sampled before the end or an abort."""
        versions: list[int] = []
        for _ in range(num_tokens):
            if not self._running.is_set():
                await _wait_for_either(self._running.wait(), abort.wait())
            if self.token_delay_s:
                await _wait_for_either(asyncio.sleep(self.token_delay_s), abort.wait())
            if abort.is_set():
                break
            versions.append(self._version)
        return versions

    def _completion(
        self, ids: Sequence[int], versions: Sequence[int], params: SamplingParams, prompt_tokens: int
    ) -> Completion:
        sampled = len(versions)
        kept = tuple(ids[:sampled])
        stopped = bool(kept) and kept[-1] in params.stop_token_ids
        if stopped:
            finish_reason: FinishReason = "stop"
        else:
            finish_reason = "length"
        if sampled < len(ids):
            finish_reason = "abort"
        return Completion(
            token_ids=kept,
            logprobs=tuple(_made_up_logprob(prompt_tokens + at, token) for at, token in enumerate(kept)),
            finish_reason=finish_reason,
            weight_version=versions[-1] if versions else self._version,
            token_versions=tuple(versions) if len(set(versions)) > 1 else (),
            decode_s=sampled * self.token_delay_s,
        )


def _until_stop(ids: Sequence[int], stop_token_ids: Sequence[int]) -> Sequence[int]:
    end = next((at + 1 for at, token in enumerate(ids) if token in stop_token_ids), len(ids))
    return ids[:end]


def _made_up_logprob(position: int, token: int) -> float:
    """Returns a multiple of 1/256 between -4 and 0, which float32 says exactly."""
    return -((token * 2654435761 + position * 40503) % 1024) / 256


async def _wait_for_either(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
