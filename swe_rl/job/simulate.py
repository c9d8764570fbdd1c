"""`job=simulate` runs layout and router under a workload in virtual time, next to the routers that they must beat.

Invariants:
- Every router gets the same loads: `rollout.workload` drawn once a seed, or the last steps of a run
  (`job.workload_from`); the ratio to `default` is taken load by load.
- Equal configurations give equal tables.
- With `rollout.mode=stream` the configured router's training is simulated as well: beside the ways that wait for steps,
  and with the same GPUs divided otherwise.
- `step_rollouts` is what `job=plan` says of a step: the same loads, fewer of them where a step is large.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from swe_rl.config.choices import OutputFormat
from swe_rl.config.compose import compose
from swe_rl.config.composition.values import config_hash
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config, RouterConfig
from swe_rl.errors import SweRlError
from swe_rl.facts import sizes
from swe_rl.facts.concurrency import adapts_concurrency
from swe_rl.plan import duration
from swe_rl.plan.concurrency import bounds_of
from swe_rl.plan.engine_speed import speed_of
from swe_rl.plan.gateway import GatewayNeed, gateway_need
from swe_rl.plan.host_tier import HostTier, sized_tier, tier_sizes_gb
from swe_rl.report.simulation_table import METRICS, print_table
from swe_rl.rollout.recorded import last_steps
from swe_rl.router.make import POLICIES
from swe_rl.router.simulation.balance import (
    can_balance,
    capacity_of,
    compare_divisions,
    engines_of_a_part,
    limits_of,
    router_of,
)
from swe_rl.router.simulation.outcome import SimulationOutcome
from swe_rl.router.simulation.pace import Group
from swe_rl.router.simulation.simulate import simulate_router
from swe_rl.router.simulation.workload import (
    SimulatedProgram,
    Workload,
    WorkloadError,
    draw_workload,
    mean_context_tokens,
    oversubscription,
    parameters_of,
    resize_programs,
)

LOADS = 3
# `step_rollouts` simulates this many turns: about a second.
PLAN_TURNS = 6000
# Groups are taken from this many steps of a run.
RECORDED_STEPS = 8
# Each simulated training has this many turns: about three seconds.
BALANCE_TURNS = 20_000
# The two static caps allow this many programs an engine.
CAPS = (16, 32)
# Each size of tier is simulated with loads of so many turns, or with one load.
TIER_TURNS = 6000
# Two pairs of tier and router whose speeds differ by less are taken for equal: other draws would have them in another
# order.
AS_GOOD = 0.98
BASELINE = "default"
BASELINES = ("sticky_least_loaded", "cap", "tr")


@dataclass(frozen=True, slots=True)
class RouterVariant:
    label: str
    router: RouterConfig


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads of a simulation. `origin` says for the record where they are from."""

    workloads: tuple[Workload, ...]
    origin: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepRollouts:
    """The seconds of one step's rollouts, and where the figure is from."""

    seconds: float
    source: str


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Simulates. Raises SpeedError, WorkloadError, SimulationTooSmall, RouterError, SimulationError."""
    del folder, origins
    made = compare_routers(config)
    if config.job.format == OutputFormat.json:
        print(json.dumps(made, indent=2))
    else:
        print_table(made)
    return 0


def compare_routers(
    config: Config, *, capacity_tokens: int | None = None, routers: Sequence[RouterVariant] | None = None
) -> dict[str, Any]:
    """Returns arms with mean and spread (standard deviation over the loads) of every metric; keys name their units."""
    loads = loads_of(config)
    workloads = loads.workloads
    capacity = capacity_tokens or capacity_of(config)
    compared = {
        arm.label: [simulate_arm(config, arm, load, capacity) for load in workloads]
        for arm in routers or choose_routers(config)
    }
    programs = [program for load in workloads for step in load.steps for program in step]
    rollouts = _step_rollouts(config, compared[label_of(config.router)], len(workloads))
    made = {
        "config_hash": config_hash(config),
        "workload": {
            **loads.origin,
            "programs": sizes.trajectories_per_step(config),
            "at_once": sizes.trajectories_at_once(config),
            "turns_mean": _six_digits(fmean(len(program.turns) for program in programs)),
            "context_tokens_mean": round(mean_context_tokens(programs)),
            "sampled_tokens_mean": round(fmean(program.sampled_tokens for program in programs)),
        },
        "engines": {
            "engines": config.layout.engines,
            "kv_tokens_per_engine": capacity,
            "max_num_seqs": config.engine.max_num_seqs,
            "oversubscription": _six_digits(
                fmean(oversubscription(load, config.layout.engines, capacity) for load in workloads)
            ),
        },
        "step": {"rollouts_s": rollouts.seconds, "from": rollouts.source},
        "gateway": _gateway_need(config, programs, rollouts.seconds * len(workloads)).to_record(),
        "routers": {label: _summarize_outcomes(outcomes, compared[BASELINE]) for label, outcomes in compared.items()},
    }
    if routers is None and len(tier_sizes_gb(config)) > 1:
        made["tiers"] = tiers(config, _few_loads(workloads), capacity)
    if can_balance(config):
        made["training"] = compare_divisions(config, groups_of, turns=BALANCE_TURNS, loads=LOADS).to_record()
    return made


def _gateway_need(config: Config, programs: Sequence[SimulatedProgram], rollouts_s: float) -> GatewayNeed:
    calls = sum(len(program.turns) for program in programs)
    return gateway_need(config, calls / max(rollouts_s, 1e-9), mean_context_tokens(programs))


def step_rollouts(config: Config) -> StepRollouts:
    """Returns what `job=plan` says: the configured router under as many loads as a second allows, on as many engines.

    Where nothing can be simulated it is the bound that the rules have, and why. Raises SweRlError for
    job.workload_from.
    """
    try:
        part, loads = _cut_loads(config, PLAN_TURNS)
        arm = RouterVariant("", config.router)
        capacity = capacity_of(config)
        outcomes = [simulate_arm(part, arm, load, capacity) for load in loads.workloads]
    except (SweRlError, ValueError) as error:
        if config.job.workload_from is not None:
            raise
        return StepRollouts(duration.rollout_s(config), f"at least, in closed form: {error}")
    return _step_rollouts(config, outcomes, len(loads.workloads), part.layout.engines)


def _step_rollouts(
    config: Config, outcomes: Sequence[SimulationOutcome], loads: int, engines: int | None = None
) -> StepRollouts:
    """Returns the mean, or the time that a trajectory is said to take where that is longer."""
    simulated_s = fmean(outcome.makespan_s for outcome in outcomes)
    stated_s = duration.stated_s(config)
    if stated_s > simulated_s:
        return StepRollouts(_six_digits(stated_s), f"rollout.typical_trajectory_s; simulated: {simulated_s:.0f} s")
    part = ""
    if engines not in (None, config.layout.engines):
        part = f" on {engines} of {config.layout.engines} engines"
    load = "load" if loads == 1 else "loads"
    of = "drawn from rollout.workload"
    if config.job.workload_from:
        of = "of job.workload_from"
    return StepRollouts(
        _six_digits(simulated_s), f"simulated, router={config.router.name} under {loads} {load} {of}{part}"
    )


def _cut_loads(config: Config, turns: int) -> tuple[Config, Loads]:
    """Returns loads of at most about so many turns; a large step is cut to some engines with their share of it.

    Raises WorkloadError where one engine's share is too much.
    """
    wanted = sizes.trajectories_per_step(config) * duration.mean_turns(config)
    engines = engines_of_a_part(config, int(config.layout.engines * turns / max(1.0, wanted)))
    share = engines / max(1, config.layout.engines)
    if wanted * share > 2 * turns:
        raise WorkloadError("so many trajectories take minutes to simulate, as job=simulate does")
    rollout = replace(config.rollout, prompts_per_step=max(1, round(config.rollout.prompts_per_step * share)))
    part = replace(config, rollout=rollout, layout=replace(config.layout, engines=engines))
    at_once = max(1, round(sizes.trajectories_at_once(config) * share))
    count = max(1, min(LOADS, int(turns / max(1.0, wanted * share))))
    return part, loads_of(part, count, at_once)


def loads_of(config: Config, count: int = LOADS, at_once: int | None = None) -> Loads:
    """Returns the loads. Raises WorkloadError, TraceStoreError, DiskError."""
    at_once = at_once or sizes.trajectories_at_once(config)
    if config.job.workload_from is not None:
        return _recorded_loads(config, Path(config.job.workload_from), count, at_once)
    require_pairs(config)
    seeds = [config.trainer.seed + index for index in range(count)]
    parameters = parameters_of(config.rollout.workload)
    drawn = [replace(draw_workload(parameters, config.rollout, seed), concurrency=at_once) for seed in seeds]
    return Loads(tuple(drawn), {"seeds": seeds})


def _recorded_loads(config: Config, path: Path, count: int, at_once: int) -> Loads:
    """Returns the last steps of a run, each made as large as the configuration's."""
    steps = last_steps(path, count)
    loads = [resize_programs(programs, sizes.trajectories_per_step(config)) for programs in steps.values()]
    return Loads(tuple(Workload((programs,), at_once) for programs in loads), {"run": str(path), "steps": list(steps)})


