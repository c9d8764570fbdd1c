"""Rules of the router check which one it is, its knobs, and whether the layout gives it anything to route to. Those of
rollout.concurrency=auto check that there is something to feel: engines that tell of their load."""

from collections.abc import Iterator
from dataclasses import fields

from swe_rl.check.findings import Finding, Host, error, rule_about, rule_between, warning
from swe_rl.config.choices import ROUTERS, EngineKind, ExtensionKind, JobName
from swe_rl.config.keys import nearest_words
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config, RouterConfig
from swe_rl.extension.find import foreign_names, is_foreign
from swe_rl.facts.concurrency import AUTO, adapts_concurrency
from swe_rl.facts.sizes import asks_model, trajectories_at_once
from swe_rl.plan.concurrency import bounds_of

HOLDS = ("cap", "tr")  # these routers hold requests back
LAST_PORT = 65535  # TCP has no port after it
_HELD = frozenset({"tick_s", "max_hold_s"})
_READ = {
    "default": frozenset[str](),
    "sticky_least_loaded": frozenset[str](),
    "cap": _HELD | {"max_programs_per_engine"},
    "tr": _HELD | {
        "acting_token_weight", "acting_half_life_s", "pause_at", "resume_at", "lease_s", "ageing_turns_per_s",
    },
}  # fmt: skip


@rule_about(Part.router)
def known_router(config: Config, _: Host) -> Iterator[Finding]:
    name = config.router.name
    if name not in ROUTERS and not is_foreign(config, ExtensionKind.router):
        known = [*ROUTERS, *foreign_names(ExtensionKind.router)]
        near = nearest_words(name, known) or known
        yield error("unknown_name", "router.name", "there is no such router", f"router={' or '.join(near)}")


@rule_between(Part.router, Part.engines)
def several_engines(config: Config, _: Host) -> Iterator[Finding]:
    external = 0
    if config.engine.kind == EngineKind.external:
        external = len(config.engine.urls)
    engines = external or config.layout.engines
    if config.router.name == "tr" and engines == 1 and config.layout.name != "local":
        yield warning(
            "router_engines",
            "router.name",
            "with one engine there is nowhere to move a trajectory to; it would only pause",
            "layout=dp4, or router=cap",
        )


@rule_about(Part.router)
def check_router_settings(config: Config, _: Host) -> Iterator[Finding]:
    router = config.router
    if router.resume_at > router.pause_at:
        yield error(
            "router_knobs",
            "router.resume_at",
            f"programs would be admitted where others are paused already (router.pause_at={router.pause_at:g})",
            f"router.resume_at={max(0.05, round(router.pause_at - 0.1, 2)):g}",
        )


@rule_about(Part.router)
def unread_knobs(config: Config, _: Host) -> Iterator[Finding]:
    router = config.router
    for item in fields(RouterConfig):
        value = getattr(router, item.name)
        readers = [name for name in ROUTERS if item.name in _READ[name]]
        if readers and router.name in ROUTERS and router.name not in readers and value != item.default:
            yield warning(
                "router_unread",
                f"router.{item.name}",
                f"nothing reads it with router.name={router.name}",
                f"{' or '.join(f'router={name}' for name in readers)}, or leave it out",
            )


@rule_between(Part.router, Part.rollouts)
def held_within_patience(config: Config, _: Host) -> Iterator[Finding]:
    hold = config.router.max_hold_s
    patience = config.rollout.agent_timeout_s
    if config.router.name in HOLDS and hold < 1 < patience:
        yield warning(
            "router_hold",
            "router.max_hold_s",
            "requests are let through at once, whatever the engines hold",
            "router.max_hold_s=600",
        )
    if config.router.name in HOLDS and hold >= config.rollout.max_wait_s:
        yield warning(
            "router_hold",
            "router.max_hold_s",
            f"one request may be held for as long as all calls of a trajectory may wait "
            f"(rollout.max_wait_s={config.rollout.max_wait_s:g}), which ends it as engine_error",
            f"rollout.max_wait_s={2 * hold:g}",
        )


@rule_between(Part.router, Part.rollouts)
def calls_fit(config: Config, _: Host) -> Iterator[Finding]:
    calls = config.gateway.max_calls
    programs = trajectories_at_once(config)
    if calls < programs:
        yield warning(
            "gateway_calls",
            "gateway.max_calls",
            f"{programs} trajectories are under way at once (rollout.concurrency), and each may have a call in flight: "
            "those beyond are answered 503",
            f"gateway.max_calls={programs}",
        )


@rule_about(Part.router)
def gateway_processes(config: Config, _: Host) -> Iterator[Finding]:
    processes = config.gateway.processes
    cpus = config.hardware.cpus_per_node
    port = config.gateway.port
    if processes > cpus:
        yield warning(
            "gateway_processes",
            "gateway.processes",
            f"share hardware.cpus_per_node={cpus} CPUs, with the driver and the agents: more of them are not faster",
            f"gateway.processes={cpus}",
        )
    if processes > 1 and port and port + processes > LAST_PORT and config.job.name is not JobName.serve:
        yield error(
            "gateway_processes",
            "gateway.port",
            f"each of gateway.processes={processes} takes a port after it, and {LAST_PORT} is the last one",
            "gateway.port=0 (any free ports)",
        )


@rule_about(Part.engines)
def prefix_cache(config: Config, _: Host) -> Iterator[Finding]:
    if config.engine.kind == EngineKind.vllm and not config.engine.prefix_caching:
        yield warning(
            "prefix_caching",
            "engine.prefix_caching",
            "each turn computes the whole trajectory again; keeping it with its engine gains nothing",
            "engine.prefix_caching=true",
        )


@rule_about(Part.rollouts)
def concurrency_word(config: Config, _: Host) -> Iterator[Finding]:
    stated = config.rollout.concurrency
    if isinstance(stated, str) and stated != AUTO:
        yield error(
            "concurrency",
            "rollout.concurrency",
            "must be a whole number, at least 1, or auto",
            "rollout.concurrency=auto, which feels for the number that the engines carry, or a number without quotes",
        )


@rule_between(Part.rollouts, Part.engines)
def concurrency_is_felt(config: Config, _: Host) -> Iterator[Finding]:
    """Finds engines that tell nothing of their load, and numbers that leave nothing to feel for."""
    if not adapts_concurrency(config):
        return
    if config.engine.kind is EngineKind.endpoint or not asks_model(config):
        reason = "an API of text does not tell how much it has to do, so auto would feel for nothing"
        yield error("concurrency", "rollout.concurrency", reason, "rollout.concurrency=8, or what its provider allows")
        return
    bounds = bounds_of(config)
    if bounds.least == bounds.most:
        yield warning(
            "concurrency",
            "rollout.concurrency",
            f"auto has nothing to choose: there are never more than {bounds.most} trajectories under way",
            f"rollout.concurrency={bounds.most}",
        )


@rule_between(Part.rollouts, Part.router)
def concurrency_beside_cap(config: Config, _: Host) -> Iterator[Finding]:
    if adapts_concurrency(config) and config.router.name == "cap":
        yield error(
            "concurrency_cap",
            "router.name",
            "cap lets programs wait at a number that stays, and auto would take that for engines that are full",
            "router=default or router=tr, or rollout.concurrency=NUMBER beside router=cap",
        )
