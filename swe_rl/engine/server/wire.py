"""Says what goes to a vLLM server for one completion, and what its answer means. It is pure.

Invariants:
- Every sampling parameter that a model folder's generation_config could change is sent.
- Generation ends at the given stop tokens only (`ignore_eos`): the same rule as the embedded engine's.
- Answers of 500 and above are the server's failure; a refusal for length is a ContextOverflowError; any other refusal
  is an EngineError.
- A reply whose tokens were sampled with different weights has no version.
- A reply with another number of log-probabilities than tokens, with one that no float32 sampler gives (vLLM writes
  -9999 for NaN and minus infinity; none is above 0), or with a token that the model does not have, is an error, never a
  completion: trained on, it would spoil the policy, and sent back with the next turn, it fails there.
- Where experts are wanted, a reply without them, with those of another number of tokens, with one that the model does
  not have, or with the same one twice for a token is an error. (vLLM answers with zeros if its kernel chooses the
  experts itself, and for layers without experts.) They come as base64 of NumPy's own format (vLLM's `routed_experts`),
  and are no pickle.
"""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from swe_rl.algo.row import ROUNDING_NATS, Routes, find_unsound_logprob
from swe_rl.engine.engine import Completion, ContextOverflowError, EngineError, FinishReason, SamplingParams
from swe_rl.engine.server.client import ServerAnswer, ServerFailingError
from swe_rl.engine.token_ids import TokenIds
from swe_rl.model.experts import route_type

ADAPTER_ROUTE = "/v1/load_lora_adapter"
_ROUTES_FROM = "routed_experts_prompt_start"
# A server takes a signed 64-bit integer.
_SEED_MASK = 2**63 - 1
# vLLM writes -9999 for NaN and minus infinity; a float32 sampler gives nothing near it.
_LOWEST_LOGPROB = -9000.0
# Ids are 32-bit integers everywhere.
_LARGEST_VOCABULARY = 2**31
# A server refuses by these statuses what a request says.
_OF_REQUEST = (400, 413, 422)
# A server says by these that it has too much to do.
_BUSY = (429, 503)
_OVERFLOW_WORDS = ("maximum context length", "maximum model length", "max_model_len")


class BadReplyError(EngineError):
    """A server answered, and not with a completion that can be used."""


class BadNumbersError(BadReplyError):
    """What it answered has the form of a completion, and numbers that no sound model gives."""


class MixedError(Exception):
    """A reply whose tokens were sampled with different weights."""


class TokenIn(StrEnum):
    """The two ways to send token ids. Only `completions` tells queue, prefill and decode times apart."""

    completions = "/v1/completions"
    generate = "/inference/v1/generate"


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's reply. `version_spans` are (weight version, first token, end token); empty where it does not tell."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    cached_tokens: int | None
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    version_spans: tuple[tuple[str, int, int], ...] = ()
    routes: Routes | None = None

    def completion(self, version: int, elapsed_s: float, *, waited_s: float) -> Completion:
        """Returns the completion. It was sent `elapsed_s` ago, and had waited for `waited_s` before."""
        queue_s = self.queue_s or 0.0
        prefill_s = self.prefill_s or 0.0
        return Completion(
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
            weight_version=version,
            cached_tokens=self.cached_tokens or 0,
            queue_s=waited_s + queue_s,
            prefill_s=prefill_s,
            decode_s=max(0.0, elapsed_s - queue_s - prefill_s) if self.decode_s is None else self.decode_s,
            routes=self.routes,
        )


def request_body(
    kind: TokenIn,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    model: str,
    request_id: str,
    cache_salt: str | None = None,
    routes: bool = False,
) -> dict[str, Any]:
    """Returns the body of a request. `cache_salt` keeps cached prefixes apart by weight version.

    With `routes` the reply is to tell of experts, and only of those that are not known.
    """
    sampling = _sampling_fields(params) | ({_ROUTES_FROM: params.routes_from} if routes and params.routes_from else {})
    if isinstance(prompt_ids, list | tuple | TokenIds):
        prompt = prompt_ids
    else:
        prompt = list(prompt_ids)
    body: dict[str, Any] = {"model": model, "request_id": request_id}
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    if kind is TokenIn.generate:
        return {**body, "token_ids": prompt, "sampling_params": {**sampling, "detokenize": False}}
    return {**body, **sampling, "prompt": prompt, "return_token_ids": True, "stream": False}


