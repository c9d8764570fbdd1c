"""The texts of a fake vLLM server. Pure.

Invariants:
- Names, nesting and units are a real server's; fields that nobody reads are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.engine.fake_vllm.settings import FakeSettings

_TIMES = ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")


def completion_reply(
    settings: FakeSettings,
    prompt: Sequence[int],
    ids: Sequence[int],
    logprobs: Sequence[float],
    reason: str,
    usage: Mapping[str, Any],
    times_s: Sequence[float],
) -> dict[str, Any]:
    """Of /v1/completions. `times_s`: queue, prefill, decode."""
    choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": reason}
    choice["logprobs"] = {"token_logprobs": logprobs, "tokens": [""] * len(ids), "top_logprobs": None}
    if settings.token_ids:
        choice |= {"token_ids": ids, "prompt_token_ids": prompt}
    reply: dict[str, Any] = {"object": "text_completion", "choices": [choice], "usage": usage}
    if settings.timings:
        reply["metrics"] = {name: 1000 * one for name, one in zip(_TIMES, times_s, strict=True)}
    return reply


def generate_reply(
    settings: FakeSettings,
    ids: Sequence[int],
    logprobs: Sequence[float],
    reason: str,
    usage: Mapping[str, Any],
    spans: Sequence[tuple[str, int]],
) -> dict[str, Any]:
    """Of /inference/v1/generate. `spans`: (weight version, first of its tokens)."""
    content = [{"token_id": token, "logprob": one} for token, one in zip(ids, logprobs, strict=True)]
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": {"content": content}}
    choice["token_ids"] = ids if settings.token_ids else None
    if settings.weight_spans:
        ends = [start for _, start in spans[1:]] + [len(ids)]
        choice["weight_versions"] = [
            {"version": version, "start": start, "end": end} for (version, start), end in zip(spans, ends, strict=True)
        ]
    return {"choices": [choice], "usage": usage}


def metrics_text(settings: FakeSettings, values: Mapping[str, float], started_s: float) -> str:
    """Of /metrics. `values` by name without the prefix `vllm:`."""
    labels = f'engine="0",model_name="{settings.model}"'
    blocks = settings.kv_capacity_tokens // settings.block_size
    cache = f'block_size="{settings.block_size}",engine="0",num_gpu_blocks="{blocks}"'
    lines = [f"vllm:{name}{{{labels}}} {float(value)}" for name, value in values.items()]
    lines += [f"vllm:cache_config_info{{{cache}}} 1.0", f"process_start_time_seconds {started_s}"]
    return "\n".join(lines) + "\n"
