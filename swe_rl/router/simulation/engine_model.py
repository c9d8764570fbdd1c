"""This module models one engine: continuous batching, chunked prefill, a paged cache with prefixes, preemption by
recomputation.

Invariants:
- Every request that was submitted finishes once, with all its tokens; the blocks held never exceed the capacity.
- Requests run in the order of their admission; the youngest is preempted first and comes back first.
- While nothing is prefilled the engine jumps to the end of the first sequence, or to the step that lacks blocks: the
  result is the same as step by step. An arrival ends the jump after the step under way.
- `computed` tokens have their keys and values in the cache. The newest sampled token never has.
- A preempted request keeps what it sampled and computes it again as if it were prompt; so does one that new weights
  interrupt.
- What the host's memory has of a prompt is copied beside the step that computes the rest: all copies of a step share
  the bus, and the step lasts as long as the slower of the two.
"""

import heapq
from bisect import bisect_right
from collections import Counter, deque
from dataclasses import dataclass, field, replace

from swe_rl.errors import UserError
from swe_rl.plan.engine_speed import EngineSpeed
from swe_rl.router.core import EngineLoad
from swe_rl.router.simulation.blocks import BLOCK_TOKENS, BlockCache, Chain, ChainPart, SimulatedTier


class SimulationTooSmall(UserError):
    """A trajectory does not fit into an engine."""


@dataclass(eq=False, slots=True)
class SimulatedRequest:
    request_id: str
    program_id: str
    chain: Chain
    prompt_tokens: int
    out_tokens: int
    arrived_s: float = 0.0
    known_tokens: int = 0  # The program computed so many tokens at some time, here or elsewhere.
    sampled: int = 0
    computed: int = 0
    # The request found so many tokens at its first start; -1 before it.
    cached_tokens: int = -1
    placed: bool = False
    parts: list[ChainPart] = field(default_factory=list)
    # Counts tokens that were sampled by weights that are no more, by their version.
    older: Counter[int] = field(default_factory=Counter)
    # The engine's count of decoding steps was this when the request began to decode; -1 while it does not.
    decoding_from: int = -1

    @property
    def target_tokens(self) -> int:
        """Returns how many tokens prefill must compute before the next token can be sampled."""
        return self.prompt_tokens + self.sampled


@dataclass(frozen=True, slots=True)
class EngineLimits:
    kv_capacity_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int = 8192
    prefix_caching: bool = True
    # The tier in the host's memory holds so many; 0: there is none.
    host_tokens: int = 0


def require_room(longest_tokens: int, limits: EngineLimits) -> None:
    """Raises SimulationTooSmall if the longest trajectory does not fit into an engine."""
    if longest_tokens > limits.kv_capacity_tokens // BLOCK_TOKENS * BLOCK_TOKENS:
        raise SimulationTooSmall(
            f"a trajectory of {longest_tokens} tokens does not fit into an engine's {limits.kv_capacity_tokens} tokens "
            "of keys and values: make rollout.max_trajectory_tokens smaller, or give an engine more memory "
            "(layout.engine_tp, engine.gpu_memory_utilization)"
        )


@dataclass(slots=True)
class EngineCounts:
    """Counts an engine's work. `recomputed_tokens` were prefilled though the program had computed them before."""

    busy_s: float = 0.0
    steps: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    sampled_tokens: int = 0
    preemptions: int = 0


