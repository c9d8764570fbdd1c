"""An engine's book is all that a program-aware router keeps of one engine.

Invariants:
- `acting` holds the admitted programs without a running request, longest idle first.
- An engine that is lost or drained admits nobody.
- Idle and pinned tokens never exceed the capacity after `squeeze`; the longest idle leave first.
- A program that runs is pinned, not idle. A program of which less than half is left is not resident.
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

# A miss costs a program's whole prefill, and a hit gains nothing new. So ten hits make up for one miss.
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
        """Compares what a request was expected to find in the cache with what it found. Misses shrink the model fast,
        hits let it grow back slowly."""
        if expected_tokens > 0:
            step = _MISS_STEP if 2 * cached_tokens < expected_tokens else _HIT_STEP
            self.usable_share = min(1.0, max(0.5, self.usable_share + step))

    def resident_tokens(self, program_id: str) -> int:
        """Returns how many of the program's tokens are cached, or 0 if it is not resident."""
        idle = self._idle.get(program_id)
        if idle is not None and 2 * idle.left >= idle.tokens:
            return idle.left
        return 0

    def keep(self, program_id: str, tokens: int) -> None:
        """Notes that the program stopped running: its tokens are the last to leave."""
        self.drop(program_id)
        if tokens > 0:
            self._idle[program_id] = _Idle(tokens, tokens)
            self.idle_tokens += tokens

    def drop(self, program_id: str) -> None:
        """Forgets the program's idle tokens, because it runs again or because they are gone."""
        idle = self._idle.pop(program_id, None)
        if idle is not None:
            self.idle_tokens -= idle.left

    def squeeze(self, room_tokens: float) -> list[str]:
        """Lets tokens leave until the idle ones fit into the room. Returns the programs that are no longer resident."""
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
        """Forgets all idle tokens. Returns the programs that were resident."""
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
# The correction takes this share of one tick's difference. Too little capacity is corrected fast, too much slowly: a
# preemption costs more than a program that waits.
_LACK_SMOOTHING = 0.2
_SURPLUS_SMOOTHING = 0.05
# A tick with a shortage takes this share of the capacity away.
_SHORTAGE_STEP = 0.05
# The correction takes at most this share of the reported capacity away.
_MAX_LACK = 0.25
_MAX_SURPLUS = 0.1
# From this share of the cache on, waiting requests mean a shortage.
_FULL = 0.9


#
# An engine with a tier in the host's memory has a prefix as long as that tier holds it, because to bring it back takes
# less time than to compute it (`TrSettings.copy_pays`). Then requests that wait for the GPU's blocks are no shortage: a
# pause would not make them any faster.
#
# The host has a copy of what the GPU has, so the GPU's cache adds nothing to it. In simulations with half of that cache
# counted beside the host's, `tr` lost a tenth against the best cap where prefixes are long and the tier is far too
# small, and gained 1 to 2 % where it is just too small.


class Capacity:
    def __init__(self, default_tokens: int, host_tokens: int = 0, *, copy_pays: bool = True) -> None:
        self._default_tokens = default_tokens
        self._host_tokens = host_tokens
        self._copy_pays = copy_pays
        self._reported_tokens = 0
        self._preemptions_total: int | None = None
        # The engine holds so many tokens more than the ledger says.
        self.bias_tokens = 0.0
        self.waiting = 0

    @property
    def reported_tokens(self) -> int:
        return self._reported_tokens or self._default_tokens

    @property
    def reaches_host(self) -> bool:
        """Tells whether the host's memory, and not the GPU's, limits how long a prefix stays."""
        return self._copy_pays and self._host_tokens > self.reported_tokens

    @property
    def tokens(self) -> float:
        if self.reaches_host:
            return float(self._host_tokens)
        return max(1.0, self.reported_tokens - self.bias_tokens)

    @property
    def stretch(self) -> float:
        """Returns how many times longer a prefix stays than in the GPU's cache alone."""
        if self.reaches_host:
            return self.tokens / self.reported_tokens
        return 1.0

    def report(self, tokens: int, host_tokens: int = 0) -> None:
        """Takes reported capacities. A value of 0 or less means that it is not known, and what was known stays."""
        if tokens > 0:
            self._reported_tokens = tokens
        if host_tokens > 0:
            self._host_tokens = host_tokens

    def observe(self, load: EngineLoad, ledger_tokens: float) -> None:
        """Corrects the capacity by the engine's load. `ledger_tokens` are those of running requests at the same time,
        with half of the answers that are expected."""
        self.report(load.kv_capacity_tokens, load.host_capacity_tokens)
        self.waiting = load.waiting
        if self.reaches_host:
            self._preemptions_total = load.preemptions_total
            return
        capacity = self.reported_tokens
        preempted = self._preemptions_total is not None and load.preemptions_total > self._preemptions_total
        self._preemptions_total = load.preemptions_total
        full = load.kv_used_tokens >= _FULL * capacity
        if preempted or (load.waiting > 0 and full):
            self.bias_tokens += _SHORTAGE_STEP * capacity
        elif not load.waiting:
            # A request that waits is in the ledger and not yet in the engine, so such a tick says nothing.
            difference = load.kv_used_tokens - ledger_tokens - self.bias_tokens
            self.bias_tokens += difference * (_LACK_SMOOTHING if difference > 0 else _SURPLUS_SMOOTHING)
        self.bias_tokens = min(max(self.bias_tokens, -_MAX_SURPLUS * capacity), _MAX_LACK * capacity)


@dataclass(slots=True, eq=False)
class EngineBook:
    name: str
    account: Account
    capacity: Capacity
    # Has the held programs whose prefix is here.
    resident: AgeingQueue
    cache: PrefixCache = field(default_factory=PrefixCache)
    acting: OrderedDict[str, Program] = field(default_factory=OrderedDict)
    # Has the programs that are admitted.
    programs: dict[str, Program] = field(default_factory=dict)
    # Sums their sizes, and their first prompts.
    size_tokens: int = 0
    first_tokens: int = 0
    up: bool = True
    draining: bool = False
    # Counts the tokens of cold prompts since the last sync.
    staggered_tokens: int = 0

    @classmethod
    def empty(cls, name: str, settings: TrSettings) -> "EngineBook":
        account = Account(settings.acting_token_weight, Fading(settings.acting_half_life_s))
        capacity = Capacity(settings.capacity_tokens, settings.host_tokens, copy_pays=settings.copy_pays)
        return cls(name, account, capacity, AgeingQueue(settings.ageing_turns_per_s))

    @property
    def open(self) -> bool:
        return self.up and not self.draining

    def idle_for(self, idle_s: float, now_s: float) -> bool:
        """Tells whether one of the engine's programs has been idle for so long."""
        longest = next(iter(self.acting.values()), None)
        return longest is not None and now_s - longest.idle_since_s >= idle_s

    def snapshot(self, now_s: float) -> dict[str, object]:
        account = self.account
        state = "draining" if self.draining else "open"
        return {
            "engine": self.name,
            "state": state if self.up else "lost",
            "capacity_tokens": int(self.capacity.tokens),
            "tier": "host" if self.capacity.reaches_host else "gpu",
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
