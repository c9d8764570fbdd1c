"""`job=simulate`: layout and router under a workload in virtual time, next to the routers that they must beat.

Invariants:
- Every router gets the same loads: `rollout.workload` drawn once a seed, or the last steps of a run
  (`job.workload_from`); the ratio to `default` is taken load by load.
- Equal configurations give equal tables.
- With `rollout.mode=stream` the configured router's training is simulated as well: beside the ways that wait for
  steps, and with the same GPUs divided otherwise.
- `step_rollouts` is what `job=plan` says of a step: the same loads, fewer of them where a step is large.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from swe_rl.config.choices import OutputFormat
from swe_rl.config.compose import compose, config_hash
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config, RouterConfig
from swe_rl.errors import SweRlError
from swe_rl.plan import duration, sizes
from swe_rl.plan.engine_speed import speed_of
from swe_rl.plan.gateway import GatewayNeed, need
from swe_rl.rollout.recorded import last_steps
from swe_rl.router.make import POLICIES
from swe_rl.router.simulation.balance import balance, capacity_of, engines_of_a_part, limits_of, overlaps, router_of
from swe_rl.router.simulation.outcome import Outcome
from swe_rl.router.simulation.pace import Group
from swe_rl.router.simulation.simulate import simulate
from swe_rl.router.simulation.workload import (
    Program,
    Workload,
    WorkloadError,
    draw,
    mean_context_tokens,
    oversubscription,
    parameters_of,
    resized,
)

if TYPE_CHECKING:
    from rich.console import Console

LOADS = 3
PLAN_TURNS = 6000  # that `step_rollouts` simulates: about a second
RECORDED_STEPS = 8  # of a run, that groups are taken from
BALANCE_TURNS = 20_000  # of each simulated training: about three seconds
CAPS = (16, 32)  # programs an engine of the two static caps
BASELINE = "default"
BASELINES = ("sticky_least_loaded", "cap", "tr")
# Key of the outcome -> what the table calls it, and how it is written.
METRICS = {
    "tokens_per_s": ("response tokens/s", "{:.0f}"),
    "ratio_to_default": ("  to default", "{:.3f}"),
    "sampled_tokens_per_s": ("sampled tokens/s", "{:.0f}"),
    "makespan_s": ("makespan s", "{:.0f}"),
    "group_p50_s": ("group done p50 s", "{:.0f}"),
    "group_p99_s": ("group done p99 s", "{:.0f}"),
    "cached_share": ("prompt cached", "{:.1%}"),
    "prefix_hit_rate": ("prefix hit rate", "{:.1%}"),
    "recomputed_tokens": ("recomputed tokens", "{:.2e}"),
    "engine_idle_share": ("engines idle", "{:.1%}"),
    "hold_p50_s": ("hold p50 s", "{:.1f}"),
    "hold_p99_s": ("hold p99 s", "{:.1f}"),
    "hold_max_s": ("hold max s", "{:.1f}"),
    "pauses": ("pauses", "{:.0f}"),
    "moves": ("moves", "{:.0f}"),
    "preemptions": ("preemptions", "{:.0f}"),
    "forced": ("let go by max_hold_s", "{:.0f}"),
    "forced_share": ("  of all requests", "{:.1%}"),
    "forced_share_of_held": ("  of those held", "{:.1%}"),
}
TRAINING = {
    "tokens_per_h": "tokens/h",
    "step_s": "step s",
    "engine_idle_share": "engines idle",
    "trainer_idle_share": "trainer idle",
    "staleness_mean": "mean staleness",
}


@dataclass(frozen=True, slots=True)
class Arm:
    label: str
    router: RouterConfig


@dataclass(frozen=True, slots=True)
class Loads:
    """`origin`: where they are from, for the record."""

    workloads: tuple[Workload, ...]
    origin: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepRollouts:
    """Seconds of one step's rollouts, and where the figure is from."""

    seconds: float
    source: str


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Raises SpeedError, WorkloadError, SimulationTooSmall, RouterError, SimulationError."""
    del folder, origins
    made = compare(config)
    if config.job.format == OutputFormat.json:
        print(json.dumps(made, indent=2))
    else:
        _print_table(made)
    return 0


def compare(
    config: Config, *, capacity_tokens: int | None = None, routers: Sequence[Arm] | None = None
) -> dict[str, Any]:
    """Arms with mean and spread (standard deviation over the loads) of every metric; keys name their units."""
    loads = loads_of(config)
    workloads = loads.workloads
    capacity = capacity_tokens or capacity_of(config)
    compared = {
        arm.label: [simulate_arm(config, arm, load, capacity) for load in workloads] for arm in routers or arms(config)
    }
    programs = [program for load in workloads for step in load.steps for program in step]
    rollouts = _step_rollouts(config, compared[label_of(config.router)], len(workloads))
    made = {
        "config_hash": config_hash(config),
        "workload": {
            **loads.origin,
            "programs": sizes.trajectories_per_step(config),
            "at_once": sizes.trajectories_at_once(config),
            "turns_mean": _round(fmean(len(program.turns) for program in programs)),
            "context_tokens_mean": round(mean_context_tokens(programs)),
            "sampled_tokens_mean": round(fmean(program.sampled_tokens for program in programs)),
        },
        "engines": {
            "engines": config.layout.engines,
            "kv_tokens_per_engine": capacity,
            "max_num_seqs": config.engine.max_num_seqs,
            "oversubscription": _round(
                fmean(oversubscription(load, config.layout.engines, capacity) for load in workloads)
            ),
        },
        "step": {"rollouts_s": rollouts.seconds, "from": rollouts.source},
        "gateway": _gateway(config, programs, rollouts.seconds * len(workloads)).to_record(),
        "routers": {label: _summary(outcomes, compared[BASELINE]) for label, outcomes in compared.items()},
    }
    if overlaps(config):
        made["training"] = balance(config, groups_of, turns=BALANCE_TURNS, loads=LOADS).to_record()
    return made


def _gateway(config: Config, programs: Sequence[Program], rollouts_s: float) -> GatewayNeed:
    calls = sum(len(program.turns) for program in programs)
    return need(config, calls / max(rollouts_s, 1e-9), mean_context_tokens(programs))


def step_rollouts(config: Config) -> StepRollouts:
    """What `job=plan` says: the configured router under as many of the loads as a second allows, on as many engines.

    Where nothing can be simulated, the bound that the rules have, and why. Raises SweRlError for job.workload_from.
    """
    try:
        part, loads = _within(config, PLAN_TURNS)
        arm, capacity = Arm("", config.router), capacity_of(config)
        outcomes = [simulate_arm(part, arm, load, capacity) for load in loads.workloads]
    except (SweRlError, ValueError) as error:
        if config.job.workload_from is not None:
            raise
        return StepRollouts(duration.rollout_s(config), f"at least, in closed form: {error}")
    return _step_rollouts(config, outcomes, len(loads.workloads), part.layout.engines)


def _step_rollouts(config: Config, outcomes: Sequence[Outcome], loads: int, engines: int | None = None) -> StepRollouts:
    """The mean, or the time that a trajectory is said to take where that is longer."""
    simulated_s, stated_s = fmean(outcome.makespan_s for outcome in outcomes), duration.stated_s(config)
    if stated_s > simulated_s:
        return StepRollouts(_round(stated_s), f"rollout.typical_trajectory_s; simulated: {simulated_s:.0f} s")
    part = f" on {engines} of {config.layout.engines} engines" if engines not in (None, config.layout.engines) else ""
    load = "load" if loads == 1 else "loads"
    of = "of job.workload_from" if config.job.workload_from else "drawn from rollout.workload"
    return StepRollouts(_round(simulated_s), f"simulated, router={config.router.name} under {loads} {load} {of}{part}")


def _within(config: Config, turns: int) -> tuple[Config, Loads]:
    """Loads of at most about so many turns; a large step is cut to some of the engines with their share of it.

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
    """Raises WorkloadError, TraceStoreError, DiskError."""
    at_once = at_once or sizes.trajectories_at_once(config)
    if config.job.workload_from is not None:
        return _recorded(config, Path(config.job.workload_from), count, at_once)
    require_pairs(config)
    seeds = [config.trainer.seed + index for index in range(count)]
    parameters = parameters_of(config.rollout.workload)
    drawn = [replace(draw(parameters, config.rollout, seed), concurrency=at_once) for seed in seeds]
    return Loads(tuple(drawn), {"seeds": seeds})


