"""This module serves vLLM's `/v1/completions` as far as engine=external uses it: token ids in, token ids and
log-probabilities out.

Invariants:
- Whatever would change the distribution, or end the sampling elsewhere than at the given stop tokens, is refused by
  name.
- A reply has one log-probability for every token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swe_rl.engine.engine import Completion, SamplingParams
from swe_rl.gateway.errors import invalid_request
from swe_rl.gateway.request import read_body, read_integer, read_number

# /version shows this name, as the gateway has no version of vLLM.
SERVER = "swe_rl"
_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
# These parameters of vLLM change what is sampled, or force it. Empty ones change nothing.
_BENDING = (
    "stop",
    "stream",
    "min_tokens",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "logits_processors",
    "structured_outputs",
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "thinking_token_budget",
    "repetition_detection",
    "trace_decode_token_ids",
    "vllm_xargs",
    "use_beam_search",
)


@dataclass(frozen=True, slots=True)
class TokenRequest:
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    program_id: str | None


def parse_token_request(raw: bytes, names: tuple[str, ...], vocab_size: int) -> TokenRequest:
    """Reads a request for the model that `names` stand for. Raises ApiError."""
    body = read_body(raw, names)
    _refuse_unsupported(body)
    params = SamplingParams(
        read_integer(body, "max_tokens", 1) or 16,
        read_number(body, "temperature", 0.0, 2.0),
        read_number(body, "top_p", 1e-6, 1.0),
        max(0, read_integer(body, "top_k", -1) or 0),
        _read_ids(body.get("stop_token_ids") or [], "stop_token_ids", vocab_size),
        read_integer(body, "seed", -(2**63)),
        min_p=read_number(body, "min_p", 0.0, 1.0) if body.get("min_p") is not None else 0.0,
    )
    prompt_ids = _read_ids(body.get("prompt"), "prompt", vocab_size)
    if not prompt_ids:
        raise invalid_request("'prompt' must not be empty.", "prompt")
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
    refused |= {name: bool(body.get(name)) for name in _BENDING}
    refused |= {"n": body.get("n") not in (None, 1)}
    refused |= {"ignore_eos": body.get("ignore_eos") is not True, "return_token_ids": not body.get("return_token_ids")}
    for param, present in refused.items():
        if present:
            message = f"{param!r} with this value is not supported: this route takes token ids and returns token ids."
            raise invalid_request(message, param, "unsupported_parameter")


def _read_ids(value: Any, param: str, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        type(token_id) is int and 0 <= token_id < vocab_size for token_id in value
    ):
        raise invalid_request(f"{param!r} must be a list of token ids below {vocab_size}.", param)
    return tuple(value)
