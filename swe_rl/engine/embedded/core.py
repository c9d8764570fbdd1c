"""Schedules the embedded engine: continuous batching as a plain object, one `step` at a time.

Invariants:
- It is single-threaded and without I/O: `EngineThread` drives it. Between steps every request is consistent, so aborts,
  pauses and weight updates happen there and nowhere else.
- A step is one prefill pass (at most `PREFILL_BUDGET_TOKENS`, first come first served) and one decode pass over all
  running requests. Where a prompt is split between steps changes no bit of what follows.
- New weights send running requests back to the queue with what they have sampled: its keys are computed anew, and the
  next tokens are drawn with the next numbers of the same seed.
- A request is touched by the engine's thread only, once it was handed over; its outcome is delivered exactly once.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from swe_rl.engine.embedded.decoder import Cache, Decoder, PrefillSpan, Slot
from swe_rl.engine.engine import Completion, EngineError, EngineStats, FinishReason, SamplingParams
from swe_rl.engine.sampling import SamplingBatch, sample_tokens
from swe_rl.model.experts import HubNamed
from swe_rl.model.stored_names import stored_names, untrained_names

Outcome = Completion | EngineError


@dataclass(slots=True, eq=False)
class SamplingRequest:
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
    # There is one version a token.
    versions: list[int] = field(default_factory=list)
    # This is what is prefilled: the prompt, and what older weights sampled.
    context: npt.NDArray[np.int64] = field(init=False)
    # In a mixture, where asked, these are the routes of the positions before the last interruption.
    routes: npt.NDArray[Any] | None = None
    # It is set when new weights come, until the next token.
    interrupted_s: float | None = None
    # New weights have cost so many seconds so far.
    lost_s: float = 0.0

    def __post_init__(self) -> None:
        self.context = self.prompt

    @property
    def prefilling(self) -> bool:
        return self.prefilled_tokens < len(self.context)

    def interrupt(self, now_s: float, written: npt.NDArray[Any] | None) -> None:
        """Sends the request back to the queue, with what it has sampled. `written` are the routes of the positions in
        its slot.
        """
        if self.token_ids and written is not None:
            self.routes = self._whole_routes(written)
        self.slot = None
        self.prefilled_tokens = 0
        # A request without tokens counts as if it had been waiting all the time, which is what its `queue_s` will say.
        if not self.token_ids:
            self.admitted_s = None
            self.cached_tokens = 0
            return
        self.context = np.concatenate([self.prompt, np.array(self.token_ids, dtype=np.int64)])
        if self.interrupted_s is None:
            self.interrupted_s = now_s
        else:
            self.interrupted_s = self.interrupted_s

    def accept(self, token: int, logprob: float, now_s: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now_s
        if self.interrupted_s is not None:
            self.lost_s += now_s - self.interrupted_s
            self.interrupted_s = None
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(self.weight_version)

    def finish_reason(self, max_model_len: int) -> FinishReason | None:
        """Returns why sampling ends here; None while there is more to sample. A stop token wins over a limit that it
        reaches.
        """
        if self.token_ids[-1] in self.stop_ids:
            return "stop"
        full = len(self.prompt) + len(self.token_ids) >= max_model_len
        if full or len(self.token_ids) >= self.params.max_tokens:
            return "length"
        return None

    def _whole_routes(self, written: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the routes with which tokens were sampled.

        What older weights routed stays, though its keys were computed anew.
        """
        if self.routes is not None:
            kept = self.routes
        else:
            kept = written[:0]
        return np.concatenate([kept, written[len(kept) :]])

    def completion(
        self, reason: FinishReason, now_s: float, current_version: int, written: npt.NDArray[Any] | None = None
    ) -> Completion:
        """Returns what was sampled so far.

        `current_version` counts only for a request that has no token; `written` is as in `interrupt`.
        """
        if self.admitted_s is None:
            admitted_s = now_s
        else:
            admitted_s = self.admitted_s
        if self.first_token_s is None:
            first_s = now_s
        else:
            first_s = self.first_token_s
        lost_s = self.lost_s + (now_s - self.interrupted_s if self.interrupted_s is not None else 0.0)
        return Completion(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish_reason=reason,
            weight_version=self.versions[-1] if self.versions else current_version,
            cached_tokens=self.cached_tokens,
            queue_s=admitted_s - self.arrived_s + lost_s,
            prefill_s=first_s - admitted_s,
            decode_s=now_s - first_s - lost_s,
            token_versions=tuple(self.versions) if len(set(self.versions)) > 1 else (),
            routes=None if written is None else self._whole_routes(written),
        )


