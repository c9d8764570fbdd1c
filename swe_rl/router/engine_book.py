"""All that a program-aware router keeps of one engine.

Invariants:
- `acting` holds the admitted programs without a running request, longest idle first.
- An engine that is lost or drained admits nobody.
- Idle and pinned tokens never exceed the capacity after `squeeze`; what leaves is the longest idle.
- A program that runs is pinned, not idle. One of which less than half is left is not resident.
- `usable_share` stays within [0.5, 1]: what is observed about hits moves it.

The model is that of engines with block prefix caches (vLLM, SGLang): blocks of running requests are pinned, all others
are free in the order of their last use and taken from the oldest end when tokens are allocated. A program whose tokens
are partly gone keeps the head of its prefix, because the tail is freed first.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from swe_rl.router.core import EngineLoad
from swe_rl.router.ledger import Account, Fading
from swe_rl.router.programs import AgeingQueue, Program
from swe_rl.router.tr_settings import TrSettings

_MISS_STEP = -0.02
_HIT_STEP = 0.002


@dataclass(slots=True)
class _Idle:
    tokens: int
    left: int


class PrefixCache:
    def __init__(self) -> None:
        self._idle: OrderedDict[str, _Idle] = OrderedDict()
        self.idle_tokens = 0
        self.usable_share = 1.0

    def observe(self, expected_tokens: int, cached_tokens: int) -> None:
        """Of a request that was expected to find so much and found this. Misses shrink the model fast, hits let it
        grow back slowly."""
        if expected_tokens > 0:
            step = _MISS_STEP if 2 * cached_tokens < expected_tokens else _HIT_STEP
            self.usable_share = min(1.0, max(0.5, self.usable_share + step))

    def resident_tokens(self, program_id: str) -> int:
        """0: not resident."""
        idle = self._idle.get(program_id)
        return idle.left if idle is not None and 2 * idle.left >= idle.tokens else 0

    def keep(self, program_id: str, tokens: int) -> None:
        """It ran until now: it is the last to leave."""
        self.drop(program_id)
        if tokens > 0:
            self._idle[program_id] = _Idle(tokens, tokens)
            self.idle_tokens += tokens

    def drop(self, program_id: str) -> None:
        """It runs again, or its tokens are gone."""
        idle = self._idle.pop(program_id, None)
        if idle is not None:
            self.idle_tokens -= idle.left

    def squeeze(self, room_tokens: float) -> list[str]:
        """Programs that are no longer resident now that there is room for so many idle tokens."""
        room_tokens = max(0, int(self.usable_share * room_tokens))
        gone = []
        while self.idle_tokens > room_tokens and self._idle:
            program_id, idle = next(iter(self._idle.items()))
            was_resident = 2 * idle.left >= idle.tokens
            taken = min(idle.left, self.idle_tokens - room_tokens)
            idle.left -= taken
            self.idle_tokens -= taken
            if not idle.left:
                del self._idle[program_id]
            if was_resident and 2 * idle.left < idle.tokens:
                gone.append(program_id)
        return gone

    def clear(self) -> list[str]:
        """All that were resident."""
        gone = [program_id for program_id, idle in self._idle.items() if 2 * idle.left >= idle.tokens]
        self._idle.clear()
        self.idle_tokens = 0
        return gone


# How many tokens an engine can hold: what it reports, corrected by how it copes.
# - Always positive: an engine that reports nothing gets the conservative default.
# - The correction takes at most a quarter of the reported capacity, and adds at most a tenth.
#
# A block cache holds more or less than the ledger says: blocks are rounded up, prefixes are shared that no group names,
# answers grow while they are sampled. So the ledger is compared with the engine at every tick. A shortage (preemptions,
# or requests that wait while the cache is nearly full) takes capacity away at once; a surplus gives it back slowly.
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


@dataclass(slots=True, eq=False)
class EngineBook:
    name: str
    account: Account
    capacity: Capacity
    resident: AgeingQueue  # held programs whose prefix is here
    cache: PrefixCache = field(default_factory=PrefixCache)
    acting: OrderedDict[str, Program] = field(default_factory=OrderedDict)
    programs: dict[str, Program] = field(default_factory=dict)  # admitted
    up: bool = True
    draining: bool = False
    staggered_tokens: int = 0  # of cold prompts, since the last sync

    @classmethod
    def empty(cls, name: str, settings: TrSettings) -> "EngineBook":
        account = Account(settings.acting_token_weight, Fading(settings.acting_half_life_s))
        return cls(name, account, Capacity(settings.capacity_tokens), AgeingQueue(settings.ageing_turns_per_s))

    @property
    def open(self) -> bool:
        return self.up and not self.draining

    def idle_for(self, idle_s: float, now_s: float) -> bool:
        """Whether one of its programs is."""
        longest = next(iter(self.acting.values()), None)
        return longest is not None and now_s - longest.idle_since_s >= idle_s

    def snapshot(self, now_s: float) -> dict[str, object]:
        account = self.account
        return {
            "engine": self.name,
            "state": "lost" if not self.up else "draining" if self.draining else "open",
            "capacity_tokens": int(self.capacity.tokens),
            "bias_tokens": int(self.capacity.bias_tokens),
            "load_tokens": int(account.load_tokens(now_s)),
            "running_tokens": account.running_tokens,
            "acting_tokens": account.acting_tokens,
            "prefix_tokens": account.prefix_tokens + account.idle_prefix_tokens,
            "common_tokens": account.common_tokens,
            "cached_idle_tokens": self.cache.idle_tokens,
            "cache_usable_share": round(self.cache.usable_share, 3),
            "running": account.running,
            "acting": account.acting,
            "programs": len(self.programs),
            "held_resident": len(self.resident),
        }
