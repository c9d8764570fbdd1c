"""One request inside the embedded engine: what was asked, what has been sampled, when.

Invariants:
- A request is touched by the engine's thread only, once it was handed over; its outcome is delivered exactly once.
- Times come from the engine's clock, in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from swe_rl.engine.embedded.slot_cache import Slot
from swe_rl.engine.protocol import Completion, EngineError, FinishReason, SamplingParams

Outcome = Completion | EngineError


@dataclass(slots=True, eq=False)
class Request:
    request_id: str
    session_id: str | None
    prompt: npt.NDArray[np.int64]
    params: SamplingParams
    seed: int
    deliver: Callable[[Outcome], None]
    arrived_s: float
    stop_ids: frozenset[int]
    slot: Slot | None = None
    weight_version: int = 0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    admitted_s: float | None = None
    first_token_s: float | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def prefilling(self) -> bool:
        return self.prefilled_tokens < len(self.prompt)

    def restart(self) -> None:
        """As if it had been waiting all the time, which is what its `queue_s` will say."""
        self.slot = self.admitted_s = self.first_token_s = None
        self.prefilled_tokens = self.cached_tokens = 0
        self.token_ids.clear()
        self.logprobs.clear()

    def finish_reason(self, max_model_len: int) -> FinishReason | None:
        """None while there is more to sample. A stop token wins over a limit that it also reaches."""
        if self.token_ids[-1] in self.stop_ids:
            return "stop"
        full = len(self.prompt) + len(self.token_ids) >= max_model_len
        return "length" if full or len(self.token_ids) >= self.params.max_tokens else None

    def completion(self, reason: FinishReason, now_s: float, current_version: int) -> Completion:
        """`current_version` counts only for a request that never started."""
        admitted_s = now_s if self.admitted_s is None else self.admitted_s
        first_s = now_s if self.first_token_s is None else self.first_token_s
        return Completion(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish_reason=reason,
            weight_version=current_version if self.admitted_s is None else self.weight_version,
            cached_tokens=self.cached_tokens,
            queue_s=admitted_s - self.arrived_s,
            prefill_s=first_s - admitted_s,
            decode_s=now_s - first_s,
        )


def refusal(prompt: npt.NDArray[np.int64], params: SamplingParams, vocab_size: int) -> str | None:
    """Why a request cannot be served at all, or None."""
    if prompt.size == 0:
        return "its prompt is empty"
    if int(prompt.min()) < 0 or int(prompt.max()) >= vocab_size:
        return f"its prompt has token ids outside 0 .. {vocab_size - 1}"
    if params.max_tokens < 1:
        return f"max_tokens is {params.max_tokens}, and at least one token is sampled"
    if not params.temperature >= 0.0:
        return f"temperature is {params.temperature}, not a number >= 0"
    if not 0.0 < params.top_p <= 1.0:
        return f"top_p is {params.top_p}, not within (0, 1]"
    return f"top_k is {params.top_k}, not >= 0" if params.top_k < 0 else None