def groups_of(config: Config, load: int, count: int) -> list[Group]:
    """Returns so many groups in the order in which they begin. Raises as `loads_of` does.

    They are drawn with the load's seed, or are those of a run's last steps, from the beginning again where there are
    fewer.
    """
    n = config.rollout.n
    if config.job.workload_from is not None:
        steps = last_steps(Path(config.job.workload_from), RECORDED_STEPS)
        programs = resize_programs([program for step in sorted(steps) for program in steps[step]], count * n)
    else:
        require_pairs(config)
        steps_needed = -(-count // config.rollout.prompts_per_step)
        drawn = draw_workload(
            parameters_of(config.rollout.workload), config.rollout, config.trainer.seed + load, steps_needed
        )
        programs = tuple(program for step in drawn.steps for program in step)
    return [programs[at : at + n] for at in range(0, count * n, n)]


def require_pairs(config: Config) -> None:
    """Raises WorkloadError where groups have a single trajectory."""
    if wrong := list(duration.wrong_pairs(config.rollout.workload)):
        raise WorkloadError(f"rollout.workload.{wrong[0]} is no [median, spread]; job=check says what it may be")


def choose_routers(config: Config) -> list[RouterVariant]:
    """Returns `default` first, then the configured router, then the other baselines as conf/router has them."""
    wanted = [RouterVariant(BASELINE, _shipped_router(BASELINE)), RouterVariant(label_of(config.router), config.router)]
    for name in BASELINES:
        shipped = _shipped_router(name)
        if name == "cap":
            capped = [replace(shipped, max_programs_per_engine=programs) for programs in CAPS]
            wanted += [RouterVariant(label_of(router), router) for router in capped]
        else:
            wanted.append(RouterVariant(name, shipped))
    once: dict[str, RouterVariant] = {}
    for arm in wanted:
        once.setdefault(arm.label, arm)
    return list(once.values())


def simulate_arm(
    config: Config, arm: RouterVariant, workload: Workload, capacity_tokens: int, host: HostTier | None = None
) -> SimulationOutcome:
    """Simulates a router. `host` is another tier in the host's memory than the configured one."""
    router = router_of(config, arm.router, capacity_tokens, host)
    speed = speed_of(config.model, config.hardware, config.layout)
    bounds = bounds_of(config) if adapts_concurrency(config) else None
    return simulate_router(router, workload, speed, limits_of(config, capacity_tokens, host), bounds=bounds)


def tiers(config: Config, loads: Sequence[Workload], tokens: int) -> dict[str, Any]:
    """Returns the mean sampled tokens a second of `default`, caps and `tr` with each size of tier that the nodes can
    spare, and the pair to take. `tokens` is what an engine's GPUs hold."""
    sizes_gb = tier_sizes_gb(config)
    rows: dict[str, dict[str, float]] = {}
    for size_gb in sizes_gb:
        tier = sized_tier(config, size_gb)
        for arm in _arms_of_tier(config, loads, max(tokens, tier.tokens)):
            runs = [simulate_arm(config, arm, load, tokens, tier) for load in loads]
            speed = fmean(run.sampled_tokens_per_s for run in runs)
            rows.setdefault(f"{size_gb:g}", {})[arm.label] = _six_digits(speed)
    size, router = choose_pair(rows)
    return {
        "sampled_tokens_per_s_by_gb": rows,
        "loads": len(loads),
        "best": f"engine.host_cache_gb={size} with router={router}",
    }


def choose_pair(rows: Mapping[str, Mapping[str, float]]) -> tuple[str, str]:
    """Returns the tier's size and the router to take: of all that are as good as the best, the one with the smallest
    tier, and the one that needs least to be known. Both are in that order in `rows`."""
    best = max(speed for row in rows.values() for speed in row.values())
    good = [(size, label) for size, row in rows.items() for label, speed in row.items() if speed >= AS_GOOD * best]
    return good[0]


def _arms_of_tier(config: Config, loads: Sequence[Workload], tokens: int) -> list[RouterVariant]:
    """Returns `default`, `tr` and caps: the static ones, and as many programs as `tokens` hold of them."""
    programs = [program for load in loads for step in load.steps for program in step]
    fitting = max(1, int(tokens / max(1.0, mean_context_tokens(programs))))
    most = -(-sizes.trajectories_at_once(config) // max(1, config.layout.engines))
    shipped = _shipped_router("cap")
    caps = sorted({cap for cap in (*CAPS, fitting) if cap < most})
    capped = [replace(shipped, max_programs_per_engine=cap) for cap in caps]
    routers = [_shipped_router(BASELINE), _shipped_router("tr"), *capped]
    return [RouterVariant(label_of(router), router) for router in routers]


def _few_loads(loads: Sequence[Workload]) -> Sequence[Workload]:
    """Returns as many loads as TIER_TURNS allow, but one at least."""
    turns = sum(len(program.turns) for step in loads[0].steps for program in step)
    return loads[: max(1, TIER_TURNS // max(1, turns))]


def label_of(router: RouterConfig) -> str:
    """Returns a router's name, and what differs from the option of that name."""
    # One of somebody else's own has no option of ours to differ from.
    if router.name not in POLICIES:
        return " ".join([router.name, *(f"{key}={value}" for key, value in router.params.items())])
    shipped = asdict(_shipped_router(router.name))
    others = {key: value for key, value in asdict(router).items() if key != "name" and value != shipped[key]}
    differing = [f"{key}={f'{value:g}' if isinstance(value, float) else value}" for key, value in others.items()]
    if router.name == "cap":
        differing = [f"{router.max_programs_per_engine}", *(key for key in differing if not key.startswith("max_prog"))]
    return " ".join([router.name, *differing])


@cache
def _shipped_router(name: str) -> RouterConfig:
    return compose([f"router={name}"]).config.router


def _summarize_outcomes(
    outcomes: Sequence[SimulationOutcome], baseline: Sequence[SimulationOutcome]
) -> dict[str, dict[str, float]]:
    return {
        key: _mean_and_spread(
            [float(_metric_value(key, run, base)) for run, base in zip(outcomes, baseline, strict=True)]
        )
        for key in METRICS
    }


def _metric_value(key: str, outcome: SimulationOutcome, base: SimulationOutcome) -> float:
    if key == "ratio_to_default":
        if base.tokens_per_s:
            return outcome.tokens_per_s / base.tokens_per_s
        return 1.0
    return float(getattr(outcome, key))


def _mean_and_spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": _six_digits(fmean(values)), "spread": _six_digits(stdev(values) if len(values) > 1 else 0.0)}


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")
