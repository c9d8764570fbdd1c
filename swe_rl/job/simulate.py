"""`job=simulate`: layout and router under a workload in virtual time, next to the routers that they must beat.

Invariants:
- Every router gets the same workloads, one a seed; the ratio to `default` is taken seed by seed.
- Equal configurations give equal tables.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from swe_rl.config import memory, sizes
from swe_rl.config.choices import OutputFormat
from swe_rl.config.compose import compose, config_hash
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config, RouterConfig
from swe_rl.router.make import make_router
from swe_rl.router.simulation.engine_model import EngineLimits
from swe_rl.router.simulation.outcome import Outcome
from swe_rl.router.simulation.simulate import simulate
from swe_rl.router.simulation.speed import speed_of
from swe_rl.router.simulation.workload import Workload, WorkloadParameters, draw, mean_context_tokens, oversubscription

if TYPE_CHECKING:
    from swe_rl.logger.folder import RunFolder

SEEDS = 3
CAPS = (16, 32)  # programs an engine of the two static caps
BASELINE = "default"
BASELINES = ("sticky_least_loaded", "cap", "tr")
# Key of the outcome -> what the table calls it, and how it is written.
METRICS = {
    "tokens_per_s": ("tokens/s", "{:.0f}"),
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
    "forced": ("forced", "{:.0f}"),
}


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


@dataclass(frozen=True, slots=True)
class Arm:
    label: str
    router: RouterConfig


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Raises SpeedError, SimulationTooSmall, RouterError, SimulationError."""
    del folder, origins
    made = compare(config)
    if config.job.format == OutputFormat.json:
        print(json.dumps(made, indent=2))
    else:
        _print_table(made)
    return 0


def compare(
    config: Config,
    parameters: WorkloadParameters | None = None,
    *,
    capacity_tokens: int | None = None,
    seeds: int = SEEDS,
) -> dict[str, Any]:
    """Arms with mean and spread (standard deviation over the seeds) of every metric; keys name their units."""
    first = config.trainer.seed
    workloads = [draw(parameters or WorkloadParameters(), config.rollout, first + index) for index in range(seeds)]
    capacity = capacity_tokens or capacity_of(config)
    compared = {arm.label: [simulate_arm(config, arm, load, capacity) for load in workloads] for arm in arms(config)}
    programs = [program for load in workloads for step in load.steps for program in step]
    return {
        "config_hash": config_hash(config),
        "workload": {
            "seeds": [first + index for index in range(seeds)],
            "programs": sizes.trajectories_per_step(config),
            "at_once": config.rollout.concurrency,
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
        "routers": {label: _summary(outcomes, compared[BASELINE]) for label, outcomes in compared.items()},
    }


def arms(config: Config) -> list[Arm]:
    """`default` first, then the configured router, then the other baselines as conf/router has them."""
    wanted = [Arm(BASELINE, _shipped(BASELINE)), Arm(_label(config.router), config.router)]
    for name in BASELINES:
        shipped = _shipped(name)
        if name == "cap":
            capped = [replace(shipped, max_programs_per_engine=programs) for programs in CAPS]
            wanted += [Arm(_label(one), one) for one in capped]
        else:
            wanted.append(Arm(name, shipped))
    once: dict[str, Arm] = {}
    for arm in wanted:
        once.setdefault(arm.label, arm)
    return list(once.values())


def simulate_arm(config: Config, arm: Arm, workload: Workload, capacity_tokens: int) -> Outcome:
    router = make_router(
        arm.router,
        [_Named(f"engine{index}") for index in range(config.layout.engines)],
        capacity_tokens=capacity_tokens,
        max_num_seqs=config.engine.max_num_seqs,
    )
    speed = speed_of(config.model, config.hardware, config.layout)
    limits = EngineLimits(
        kv_capacity_tokens=capacity_tokens,
        max_num_seqs=config.engine.max_num_seqs,
        max_num_batched_tokens=config.engine.max_num_batched_tokens,
        prefix_caching=config.engine.prefix_caching,
    )
    return simulate(router, workload, speed, limits, max_hold_s=arm.router.max_hold_s)


def capacity_of(config: Config) -> int:
    """Tokens of keys and values of one engine; without a GPU, what its sequences need at full length."""
    if sizes.uses_no_gpu(config.layout):
        return config.engine.max_num_seqs * config.engine.max_model_len
    return memory.kv_tokens_per_engine(config)


def _label(router: RouterConfig) -> str:
    """Its name, and what differs from the option of that name."""
    shipped = asdict(_shipped(router.name))
    differing = [f"{key}={value:g}" for key, value in asdict(router).items() if key != "name" and value != shipped[key]]
    if router.name == "cap":
        differing = [f"{router.max_programs_per_engine}", *(one for one in differing if not one.startswith("max_prog"))]
    return " ".join([router.name, *differing])


@cache
def _shipped(name: str) -> RouterConfig:
    return compose([f"router={name}"]).config.router


def _summary(outcomes: Sequence[Outcome], baseline: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    return {
        key: _mean_and_spread([float(_value(key, one, base)) for one, base in zip(outcomes, baseline, strict=True)])
        for key in METRICS
    }


def _value(key: str, one: Outcome, base: Outcome) -> float:
    if key == "ratio_to_default":
        return one.tokens_per_s / base.tokens_per_s if base.tokens_per_s else 1.0
    return float(getattr(one, key))


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
    for section in ("workload", "engines"):
        facts = ", ".join(f"{key} {value}" for key, value in made[section].items())
        console.print(f"[bold]{section}[/] {facts}")
    routers = made["routers"]
    table = Table(box=None, pad_edge=False)
    table.add_column("mean ± spread over seeds")
    for label in routers:
        table.add_column(label, justify="right")
    for key, (title, written) in METRICS.items():
        table.add_row(title, *_cells(key, written, routers))
    console.print(table)


def _cells(key: str, written: str, routers: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    for summary in routers.values():
        mean, spread = summary[key]["mean"], summary[key]["spread"]
        yield f"{written.format(mean)} ± {written.format(spread)}" if spread else written.format(mean)


def recorded_workload(folder: "RunFolder", step: int, concurrency: int) -> Workload:
    """One step of a run, from its trajectories and traces. Raises TraceStoreError, DiskError."""
    from swe_rl.gateway.store import TraceStore
    from swe_rl.logger.jsonl import read_jsonl
    from swe_rl.router.simulation.recorded import RecordedTurn, program_of, shared_tokens

    store = TraceStore(folder.traces_db)
    programs, prompts = [], []
    try:
        for record in read_jsonl(folder.trajectories(step)):
            traces = store.traces(record["trajectory_id"])
            turns = [
                RecordedTurn(
                    len(trace.prompt_ids),
                    len(trace.sampled_ids),
                    trace.created_s - trace.queue_s - trace.prefill_s - trace.decode_s,
                    trace.created_s,
                )
                for trace in traces
            ]
            times_s = record["times_s"]
            boot_s, grade_s = times_s.get("boot", 0.0), times_s.get("grade", 0.0)
            program = program_of(record["trajectory_id"], record["group_id"], turns, boot_s=boot_s, grade_s=grade_s)
            if program is not None:
                programs.append(program)
                prompts.append(traces[0].prompt_ids)
    finally:
        store.close()
    shared = shared_tokens(prompts)
    return Workload((tuple(replace(program, system_tokens=shared) for program in programs),), concurrency)