class EngineModel:
    def __init__(self, name: str, speed: EngineSpeed, limits: EngineLimits) -> None:
        self.name = name
        self.cache = BlockCache(limits.kv_capacity_tokens // BLOCK_TOKENS)
        self.host = SimulatedTier(limits.host_tokens // BLOCK_TOKENS if limits.prefix_caching else 0)
        self.counts = EngineCounts()
        # The steps under way end at this time; None while the engine is idle.
        self.end_s: float | None = None
        self.is_interrupted = False  # New weights are on their way.
        self._speed = speed
        self._limits = limits
        self._waiting: deque[SimulatedRequest] = deque()
        self._running: dict[str, SimulatedRequest] = {}  # Requests are in the order of their admission.
        self._chunks: list[tuple[SimulatedRequest, int]] = []  # Has the prefills of the step under way.
        self._loaded_tokens = 0  # Counts what is copied from the host during the step under way.
        self._start_s = 0.0
        self._steps = 0  # So many steps are under way from `_start_s` on.
        self._decodes = 0
        self._context_tokens = 0  # Sums over all requests that decode.
        self._decode_steps = 0  # Counts from the beginning.
        # Counts the decoding requests by the step, modulo a block, that needs a new block.
        self._phases = [0] * BLOCK_TOKENS
        # An entry is (decode step, order, request). Those of preempted requests are stale.
        self._ends: list[tuple[int, int, SimulatedRequest]] = []
        self._order = 0

    def submit(self, request: SimulatedRequest, now_s: float) -> None:
        """Gives the engine a request. It is considered at the end of the step under way, which `end_s` then tells."""
        if not self._limits.prefix_caching:
            request.chain = replace(request.chain, system_blocks=0, shared_blocks=0)
        self._waiting.append(request)
        if self.end_s is not None and self._steps > 1 and len(self._running) < self._limits.max_num_seqs:
            self._settle(now_s)
            self._steps = 1
            self.end_s = max(now_s, self._start_s + self._duration_s(1))

    def load(self, now_s: float) -> EngineLoad:
        self._settle(now_s)
        return EngineLoad(
            engine=self.name,
            running=len(self._running),
            waiting=len(self._waiting),
            kv_used_tokens=self.cache.used * BLOCK_TOKENS,
            kv_capacity_tokens=self.cache.capacity * BLOCK_TOKENS,
            preemptions_total=self.counts.preemptions,
            host_capacity_tokens=self.host.capacity * BLOCK_TOKENS,
        )

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def busy_s(self, now_s: float) -> float:
        """Returns the seconds in which the engine computed since the beginning."""
        return self.counts.busy_s + (now_s - self._start_s if self.end_s is not None else 0.0)

    def interrupt(self, now_s: float, version: int) -> None:
        """Takes away the weights of `version`. The step under way is lost, and nothing outlives them in the cache.
        Requests go on in their order once the engine is started again."""
        self._settle(now_s)
        self.counts.busy_s = self.busy_s(now_s)
        self.end_s = None
        self._steps = 0
        self.is_interrupted = True
        self._chunks.clear()
        self._loaded_tokens = 0
        while self._running:
            self._put_back()
        self._ends.clear()
        for request in self._waiting:
            request.older[version] += request.sampled - sum(request.older.values())
        self.cache.flush()
        self.host.flush()

    def finish_steps(self) -> list[SimulatedRequest]:
        """Ends the steps that were under way until `end_s`. Returns the requests that they finished."""
        assert self.end_s is not None
        self.counts.busy_s += self.end_s - self._start_s
        self._apply(self._steps)
        self.end_s = None
        self._steps = 0
        finished = self._finish_decodes()
        for request, tokens in self._chunks:
            request.computed += tokens
            if request.computed == request.target_tokens:
                self._sample_first(request, finished)
        self._chunks.clear()
        self._loaded_tokens = 0
        return finished

    def start_steps(self, now_s: float) -> None:
        """Decides what the next step computes, or the next steps if only decoding is left. Sets `end_s`."""
        preemptions = self.counts.preemptions
        self._make_room_to_decode()
        budget = self._limits.max_num_batched_tokens - self._decodes
        budget = self._continue_prefills(budget)
        preempted = self.counts.preemptions > preemptions
        if not preempted:
            self._admit(budget)
        if not self._running:
            return
        self._start_s = now_s
        self._steps = 1 if self._chunks or preempted else self._longest_jump()
        self.end_s = now_s + self._duration_s(self._steps)

    # -- time

    def _duration_s(self, steps: int) -> float:
        prefill_tokens = sum(tokens for _, tokens in self._chunks)
        pairs = sum(tokens * request.computed + tokens * (tokens + 1) // 2 for request, tokens in self._chunks)
        computed_s = self._speed.step_s(self._decodes, self._context_tokens, prefill_tokens, pairs)
        first_s = max(computed_s, self._speed.copy_s * self._loaded_tokens)
        growth = self._decodes * (steps * (steps - 1) // 2)
        return steps * first_s + self._speed.kv_read_s * growth

    def _settle(self, now_s: float) -> None:
        """Accounts for the whole steps of a jump that are over by now; the one under way stays."""
        if self.end_s is None or self._steps < 2:
            return
        over = bisect_right(range(1, self._steps), now_s - self._start_s, key=self._duration_s)
        if over:
            duration_s = self._duration_s(over)
            self._apply(over)
            self._steps -= over
            self._start_s += duration_s
            self.counts.busy_s += duration_s

    def _apply(self, steps: int) -> None:
        """Counts so many steps of decoding."""
        self.counts.steps += steps
        self.cache.take(self._blocks_to_decode(steps))
        self._decode_steps += steps
        self._context_tokens += self._decodes * steps
        self.counts.sampled_tokens += self._decodes * steps

    def _longest_jump(self) -> int:
        while self._ends[0][2].decoding_from < 0:
            heapq.heappop(self._ends)
        until_end = self._ends[0][0] - self._decode_steps
        whole, left = divmod(self.cache.available, self._decodes)
        steps = whole * BLOCK_TOKENS
        while steps < until_end:
            left -= self._phases[(self._decode_steps + steps) % BLOCK_TOKENS]
            if left < 0:
                break
            steps += 1
        return min(steps, until_end)

    # -- decoding

    def _blocks_to_decode(self, steps: int) -> int:
        whole, rest = divmod(steps, BLOCK_TOKENS)
        first = self._decode_steps
        return whole * self._decodes + sum(self._phases[(first + step) % BLOCK_TOKENS] for step in range(rest))

    def _sample_first(self, request: SimulatedRequest, finished: list[SimulatedRequest]) -> None:
        """Samples a request's first token, at the end of its prefill."""
        self.counts.sampled_tokens += 1
        request.sampled += 1
        if request.sampled == request.out_tokens:
            self._leave(request)
            finished.append(request)
            return
        request.decoding_from = self._decode_steps
        self._decodes += 1
        self._context_tokens += request.computed
        self._phases[(self._decode_steps - request.computed) % BLOCK_TOKENS] += 1
        self._order += 1
        end = self._decode_steps + request.out_tokens - request.sampled
        heapq.heappush(self._ends, (end, self._order, request))

    def _finish_decodes(self) -> list[SimulatedRequest]:
        finished = []
        while self._ends and self._ends[0][0] <= self._decode_steps:
            end, _, request = heapq.heappop(self._ends)
            if request.decoding_from >= 0 and end == request.decoding_from + request.out_tokens - request.sampled:
                self._stop_decoding(request)
                self._leave(request)
                finished.append(request)
        return finished

    def _stop_decoding(self, request: SimulatedRequest) -> None:
        """Gives the request the tokens and blocks that were counted for the whole batch."""
        self._phases[(request.decoding_from - request.computed) % BLOCK_TOKENS] -= 1
        steps = self._decode_steps - request.decoding_from
        request.computed += steps
        request.known_tokens = request.computed
        request.sampled += steps
        request.decoding_from = -1
        self._decodes -= 1
        self._context_tokens -= request.computed
        new_tokens = request.parts[2]
        new_tokens.resident = request.chain.bounds(request.computed)[2]

    def _make_room_to_decode(self) -> None:
        while self._decodes and self._blocks_to_decode(1) > self.cache.available:
            self._preempt()

    # -- prefill

    def _continue_prefills(self, budget: int) -> int:
        """Computes chunks for requests that were admitted before. Returns what is left of the budget."""
        for request in [waiting for waiting in self._running.values() if waiting.decoding_from < 0]:
            tokens = min(budget, request.target_tokens - request.computed)
            if tokens <= 0 or not self._room_for_chunk(request, tokens):
                break
            self._take_chunk(request, tokens)
            budget -= tokens
        return budget

    def _room_for_chunk(self, request: SimulatedRequest, tokens: int) -> bool:
        """Preempts younger requests to make room. Returns False if the request was preempted itself."""
        while self._missing(request, request.computed + tokens) + self._blocks_to_decode(1) > self.cache.available:
            self._preempt()
            if request.request_id not in self._running:
                return False
        return True

    def _missing(self, request: SimulatedRequest, tokens: int) -> int:
        """Counts the blocks that the first `tokens` of the sequence lack."""
        bounds = request.chain.bounds(tokens)
        return sum(
            max(0, need - self.cache.resident(key)) for need, key in zip(bounds, request.chain.keys, strict=True)
        )

    def _take_chunk(self, request: SimulatedRequest, tokens: int) -> None:
        bounds = request.chain.bounds(request.computed + tokens)
        for need, part in zip(bounds, request.parts, strict=True):
            if need > part.resident:
                self.cache.grow(part, need - part.resident)
        self._chunks.append((request, tokens))
        self.counts.prefill_tokens += tokens
        end = request.computed + tokens
        self.counts.recomputed_tokens += max(0, min(end, request.known_tokens) - request.computed)
        request.known_tokens = max(end, request.known_tokens)

    def _admit(self, budget: int) -> None:
        """Admits requests in order of arrival, as long as the whole sequence fits beside one step of those that decode.
        This is vLLM's default (`scheduler_reserve_full_isl`). A sequence fits no sooner while others decode, which is
        why a jump is exact."""
        while self._waiting and budget > 0 and len(self._running) < self._limits.max_num_seqs:
            request = self._waiting[0]
            here = self._hit_tokens(request, with_host=False)
            hit = self._hit_tokens(request, with_host=True) if self.host.capacity else here
            tokens = min(budget, request.target_tokens - hit)
            request.computed = hit
            blocks = self._missing(request, request.target_tokens) + self._blocks_to_decode(1)
            if blocks + sum(self.cache.idle_blocks(key) for key in request.chain.keys) > self.cache.available:
                return
            self._waiting.popleft()
            self._running[request.request_id] = request
            request.parts = [self.cache.hold(key) for key in request.chain.keys]
            for key in reversed(request.chain.keys):
                self.host.keep(key, self.host.resident(key))
            if request.cached_tokens < 0:
                request.cached_tokens = hit
            self._loaded_tokens += hit - here
            self._take_chunk(request, tokens)
            budget -= tokens

    def _hit_tokens(self, request: SimulatedRequest, *, with_host: bool) -> int:
        """Returns how many tokens of the chain's resident beginning are used, on the GPU alone or in both tiers. The
        last token is always computed, for its logits."""
        if not self._limits.prefix_caching:
            return 0
        wanted = (request.target_tokens - 1) // BLOCK_TOKENS
        hit = 0
        for need, key in zip(request.chain.bounds(wanted * BLOCK_TOKENS), request.chain.keys, strict=True):
            there = min(need, max(self.cache.resident(key), self.host.resident(key) if with_host else 0))
            hit += there
            if there < need:
                break
        return hit * BLOCK_TOKENS

    # -- leaving

    def _preempt(self) -> None:
        self._put_back()
        self.counts.preemptions += 1

    def _put_back(self) -> None:
        """Puts the youngest request at the head of the queue."""
        request = self._running[next(reversed(self._running))]
        if request.decoding_from >= 0:
            self._stop_decoding(request)
        self._leave(request)
        self._waiting.appendleft(request)

    def _leave(self, request: SimulatedRequest) -> None:
        """Removes a request. Its whole blocks stay as prefixes, and the end of the chain is evicted first."""
        del self._running[request.request_id]
        new_tokens = request.parts[2]
        whole = 0
        if self._limits.prefix_caching:
            whole = request.computed // BLOCK_TOKENS - request.chain.shared_blocks
        if new_tokens.resident > max(0, whole):
            self.cache.shrink(new_tokens, new_tokens.resident - max(0, whole))
        for part in reversed(request.parts):
            # What is evicted of the host's tier begins with the end of the chain, too.
            self.host.keep(part.key, part.resident)
            self.cache.give_back(part)
        request.parts = []
