"""How many tokens an engine can hold: what it reports, corrected by how it copes.

Invariants:
- Always positive: an engine that reports nothing gets the conservative default.
- The correction takes at most a quarter of the reported capacity, and adds at most a tenth.

A block cache holds more or less than the ledger says: blocks are rounded up, prefixes are shared that no group names,
answers grow while they are sampled. So the ledger is compared with the engine at every tick. A shortage (preemptions,
or requests that wait while the cache is nearly full) takes capacity away at once; a surplus gives it back slowly.
"""

from swe_rl.router.core import EngineLoad

_LACK_SMOOTHING = 0.2  # of one tick's difference
_SURPLUS_SMOOTHING = 0.05
_SHORTAGE_STEP = 0.05  # of the capacity, a tick with shortage
_MAX_LACK = 0.25  # of the capacity
_MAX_SURPLUS = 0.1
_FULL = 0.9  # share of the cache from which on waiting requests mean shortage


class Capacity:
    def __init__(self, default_tokens: int) -> None:
        self._default_tokens = default_tokens
        self._reported_tokens = 0
        self._preemptions_total: int | None = None
        self.bias_tokens = 0.0  # the engine holds so much more than the ledger says
        self.waiting = 0

    @property
    def reported_tokens(self) -> int:
        return self._reported_tokens or self._default_tokens

    @property
    def tokens(self) -> float:
        return max(1.0, self.reported_tokens - self.bias_tokens)

    def report(self, tokens: int) -> None:
        """Capacity alone; 0 or less: not known, what was known stays."""
        if tokens > 0:
            self._reported_tokens = tokens

    def observe(self, load: EngineLoad, ledger_tokens: float) -> None:
        """`ledger_tokens`: of running requests at the time of `load`, with half of the answers that are expected."""
        self.report(load.kv_capacity_tokens)
        capacity = self.reported_tokens
        preempted = self._preemptions_total is not None and load.preemptions_total > self._preemptions_total
        self._preemptions_total = load.preemptions_total
        self.waiting = load.waiting
        full = load.kv_used_tokens >= _FULL * capacity
        if preempted or (load.waiting > 0 and full):
            self.bias_tokens += _SHORTAGE_STEP * capacity
        elif not load.waiting:  # a request that waits is in the ledger and not yet in the engine
            difference = load.kv_used_tokens - ledger_tokens - self.bias_tokens
            self.bias_tokens += difference * (_LACK_SMOOTHING if difference > 0 else _SURPLUS_SMOOTHING)
        self.bias_tokens = min(max(self.bias_tokens, -_MAX_SURPLUS * capacity), _MAX_LACK * capacity)
