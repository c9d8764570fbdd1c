"""The router that a configuration names."""

from collections.abc import Sequence
from typing import Protocol

from swe_rl.config.schema import RouterConfig
from swe_rl.errors import UserError
from swe_rl.router.cap import CapPolicy
from swe_rl.router.core import Router
from swe_rl.router.default import DefaultPolicy
from swe_rl.router.sticky import StickyLeastLoadedPolicy
from swe_rl.router.tr import TrPolicy
from swe_rl.router.tr_settings import DEFAULT_CAPACITY_TOKENS, TrSettings

ROUTERS = ("default", "sticky_least_loaded", "cap", "tr")


class RouterError(UserError):
    """There is no such router, nothing for it to route to, or a setting that it cannot work with."""


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
            return Router(_cap(config, max_num_seqs), names)
        case "tr":
            return Router(_tr(config, capacity_tokens, max_num_seqs), names)
    raise RouterError(f"router={config.name} is not known; choose one of {', '.join(ROUTERS)}")


def _cap(config: RouterConfig, max_num_seqs: int | None) -> CapPolicy:
    programs = config.max_programs_per_engine or max_num_seqs or 0
    if programs < 1:
        raise RouterError(
            f"router.max_programs_per_engine={config.max_programs_per_engine} and engine.max_num_seqs={max_num_seqs} "
            "leave router=cap without a cap; give one of them a positive number"
        )
    _check_times(config)
    return CapPolicy(programs, config.max_hold_s, config.tick_s)


def _tr(config: RouterConfig, capacity_tokens: int | None, max_num_seqs: int | None) -> TrPolicy:
    _check_times(config)
    if not 0 < config.resume_at <= config.pause_at:
        raise RouterError(
            f"router.resume_at={config.resume_at} and router.pause_at={config.pause_at} are shares of an engine's "
            "tokens; resume_at has to be above 0 and at most pause_at, or paused programs would be let in only to be "
            "paused again"
        )
    for key in ("acting_token_weight", "acting_half_life_s", "lease_s", "ageing_turns_per_s"):
        if getattr(config, key) < 0:
            raise RouterError(f"router.{key}={getattr(config, key)} cannot be negative")
    settings = TrSettings(
        acting_weight=config.acting_token_weight,
        acting_half_life_s=config.acting_half_life_s,
        pause_at=config.pause_at,
        resume_at=config.resume_at,
        lease_s=config.lease_s,
        ageing_turns_per_s=config.ageing_turns_per_s,
        max_hold_s=config.max_hold_s,
        capacity_tokens=capacity_tokens or DEFAULT_CAPACITY_TOKENS,
        max_num_seqs=max_num_seqs or 0,
    )
    return TrPolicy(settings, config.tick_s, config.name)


def _check_times(config: RouterConfig) -> None:
    if config.tick_s <= 0 or config.max_hold_s <= 0:
        raise RouterError(
            f"router.tick_s={config.tick_s} and router.max_hold_s={config.max_hold_s} are seconds above 0"
        )
