"""What a fake vLLM server answers and remembers: a function of the request, and a prefix cache of blocks.

Invariants:
- Deterministic: equal prompt, seed, weights and parameters give equal tokens and log-probabilities, in any company.
- As in a real server, weights that change in mid-reply change the tokens from there on.
- Log-probabilities are valid for the parameters: 0 where one token is left, made up otherwise, exact in float32.
- Of its texts, names, nesting and units are a real server's; fields that nobody reads are left out.
"""

import base64
import hashlib
import io
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_vllm.settings import FakeSettings

Reply = Callable[[Sequence[int]], Sequence[int]]


@dataclass(slots=True)
class FakeModel:
    """`reply(prompt_ids)` gives the first tokens, made-up ones follow up to a stop token or the limit.

    `logprobs`: over which tokens its log-probabilities are, a LogprobsMode.
    """

    vocab_size: int = 1000
    logprobs: str = "processed"
    reply: Reply | None = None
    weights: str = "default"

    def sample(self, prompt: Sequence[int], sampling: dict[str, Any], room: int) -> tuple[list[int], str]:
        """All tokens with the weights of now, and why they end there: stop or length."""
        decoding = Decoding(self, prompt, sampling, room)
        while decoding.reason is None:
            decoding.step()
        return decoding.ids, decoding.reason

    def logprob(self, position: int, token: int, sampling: dict[str, Any]) -> float:
        if self.logprobs == "processed" and sampling.get("top_k") == 1:
            return 0.0
        unscaled = -((token * 2654435761 + position * 40503) % 1023 + 1) / 256
        temperature = sampling.get("temperature", 1.0) or 1.0  # greedy requests are reported at temperature 1
        if self.logprobs != "whole" or temperature == 1.0:
            return unscaled
        return unscaled / 2 if temperature > 1.0 else unscaled * 2


class Decoding:
    """One request's tokens so far; each is sampled with the weights that the model has then."""

    def __init__(self, model: FakeModel, prompt: Sequence[int], sampling: dict[str, Any], room: int) -> None:
        self.ids: list[int] = []
        self.spans: list[tuple[str, int]] = []  # (weights, first of their tokens)
        self.reason: str | None = None
        self._model = model
        self._limit = min(int(sampling.get("max_tokens") or 16), room)
        self._stops = set(sampling.get("stop_token_ids") or ())
        self._scripted = list(model.reply(prompt)) if model.reply else []
        seed = sampling.get("seed") if sampling.get("temperature", 1.0) else None
        self._asked = f"/{seed}/{list(prompt)}"
        self._start = b""

    def step(self) -> None:
        weights, at = self._model.weights, len(self.ids)
        if not self.spans or self.spans[-1][0] != weights:
            self.spans.append((weights, at))
            self._start = hashlib.blake2b(f"{weights}{self._asked}".encode(), digest_size=16).digest()
        self.ids.append(self._scripted[at] if at < len(self._scripted) else self._draw())
        if self.ids[-1] in self._stops:
            self.reason = "stop"
        elif len(self.ids) >= self._limit:
            self.reason = "length"

    def _draw(self) -> int:
        last = f"{len(self.ids)}/{self.ids[-1] if self.ids else None}".encode()
        drawn = hashlib.blake2b(self._start + last, digest_size=8).digest()
        return int.from_bytes(drawn, "little") % self._model.vocab_size


@dataclass(slots=True)
class BlockCache:
    """Prefix blocks in LRU order; running requests are not counted apart."""

    capacity_tokens: int
    block_size: int
    queries_tokens: int = 0
    hits_tokens: int = 0
    _blocks: "OrderedDict[bytes, None]" = field(default_factory=OrderedDict)

    def use(self, prompt: Sequence[int], salt: str) -> int:
        """How many tokens of `prompt` were cached, in whole blocks and never all of them."""
        cached, chain = 0, salt.encode()
        for start in range(0, (len(prompt) - 1) // self.block_size * self.block_size, self.block_size):
            chain = self._key(chain, prompt[start : start + self.block_size])
            if chain not in self._blocks:
                break
            self._blocks.move_to_end(chain)
            cached += self.block_size
        self.queries_tokens += len(prompt)
        self.hits_tokens += cached
        return cached

    def keep(self, tokens: Sequence[int], salt: str) -> None:
        chain = salt.encode()
        for start in range(0, len(tokens) // self.block_size * self.block_size, self.block_size):
            chain = self._key(chain, tokens[start : start + self.block_size])
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self.capacity_tokens // self.block_size:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()

    @staticmethod
    def _key(chain: bytes, block: Sequence[int]) -> bytes:
        return hashlib.blake2b(chain + str(list(block)).encode(), digest_size=16).digest()


def routed_experts(settings: FakeSettings, tokens: Sequence[int], start: int) -> str | None:
    """Of all tokens from `start` on but the last: made up of the token, its layer and a number."""
    if not settings.routes:
        return None
    import numpy as np  # a quarter of a server's start

    layers, active, experts = settings.experts
    numbers = np.array(tokens[start:-1])[:, None, None] + np.arange(layers)[None, :, None] + np.arange(active)
    file = io.BytesIO()
    np.save(file, (numbers % experts).astype(np.int32))
    return base64.b64encode(file.getvalue()).decode()


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
        reply["metrics"] = {name: 1000 * seconds for name, seconds in zip(_TIMES, times_s, strict=True)}
    return reply


def generate_reply(
    settings: FakeSettings,
    prompt: Sequence[int],
    ids: Sequence[int],
    logprobs: Sequence[float],
    reason: str,
    usage: Mapping[str, Any],
    spans: Sequence[tuple[str, int]],
) -> dict[str, Any]:
    """Of /inference/v1/generate. `spans`: (weight version, first of its tokens)."""
    content = [{"token_id": token, "logprob": logprob} for token, logprob in zip(ids, logprobs, strict=True)]
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": {"content": content}}
    choice["token_ids"] = ids if settings.token_ids else None
    if settings.weight_spans:
        ends = [*(start for _, start in spans[1:]), len(ids)][: len(spans)]
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
