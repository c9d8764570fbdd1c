"""This module makes the router that a configuration names: one of this table, or a user's by `router._target_` or an
entry point.

Invariants:
- Defaults are in the schema, and what a number may be is in the rules: a configuration that was checked is taken as it
  is.
"""

from collections.abc import Sequence
from typing import Protocol

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import RouterConfig
from swe_rl.errors import UserError
from swe_rl.extension.make import make_extension
from swe_rl.plan.host_tier import HostTier
from swe_rl.router.cap import CapPolicy
from swe_rl.router.core import Router
from swe_rl.router.foreign import ForeignPolicy
from swe_rl.router.tr import TrPolicy
from swe_rl.router.tr_settings import DEFAULT_CAPACITY_TOKENS, TrSettings

POLICIES = {
    "default": "swe_rl.router.default.DefaultPolicy",
    "sticky_least_loaded": "swe_rl.router.sticky.StickyLeastLoadedPolicy",
    "cap": "swe_rl.router.make.cap_policy",
    "tr": "swe_rl.router.make.tr_policy",
}


class RouterError(UserError):
    """There is nothing for a router to route to."""


class HasName(Protocol):
    @property
    def name(self) -> str: ...


def make_router(
    config: RouterConfig,
    engines: Sequence[HasName],
    *,
    capacity_tokens: int | None = None,
    max_num_seqs: int | None = None,
    host: HostTier | None = None,
) -> Router:
    """Makes the router. `capacity_tokens` and `host` are those of an engine that does not report its own, and
    `max_num_seqs` is how many requests one engine runs at once. Raises RouterError, and UserError for a name that
    nobody has."""
    names = [engine.name for engine in engines]
    if not names or len(set(names)) != len(names):
        raise RouterError(f"router={config.name} needs engines of different names; layout.engines gave {names}")
    given = {"config": config, "capacity_tokens": capacity_tokens, "max_num_seqs": max_num_seqs, "host": host}
    policy, maker = make_extension(ExtensionKind.router, config, given, POLICIES)
    return Router(policy if maker is None else ForeignPolicy(policy, maker), names)


def cap_policy(config: RouterConfig, max_num_seqs: int | None) -> CapPolicy:
    programs = config.max_programs_per_engine or max_num_seqs
    assert programs, "no cap: neither router.max_programs_per_engine nor engine.max_num_seqs"
    return CapPolicy(programs, config.max_hold_s, config.tick_s)


def tr_policy(
    config: RouterConfig, capacity_tokens: int | None, max_num_seqs: int | None, host: HostTier | None
) -> TrPolicy:
    tier = host or HostTier()
    return TrPolicy(
        TrSettings(
            **vars(config),
            capacity_tokens=capacity_tokens or DEFAULT_CAPACITY_TOKENS,
            max_num_seqs=max_num_seqs or 0,
            host_tokens=tier.tokens,
            copy_token_s=tier.copy_token_s,
            prefill_token_s=tier.prefill_token_s,
        )
    )