def _recorded(config: Config, path: Path, count: int, at_once: int) -> Loads:
    """The last steps of a run, each made as large as the configuration's."""
    steps = last_steps(path, count)
    loads = [resized(programs, sizes.trajectories_per_step(config)) for programs in steps.values()]
    return Loads(tuple(Workload((programs,), at_once) for programs in loads), {"run": str(path), "steps": list(steps)})


def groups_of(config: Config, load: int, count: int) -> list[Group]:
    """So many groups in the order in which they begin: drawn with the load's seed, or those of a run's last steps, from
    the beginning again where there are fewer. Raises as `loads_of` does."""
    n = config.rollout.n
    if config.job.workload_from is not None:
        steps = last_steps(Path(config.job.workload_from), RECORDED_STEPS)
        programs = resized([program for step in sorted(steps) for program in steps[step]], count * n)
    else:
        require_pairs(config)
        steps_needed = -(-count // config.rollout.prompts_per_step)
        drawn = draw(parameters_of(config.rollout.workload), config.rollout, config.trainer.seed + load, steps_needed)
        programs = tuple(program for step in drawn.steps for program in step)
    return [programs[at : at + n] for at in range(0, count * n, n)]


def require_pairs(config: Config) -> None:
    """Raises WorkloadError."""
    if wrong := list(duration.wrong_pairs(config.rollout.workload)):
        raise WorkloadError(f"rollout.workload.{wrong[0]} is no [median, spread]; job=check says what it may be")


def arms(config: Config) -> list[Arm]:
    """`default` first, then the configured router, then the other baselines as conf/router has them."""
    wanted = [Arm(BASELINE, _shipped(BASELINE)), Arm(label_of(config.router), config.router)]
    for name in BASELINES:
        shipped = _shipped(name)
        if name == "cap":
            capped = [replace(shipped, max_programs_per_engine=programs) for programs in CAPS]
            wanted += [Arm(label_of(router), router) for router in capped]
        else:
            wanted.append(Arm(name, shipped))
    once: dict[str, Arm] = {}
    for arm in wanted:
        once.setdefault(arm.label, arm)
    return list(once.values())


def simulate_arm(config: Config, arm: Arm, workload: Workload, capacity_tokens: int) -> Outcome:
    router = router_of(config, arm.router, capacity_tokens)
    speed = speed_of(config.model, config.hardware, config.layout)
    return simulate(router, workload, speed, limits_of(config, capacity_tokens))


def label_of(router: RouterConfig) -> str:
    """Its name, and what differs from the option of that name."""
    if router.name not in POLICIES:  # somebody's own: no option of ours to differ from
        return " ".join([router.name, *(f"{key}={value}" for key, value in router.params.items())])
    shipped = asdict(_shipped(router.name))
    others = {key: value for key, value in asdict(router).items() if key != "name" and value != shipped[key]}
    differing = [f"{key}={f'{value:g}' if isinstance(value, float) else value}" for key, value in others.items()]
    if router.name == "cap":
        differing = [f"{router.max_programs_per_engine}", *(key for key in differing if not key.startswith("max_prog"))]
    return " ".join([router.name, *differing])


@cache
def _shipped(name: str) -> RouterConfig:
    return compose([f"router={name}"]).config.router


def _summary(outcomes: Sequence[Outcome], baseline: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    return {
        key: _mean_and_spread([float(_value(key, run, base)) for run, base in zip(outcomes, baseline, strict=True)])
        for key in METRICS
    }


def _value(key: str, outcome: Outcome, base: Outcome) -> float:
    if key == "ratio_to_default":
        return outcome.tokens_per_s / base.tokens_per_s if base.tokens_per_s else 1.0
    return float(getattr(outcome, key))


def _mean_and_spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": _round(fmean(values)), "spread": _round(stdev(values) if len(values) > 1 else 0.0)}


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def _print_table(made: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    for section in ("workload", "engines", "step", "gateway"):
        facts = ", ".join(f"{key} {value}" for key, value in made[section].items())
        console.print(f"[bold]{section}[/] {facts}")
    routers = made["routers"]
    table = Table(box=None, pad_edge=False)
    table.add_column("mean ± spread over loads")
    for label in routers:
        table.add_column(label, justify="right")
    for key, (title, written) in METRICS.items():
        table.add_row(title, *_cells(key, written, routers))
    console.print(table)
    if "training" in made:
        _print_training(console, made["training"])


def _print_training(console: "Console", made: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("trained, mean over loads", *TRAINING.values(), "tokens by staleness"):
        table.add_column(title, justify="left" if title.startswith("trained,") else "right")
    for label, row in (*made["ways"].items(), *made["divisions"].items()):
        ages = ", ".join(f"{age}: {share:.0%}" for age, share in row["staleness"].items())
        figures = (f"{row[key]:.0%}" if key.endswith("share") else f"{row[key]:.4g}" for key in TRAINING)
        table.add_row(label, *figures, ages)
    console.print(table)
    console.print(f"[bold]best[/] {made['best']}; with the configured layout the {made['slower_side']} are waited for")


def _cells(key: str, written: str, routers: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    for summary in routers.values():
        mean, spread = summary[key]["mean"], summary[key]["spread"]
        yield f"{written.format(mean)} ± {written.format(spread)}" if spread else written.format(mean)