def server_request_id(kind: TokenIn, request_id: str) -> str:
    """Returns the id under which vLLM can abort the request (seen in 0.26 to 0.32)."""
    if kind is TokenIn.generate:
        return f"generate-tokens-{request_id}"
    return f"cmpl-{request_id}-0"


def parse_reply(
    kind: TokenIn,
    payload: object,
    *,
    vocab_size: int | None = None,
    prompt_tokens: int = 0,
    num_experts: int = 0,
    routes_from: int = 0,
) -> Reply:
    """Returns the reply. Raises BadReplyError for anything that is not one completion with ids and log-probabilities.

    `vocab_size` None: not known. `num_experts` is that of a model whose experts the reply has to tell, of all tokens
    (as /v1/completions of vLLM 0.26 does) or from the token `routes_from` on; 0: it need not.
    """
    try:
        reply = _parse_reply(kind, payload, vocab_size or _LARGEST_VOCABULARY)
        if not num_experts or not reply.token_ids:
            return reply
        packed: Any = payload
        routes = _unpack_routes(packed["choices"][0].get("routed_experts"), num_experts)
        read = prompt_tokens + len(reply.token_ids) - 1
        if len(routes) not in (read, read - routes_from):
            raise BadReplyError(f"it read {read} tokens, and tells the experts of {len(routes)}")
        return replace(reply, routes=routes[len(routes) - read + routes_from :])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadReplyError(f"it answered with something that is not a completion ({type(error).__name__})") from error


def weight_version(name: str) -> int | None:
    """Returns the number that `update_weights` gave; None for a name that somebody else gave."""
    if name.isdecimal():
        return int(name)
    return None


def _sampling_fields(params: SamplingParams) -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": True,
        # It is that of the sampled token only.
        "logprobs": 0,
    }
    if params.seed is not None:
        sampling["seed"] = params.seed & _SEED_MASK
    return sampling


def _parse_reply(kind: TokenIn, payload: Any, vocab_size: int) -> Reply:
    choice = payload["choices"][0]
    token_ids = choice["token_ids"]
    if token_ids is None:
        raise BadReplyError("it does not return token ids")
    logprobs_field = choice["logprobs"]
    if logprobs_field is None and token_ids:
        raise BadReplyError("it does not return log-probabilities")
    # It was aborted before its first token.
    if not token_ids:
        logprobs: list[float] = []
    elif kind is TokenIn.generate:
        logprobs = [entry["logprob"] for entry in logprobs_field["content"]]
    else:
        logprobs = logprobs_field["token_logprobs"]
    _check_tokens(token_ids, vocab_size)
    _check_logprobs(logprobs, len(token_ids))
    details = (payload.get("usage") or {}).get("prompt_tokens_details") or {}
    times = payload.get("metrics") or {}
    return Reply(
        token_ids=tuple(token_ids),
        logprobs=tuple(min(0.0, float(logprob)) for logprob in logprobs),
        finish_reason=_finish_reason(choice["finish_reason"]),
        cached_tokens=_valid_count(details.get("cached_tokens")),
        queue_s=_read_seconds(times, "queue_time_ms"),
        # This time counts from the first scheduling on, despite its name.
        prefill_s=_read_seconds(times, "time_to_first_token_ms"),
        decode_s=_read_seconds(times, "generation_time_ms"),
        version_spans=tuple(
            (str(span["version"]), int(span["start"]), int(span["end"])) for span in choice.get("weight_versions") or ()
        ),
    )


def _unpack_routes(packed: Any, num_experts: int) -> Routes:
    """Returns [tokens, layers, experts]. Raises what NumPy raises, and BadReplyError."""
    if packed is None:
        raise BadReplyError(
            "it does not tell which experts its tokens went to, which trainer.routing_replay needs: start it with "
            "--enable-return-routed-experts"
        )
    numbers = np.load(io.BytesIO(base64.b64decode(packed)), allow_pickle=False)
    if numbers.ndim != 3 or numbers.dtype.kind not in "iu" or (numbers < 0).any() or (numbers >= num_experts).any():
        raise BadNumbersError(f"it tells of experts outside 0 .. {num_experts - 1} (model.num_experts)")
    # Two tokens show it; to sort all would cost a long reply time.
    ends = numbers[:: max(1, len(numbers) - 1)]
    repeats = (np.diff(np.sort(ends)) == 0).any(axis=(0, 2))
    if repeats.any():
        why = f"{repeats.sum()} of the model's {len(repeats)} layers have no experts, and cannot be replayed: set"
        if repeats.all():
            why = "its kernel chooses the experts itself and does not report them. Start it with another "
            why += "--moe-backend, for example triton, or set"
        raise BadReplyError(f"it tells the same expert twice for one token: {why} trainer.routing_replay=none")
    routes: Routes = numbers.astype(route_type(num_experts))
    return routes


