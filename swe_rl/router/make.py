"""The router that a configuration names.

Invariants:
- Defaults are the schema's, and what a number may be is the rules': a configuration that was checked is taken as it is.
"""

from collections.abc import Sequence
from typing import Protocol

from swe_rl.config.choices import ROUTERS
from swe_rl.config.schema import RouterConfig
from swe_rl.errors import UserError
from swe_rl.router.cap import CapPolicy
from swe_rl.router.core import Router
from swe_rl.router.default import DefaultPolicy
from swe_rl.router.sticky import StickyLeastLoadedPolicy
from swe_rl.router.tr import TrPolicy
from swe_rl.router.tr_settings import DEFAULT_CAPACITY_TOKENS, TrSettings


class RouterError(UserError):
    """There is no such router, or nothing for it to route to."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


def make_router(
    config: RouterConfig,
    engines: Sequence[Named],
    *,
    capacity_tokens: int | None = None,
    max_num_seqs: int | None = None,
) -> Router:
    """`capacity_tokens`: of an engine that does not report its own. `max_num_seqs`: requests that one engine runs at
    once. Raises RouterError."""
    names = [engine.name for engine in engines]
    if not names or len(set(names)) != len(names):
        raise RouterError(f"router={config.name} needs engines of different names; layout.engines gave {names}")
    match config.name:
        case "default":
            return Router(DefaultPolicy(), names)
        case "sticky_least_loaded":
            return Router(StickyLeastLoadedPolicy(), names)
        case "cap":
            programs = config.max_programs_per_engine or max_num_seqs
            assert programs, "no cap: neither router.max_programs_per_engine nor engine.max_num_seqs"
            return Router(CapPolicy(programs, config.max_hold_s, config.tick_s), names)
        case "tr":
            capacity = capacity_tokens or DEFAULT_CAPACITY_TOKENS
            settings = TrSettings(**vars(config), capacity_tokens=capacity, max_num_seqs=max_num_seqs or 0)
            return Router(TrPolicy(settings), names)
    raise RouterError(f"router={config.name} is not known; choose one of {', '.join(ROUTERS)}")
