"""The engine interface, the same for the embedded engine, vLLM and an external server.

Invariants:
- Token ids in, token ids and log-probabilities out; no text crosses this boundary.
- `logprobs[i]` is the log-probability of `token_ids[i]` under the temperature-scaled distribution before
  top-p/top-k truncation, in float32 from float32 logits.
- A sampled stop token is part of `token_ids` (and has a log-probability).
- With a `seed`, a request's tokens do not depend on which other requests share its batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from swe_rl.errors import RunError

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length", "abort"]


class EngineError(RunError):
    """An engine failed, died or answered with something that is not a completion."""


class ContextOverflowError(EngineError):
    """The prompt leaves no room for a single sampled token within the engine's `max_model_len`."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weight_version: int
    cached_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for routing and metrics."""

    running: int
    waiting: int
    kv_used_tokens: int
    kv_capacity_tokens: int
    weight_version: int
    sampled_tokens_total: int = 0
    prefill_tokens_total: int = 0
    preemptions_total: int = 0  # requests that had to be computed anew for want of memory; only grows


class Engine(Protocol):
    name: str

    async def start(self) -> None: ...

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, request_id: str, session_id: str | None = None
    ) -> Completion:
        """Raises ContextOverflowError, or EngineError. Cancelling the awaiting task aborts the request."""
        ...

    async def abort(self, request_id: str) -> None:
        """The request ends with finish_reason `abort` and what it has sampled so far; unknown ids are ignored."""
        ...

    def release_session(self, session_id: str) -> None:
        """Frees what is kept for a session that is over; unknown ids are ignored."""
        ...

    async def pause(self) -> None:
        """In-flight requests freeze where they are; new ones queue."""
        ...

    async def resume(self) -> None: ...

    async def update_weights(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Copies `weights` in place (names as in the model's `state_dict`); later samples carry `version`.

        A request in flight is sampled anew: no completion mixes two versions. Raises EngineError.
        """
        ...

    def stats(self) -> EngineStats: ...

    async def close(self) -> None: ...
