"""What is said to a vLLM server for one completion, and what its answer means. Pure.

Invariants:
- Every sampling parameter that a model folder's generation_config could change is sent.
- Generation ends at the given stop tokens only (`ignore_eos`): the same rule as the embedded engine's.
- A reply with another number of log-probabilities than tokens, or with one that no float32 sampler gives (vLLM writes
  -9999 for NaN and minus infinity), is an error, never a completion.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from swe_rl.engine.protocol import EngineError, FinishReason, SamplingParams

_SEED_MASK = 2**63 - 1  # of a signed 64-bit integer
_LOWEST_LOGPROB = -9000.0


class TokenIn(StrEnum):
    """The two ways to send token ids. Only `completions` tells queue, prefill and decode times apart."""

    completions = "/v1/completions"
    generate = "/inference/v1/generate"


@dataclass(frozen=True, slots=True)
class Reply:
    """`version_spans`: (weight version, first token, end token); empty where the server does not tell."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    cached_tokens: int | None
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    version_spans: tuple[tuple[str, int, int], ...] = ()


def request_body(
    kind: TokenIn,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    model: str,
    request_id: str,
    cache_salt: str | None = None,
) -> dict[str, Any]:
    """`cache_salt` keeps cached prefixes of one weight version from being used by another."""
    sampling = _sampling(params)
    prompt = prompt_ids if isinstance(prompt_ids, list | tuple) else list(prompt_ids)
    body: dict[str, Any] = {"model": model, "request_id": request_id}
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    if kind is TokenIn.generate:
        return {**body, "token_ids": prompt, "sampling_params": {**sampling, "detokenize": False}}
    return {**body, **sampling, "prompt": prompt, "return_token_ids": True, "stream": False}


def server_request_id(kind: TokenIn, request_id: str) -> str:
    """The id under which vLLM can abort the request (seen in 0.26 to 0.32)."""
    return f"generate-tokens-{request_id}" if kind is TokenIn.generate else f"cmpl-{request_id}-0"


def parse_reply(kind: TokenIn, payload: object) -> Reply:
    """Raises EngineError for anything that is not one completion with token ids and log-probabilities."""
    try:
        return _parse(kind, payload)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"it answered with something that is not a completion ({type(error).__name__})") from error


def weight_version(name: str) -> int | None:
    """The number that `update_weights` gave; None for a name that somebody else gave."""
    return int(name) if name.isdecimal() else None


def _sampling(params: SamplingParams) -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": True,
        "logprobs": 0,  # of the sampled token only
    }
    if params.seed is not None:
        sampling["seed"] = params.seed & _SEED_MASK
    return sampling


def _parse(kind: TokenIn, payload: Any) -> Reply:
    choice = payload["choices"][0]
    token_ids = choice["token_ids"]
    if token_ids is None:
        raise EngineError("it does not return token ids")
    found = choice["logprobs"]
    if found is None and token_ids:
        raise EngineError("it does not return log-probabilities")
    if not token_ids:  # aborted before its first token
        logprobs: list[float] = []
    elif kind is TokenIn.generate:
        logprobs = [entry["logprob"] for entry in found["content"]]
    else:
        logprobs = found["token_logprobs"]
    _check(token_ids, logprobs)
    details = (payload.get("usage") or {}).get("prompt_tokens_details") or {}
    times = payload.get("metrics") or {}
    return Reply(
        token_ids=tuple(token_ids),
        logprobs=tuple(min(0.0, float(one)) for one in logprobs),
        finish_reason=_finish_reason(choice["finish_reason"]),
        cached_tokens=details.get("cached_tokens"),
        queue_s=_seconds(times, "queue_time_ms"),
        prefill_s=_seconds(times, "time_to_first_token_ms"),  # from the first scheduling on, despite its name
        decode_s=_seconds(times, "generation_time_ms"),
        version_spans=tuple(
            (str(span["version"]), int(span["start"]), int(span["end"])) for span in choice.get("weight_versions") or ()
        ),
    )


def _check(token_ids: Sequence[object], logprobs: Sequence[object]) -> None:
    if len(token_ids) != len(logprobs):
        raise EngineError(f"it answered with {len(token_ids)} tokens and {len(logprobs)} log-probabilities")
    if not all(isinstance(token, int) for token in token_ids):
        raise EngineError("it answered with token ids that are no integers")
    for at, one in enumerate(logprobs):
        if not isinstance(one, int | float) or not math.isfinite(one) or one < _LOWEST_LOGPROB:
            raise EngineError(f"the log-probability of its token {at} is {one}: the model's logits are not finite")


def _finish_reason(found: object) -> FinishReason:
    if found == "stop":
        return "stop"
    if found == "length":
        return "length"
    if found == "abort":
        return "abort"
    raise EngineError(f"it ended the request with finish_reason {found!r}")


def _seconds(times: Mapping[str, Any], key: str) -> float | None:
    found = times.get(key)
    return None if found is None else max(0.0, float(found)) / 1000.0