def _check_tokens(token_ids: Sequence[Any], vocab_size: int) -> None:
    if not all(type(token) is int for token in token_ids):
        raise BadReplyError("it answered with token ids that are no integers")
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        at, token = next((at, token) for at, token in enumerate(token_ids) if not 0 <= token < vocab_size)
        raise BadNumbersError(
            f"its token {at} is {token}, outside 0 .. {vocab_size - 1} (model.vocab_size): it serves another model, or "
            "its answer was damaged"
        )


def _check_logprobs(logprobs: Sequence[Any], num_tokens: int) -> None:
    if num_tokens != len(logprobs):
        raise BadReplyError(f"it answered with {num_tokens} tokens and {len(logprobs)} log-probabilities")
    for at, logprob in enumerate(logprobs):
        if not isinstance(logprob, int | float) or not math.isfinite(logprob) or logprob < _LOWEST_LOGPROB:
            raise BadNumbersError(
                f"the log-probability of its token {at} is {logprob}: the model's logits are not finite"
            )
    if (wrong := find_unsound_logprob([float(logprob) for logprob in logprobs])) is not None:
        raise BadNumbersError(
            f"the log-probability of its token {wrong} is {logprobs[wrong]}, above 0, and at most 0 was expected "
            f"(up to {ROUNDING_NATS:g} is taken for rounding)"
        )


def _finish_reason(reason: object) -> FinishReason:
    if reason == "stop":
        return "stop"
    if reason == "length":
        return "length"
    if reason == "abort":
        return "abort"
    raise BadReplyError(f"it ended the request with finish_reason {reason!r}")


def _valid_count(count: object) -> int | None:
    if type(count) is int and count >= 0:
        return count
    return None


def _read_seconds(times: Mapping[str, Any], key: str) -> float | None:
    value = times.get(key)
    if value is None or not math.isfinite(value):
        return None
    return max(0.0, float(value)) / 1000.0


def as_reply(
    answer: ServerAnswer,
    token_in: TokenIn,
    url: str,
    prompt_tokens: int,
    vocab_size: int | None,
    num_experts: int = 0,
    routes_from: int = 0,
) -> Reply:
    """Returns the reply of an answer. Raises ContextOverflowError, ServerFailingError, EngineError."""
    if answer.ok:
        sizes = {"prompt_tokens": prompt_tokens, "num_experts": num_experts, "routes_from": routes_from}
        return parse_reply(token_in, answer.json(), vocab_size=vocab_size, **sizes)
    reason = answer.reason()
    if answer.status == 400 and any(words in reason for words in _OVERFLOW_WORDS):
        raise ContextOverflowError(f"{prompt_tokens} prompt tokens do not fit: {reason}")
    kind = EngineError
    if answer.status >= 500:
        kind = ServerFailingError
    error = kind(f"{url} answered {answer.status}: {reason}")
    error.of_request = answer.status in _OF_REQUEST
    if answer.status in _BUSY:
        error.retry_after_s = answer.retry_after_s
    raise error


def version_of(reply: Reply, sent: int) -> int:
    """Returns what the server tells of the tokens, or else `sent`, the version that it had when the request was sent.

    Raises MixedError.
    """
    names = list(dict.fromkeys(name for name, _, _ in reply.version_spans))
    if len(names) > 1:
        raise MixedError(f"its weights change while it replies, every time: {', '.join(names)} in one reply")
    version = None
    if names:
        version = weight_version(names[0])
    if version is None:
        return sent
    return version


def check_room(engine: str, request_id: str, prompt_ids: Sequence[int], limit: int) -> None:
    """Checks a prompt; `limit` is for tokens of prompt and reply together. Raises EngineError, ContextOverflowError."""
    if not prompt_ids:
        raise EngineError(f"Engine `{engine}` refuses request `{request_id}`: its prompt is empty.")
    if len(prompt_ids) + 1 > limit:
        raise ContextOverflowError(
            f"Request `{request_id}` has a prompt of {len(prompt_ids)} tokens, which leaves no room to sample "
            f"within engine.max_model_len={limit}."
        )


def fit_room(params: SamplingParams, room: int) -> SamplingParams:
    """Returns the parameters for `room` tokens at most."""
    if params.max_tokens <= room:
        return params
    return replace(params, max_tokens=room)
