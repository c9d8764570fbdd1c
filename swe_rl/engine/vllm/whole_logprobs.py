"""Gives vLLM a third mode of log-probabilities: over the whole vocabulary at the temperature of sampling.

vLLM reports log-probabilities either after truncation (`processed_logprobs`) or at temperature 1 (`raw_logprobs`). The
trainer computes them before truncation and at the rollouts' temperature. For truncated sampling at another temperature
than 1, a server is started with a copy of this file on its path (`--worker-extension-cls swe_rl_logprobs.Extension`),
and its older model runner, whose sampler this is (`VLLM_USE_V2_MODEL_RUNNER=0`).

Invariants:
- vLLM's workers import this file, in their environment: nothing of swe_rl is imported here.
- What is sampled does not change: the sampler's own function draws, from logits of which only a copy was scaled.
- Requests of several temperatures share a batch; a greedy one is reported at temperature 1.
- Whether it works in the vLLM that is there is not assumed: the probe of each server asks at two temperatures.
"""

import importlib.util
from typing import Any

import torch
from vllm.v1.sample.sampler import Sampler

# Below it vLLM takes the likeliest token.
_GREEDY = 1e-5

if importlib.util.find_spec("swe_rl_worker") is not None:
    import swe_rl_worker  # type: ignore[import-not-found]  # noqa: F401 - vLLM takes one extension: this one brings the other

_draw = Sampler.sample


class Extension:
    """Adds nothing to a worker: naming it has this module imported."""


def _sample_whole(self: Any, logits: torch.Tensor, metadata: Any, *more: Any, **named: Any) -> tuple[torch.Tensor, Any]:
    """Takes the place of `Sampler.sample`. Its second result is what the sampler reports of all tokens."""
    logprobs = None
    if metadata.max_num_logprobs is not None:
        logprobs = self.compute_logprobs(_scale_logits(logits, metadata.temperature))
    tokens, _ = _draw(self, logits, metadata, *more, **named)
    return tokens, logprobs


def _scale_logits(logits: torch.Tensor, temperature: torch.Tensor | None) -> torch.Tensor:
    """Returns the scaled logits. `temperature` is [requests]; None: all are greedy."""
    if temperature is None:
        return logits
    divisor = torch.where(temperature < _GREEDY, torch.ones_like(temperature), temperature)
    return logits / divisor.unsqueeze(1)


Sampler.sample = _sample_whole
