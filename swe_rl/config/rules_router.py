"""Rules of the router: which one, its knobs, and whether the layout gives it anything to route to."""

from collections.abc import Iterator

from swe_rl.config.choices import EngineKind
from swe_rl.config.findings import Finding, Host, about, between, error, warning
from swe_rl.config.keys import nearest
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config

ROUTERS = ("default", "sticky_least_loaded", "cap", "tr")
HOLDS = ("cap", "tr")


@about(Part.router)
def known_router(config: Config, _: Host) -> Iterator[Finding]:
    name = config.router.name
    if name not in ROUTERS:
        near = nearest(name, ROUTERS) or list(ROUTERS)
        yield error("unknown_name", "router.name", name, "there is no such router", f"router={' or '.join(near)}")


@between(Part.router, Part.engines)
def several_engines(config: Config, _: Host) -> Iterator[Finding]:
    external = len(config.engine.urls) if config.engine.kind == EngineKind.external else 0
    engines = external or config.layout.engines
    if config.router.name == "tr" and engines == 1 and config.layout.name != "local":
        yield warning(
            "router_engines",
            "router.name",
            "tr",
            "with one engine there is nowhere to move a trajectory to; it would only pause",
            "layout=dp4, or router=cap",
        )


@about(Part.router)
def knobs(config: Config, _: Host) -> Iterator[Finding]:
    router = config.router
    if not 0 <= router.acting_token_weight <= 1:
        yield error(
            "router_knobs",
            "router.acting_token_weight",
            router.acting_token_weight,
            "is a weight: 0 (an acting trajectory costs nothing) to 1 (as much as one that is being answered)",
            "router.acting_token_weight=0.1",
        )
    if not 0 < router.resume_at <= router.pause_at <= 1:
        yield error(
            "router_knobs",
            "router.resume_at",
            router.resume_at,
            f"shares of an engine's tokens: 0 < resume_at <= pause_at <= 1, and router.pause_at={router.pause_at:g}",
            f"router.resume_at={max(0.05, round(min(router.pause_at, 1.0) - 0.1, 2)):g}",
        )
    positive = {"router.tick_s": router.tick_s, "router.max_hold_s": router.max_hold_s}
    for key, value in positive.items():
        if value <= 0:
            yield error("router_knobs", key, value, "must be greater than 0", f"{key}=5")
    counts = {
        "router.acting_half_life_s": router.acting_half_life_s,
        "router.lease_s": router.lease_s,
        "router.ageing_turns_per_s": router.ageing_turns_per_s,
        "router.max_programs_per_engine": router.max_programs_per_engine,
    }
    for key, value in counts.items():
        if value < 0:
            yield error("router_knobs", key, value, "must be 0 or more", f"{key}=0")


@between(Part.router, Part.rollouts)
def held_within_patience(config: Config, _: Host) -> Iterator[Finding]:
    hold, patience = config.router.max_hold_s, config.rollout.agent_timeout_s
    if config.router.name in HOLDS and hold < 1 < patience:
        yield warning(
            "router_hold",
            "router.max_hold_s",
            hold,
            "requests are let through at once, whatever the engines hold",
            "router.max_hold_s=600",
        )


@about(Part.engines)
def prefix_cache(config: Config, _: Host) -> Iterator[Finding]:
    if config.engine.kind == EngineKind.vllm and not config.engine.prefix_caching:
        yield warning(
            "prefix_caching",
            "engine.prefix_caching",
            False,
            "each turn computes the whole trajectory again; keeping it with its engine gains nothing",
            "engine.prefix_caching=true",
        )


RULES = (known_router, several_engines, knobs, held_within_patience, prefix_cache)
