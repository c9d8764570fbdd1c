"""Token ids in, token ids and log-probabilities out: vLLM's `/v1/completions`, as far as engine=external asks it.

Invariants:
- What would change the distribution, or end the sampling elsewhere than at the given stop tokens, is refused by name.
- A reply has one log-probability for every token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swe_rl.engine.protocol import Completion, SamplingParams
from swe_rl.gateway.errors import invalid
from swe_rl.gateway.request import integer, number, read_body

SERVER = "swe_rl"  # what /version calls this gateway, which has no version of vLLM's
_NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


@dataclass(frozen=True, slots=True)
class TokenRequest:
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    program_id: str | None


def parse_token_request(raw: bytes, names: tuple[str, ...], vocab_size: int) -> TokenRequest:
    """`names`: those of the model. Raises ApiError."""
    body = read_body(raw, names)
    _refuse_unsupported(body)
    params = SamplingParams(
        integer(body, "max_tokens", 1) or 16,
        number(body, "temperature", 0.0, 2.0),
        number(body, "top_p", 1e-6, 1.0),
        max(0, integer(body, "top_k", -1) or 0),
        _ids(body.get("stop_token_ids") or [], "stop_token_ids", vocab_size),
        integer(body, "seed", -(2**63)),
    )
    prompt_ids = _ids(body.get("prompt"), "prompt", vocab_size)
    if not prompt_ids:
        raise invalid("'prompt' must not be empty.", "prompt")
    program_id = body.get("program_id")
    return TokenRequest(prompt_ids, params, program_id if isinstance(program_id, str) else None)


def token_answer(model: str, reply_id: str, request: TokenRequest, completion: Completion) -> dict[str, Any]:
    sampled = list(completion.token_ids)
    usage = {
        "prompt_tokens": len(request.prompt_ids),
        "completion_tokens": len(sampled),
        "total_tokens": len(request.prompt_ids) + len(sampled),
        "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
    }
    times = {
        "queue_time_ms": completion.queue_s * 1e3,
        "time_to_first_token_ms": completion.prefill_s * 1e3,
        "generation_time_ms": completion.decode_s * 1e3,
    }
    choice = {
        "index": 0,
        "text": "",
        "token_ids": sampled,
        "logprobs": {"token_logprobs": list(completion.logprobs)},
        "finish_reason": completion.finish_reason,
    }
    head = {"id": reply_id, "object": "text_completion", "model": model}
    return {**head, "choices": [choice], "usage": usage, "metrics": times}


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    refused = {name: body.get(name, neutral) != neutral for name, neutral in _NEUTRAL.items()}
    refused |= {"n": body.get("n") not in (None, 1), "stop": bool(body.get("stop")), "stream": bool(body.get("stream"))}
    refused |= {"ignore_eos": body.get("ignore_eos") is not True, "return_token_ids": not body.get("return_token_ids")}
    for param, present in refused.items():
        if present:
            message = f"{param!r} with this value is not supported: this route takes token ids and returns token ids."
            raise invalid(message, param, "unsupported_parameter")


def _ids(value: Any, param: str, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        type(token_id) is int and 0 <= token_id < vocab_size for token_id in value
    ):
        raise invalid(f"{param!r} must be a list of token ids below {vocab_size}.", param)
    return tuple(value)
