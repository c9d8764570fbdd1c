"""All that a program-aware router keeps of one engine.

Invariants:
- `acting` holds the admitted programs without a running request, longest idle first.
- An engine that is lost or drained admits nobody.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from swe_rl.router.capacity import Capacity
from swe_rl.router.ledger import Account, Fading
from swe_rl.router.programs import Program
from swe_rl.router.residency import PrefixCache
from swe_rl.router.tr_settings import TrSettings
from swe_rl.router.waiting import AgeingQueue


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
        account = Account(settings.acting_weight, Fading(settings.acting_half_life_s))
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