def refuse_request(prompt: npt.NDArray[np.int64], params: SamplingParams, vocab_size: int) -> str | None:
    """Returns why a request cannot be served at all, or None."""
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
    if not 0.0 <= params.min_p <= 1.0:
        return f"min_p is {params.min_p}, not within [0, 1]"
    if params.top_k < 0:
        return f"top_k is {params.top_k}, not >= 0"
    return None


# One prefill pass takes at most this many tokens, so that a long prompt does not stop the other requests' tokens for
# long.
PREFILL_BUDGET_TOKENS = 1024


class WeightLoader:
    """Copies new weights into the model, in place.

    - All names and shapes are checked before the first value is written: a refused update changes nothing.
    - Names are the hub's: each expert of a mixture has tensors of its own.
    - Tied parameters are one tensor with several names: any one of them will do, and all that are given must agree.
    """

    def __init__(self, model: Any) -> None:
        layout = stored_names(model)
        self._targets: dict[str, torch.Tensor] = dict(HubNamed(model.state_dict(), layout))
        self._names_by_storage: dict[int, list[str]] = {}
        # A trainer sends what it trains: parameters, and no buffers.
        for name in self._targets.keys() - untrained_names(model, layout):
            self._names_by_storage.setdefault(self._targets[name].data_ptr(), []).append(name)

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copies `weights`; raises EngineError naming the first mismatch."""
        self._require_known(weights)
        for names in self._names_by_storage.values():
            self._require_given(names, weights)
        with torch.no_grad():
            for name, value in weights.items():
                self._targets[name].copy_(value)

    def _require_known(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name, value in weights.items():
            target = self._targets.get(name)
            if target is None:
                raise EngineError(f"Weight update refused: the engine's model has no parameter `{name}`.")
            if target.shape != value.shape:
                raise EngineError(
                    f"Weight update refused: `{name}` has shape {list(value.shape)}, the engine's model has "
                    f"{list(target.shape)}."
                )

    def _require_given(self, names: list[str], weights: Mapping[str, torch.Tensor]) -> None:
        given = [name for name in names if name in weights]
        if not given:
            raise EngineError(f"Weight update refused: `{names[0]}` is missing.")
        for name in given[1:]:
            if not torch.equal(weights[given[0]], weights[name]):
                raise EngineError(f"Weight update refused: `{given[0]}` and `{name}` are tied but their values differ.")


class EngineCore:
    def __init__(
        self,
        decoder: Decoder[Any],
        loader: WeightLoader,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self._decoder = decoder
        self._loader = loader
        self._max_model_len = max_model_len
        self._cache: Cache = decoder.make_cache(max_num_seqs, max_model_len)
        self._waiting: deque[SamplingRequest] = deque()
        self._running: list[SamplingRequest] = []
        self.paused = False
        self.weight_version = 0
        self._sampled_tokens = 0
        self._prefill_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def submit(self, request: SamplingRequest) -> None:
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        for request in [*self._waiting, *self._running]:
            if request.request_id == request_id:
                self._abort(request)

    def abort_request(self, request: SamplingRequest) -> None:
        if request in self._waiting or request in self._running:
            self._abort(request)

    def fail_all(self, error: EngineError) -> None:
        """Ends every pending request with an error of its own that says what `error` says."""
        pending = [*self._waiting, *self._running]
        self._waiting.clear()
        self._running.clear()
        for request in pending:
            failure = EngineError(str(error))
            failure.__cause__ = error.__cause__
            request.deliver(failure)

    def release_session(self, session_id: str) -> None:
        self._cache.release_session(session_id)

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Raises EngineError, with nothing changed, when names or shapes differ."""
        self._loader.load(weights)
        self._decoder.pack()
        self._interrupt_running()
        self._cache.invalidate()
        self.weight_version = version

    def _interrupt_running(self) -> None:
        """Sends running requests back to the queue: their keys are not of the new weights."""
        now_s = time.monotonic()
        for request in reversed(self._running):
            assert request.slot is not None
            slot = request.slot
            request.interrupt(now_s, self._cache.routed(slot))
            self._cache.finish(slot)
            self._waiting.appendleft(request)
        self._running.clear()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_used_tokens=self._cache.held_tokens(),
            kv_capacity_tokens=len(self._cache.slots) * self._max_model_len,
            weight_version=self.weight_version,
            sampled_tokens_total=self._sampled_tokens,
            prefill_tokens_total=self._prefill_tokens,
        )

    def step(self) -> None:
        """Makes one prefill pass and one decode pass, and delivers finished requests."""
        self._admit()
        decoding = [request for request in self._running if not request.prefilling]
        self._prefill()
        if decoding:
            self._decode(decoding)

    def _admit(self) -> None:
        """Moves waiting requests to slots. One that a running prefill will save most of its own stays for a step."""
        budget = PREFILL_BUDGET_TOKENS - sum(len(r.context) - r.prefilled_tokens for r in self._running)
        kept: deque[SamplingRequest] = deque()
        while self._waiting and budget > 0 and len(self._running) < len(self._cache.slots):
            request = self._waiting.popleft()
            acquired = self._cache.acquire(request.context, request.session_id)
            if acquired is None:
                kept.append(request)
                continue
            request.slot, request.prefilled_tokens = acquired
            request.weight_version = self.weight_version
            if request.admitted_s is None:
                request.admitted_s = time.monotonic()
                request.cached_tokens = request.prefilled_tokens
            self._running.append(request)
            budget -= len(request.context) - request.prefilled_tokens
        self._waiting.extendleft(reversed(kept))

    def _prefill(self) -> None:
        requests = []
        spans = []
        budget = PREFILL_BUDGET_TOKENS
        for request in self._running:
            if not request.prefilling:
                continue
            end = len(request.context)
            if self._decoder.cuts_prompts:
                end = min(end, request.prefilled_tokens + budget)
            if budget <= 0:
                break
            assert request.slot is not None
            ids = request.context[request.prefilled_tokens : end].tolist()
            spans.append(PrefillSpan(request.slot.index, request.prefilled_tokens, ids))
            requests.append(request)
            budget -= len(ids)
        if not spans:
            return
        logits = self._decoder.prefill(spans, self._cache)
        for request, span in zip(requests, spans, strict=True):
            assert request.slot is not None
            self._cache.prefilled(request.slot, span.end)
            request.prefilled_tokens = span.end
            self._prefill_tokens += len(span.ids)
        done = [i for i, request in enumerate(requests) if not request.prefilling]
        if done:
            self._sample([requests[i] for i in done], logits[done])

    def _decode(self, requests: Sequence[SamplingRequest]) -> None:
        slots = [request.slot for request in requests if request.slot is not None]
        positions = [slot.length for slot in slots]
        ids = [request.token_ids[-1] for request in requests]
        logits = self._decoder.decode([slot.index for slot in slots], positions, ids, self._cache)
        for slot in slots:
            slot.length += 1
        self._sample(requests, logits)

    def _sample(self, requests: Sequence[SamplingRequest], logits: torch.Tensor) -> None:
        batch = SamplingBatch(
            temperature=np.array([r.params.temperature for r in requests], dtype=np.float32),
            top_p=np.array([r.params.top_p for r in requests], dtype=np.float64),
            top_k=np.array([r.params.top_k for r in requests], dtype=np.int64),
            seed=np.array([r.seed for r in requests], dtype=np.uint64),
            draw=np.array([len(r.token_ids) for r in requests], dtype=np.uint64),
            min_p=np.array([r.params.min_p for r in requests], dtype=np.float64),
        )
        tokens, logprobs = sample_tokens(logits, batch)
        self._sampled_tokens += len(tokens)
        now_s = time.monotonic()
        for request, token, logprob in zip(requests, tokens, logprobs, strict=True):
            self._accept(request, token, logprob, now_s)

    def _accept(self, request: SamplingRequest, token: int, logprob: float, now_s: float) -> None:
        assert request.slot is not None
        request.accept(token, logprob, now_s)
        reason = request.finish_reason(self._max_model_len)
        if reason is None:
            self._cache.append(request.slot, token)
            return
        self._running.remove(request)
        completion = request.completion(reason, now_s, self.weight_version, self._cache.routed(request.slot))
        self._cache.finish(request.slot)
        request.deliver(completion)

    def _abort(self, request: SamplingRequest) -> None:
        if request.slot is not None:
            self._running.remove(request)
            self._cache.finish(request.slot)
        else:
            self._waiting.remove(request)
        request.deliver(request.completion("abort", time.monotonic(), self.weight_version))
