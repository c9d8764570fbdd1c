"""Routers and tiers of cache compared in simulation: five loads, three sizes of tier, many draws.

    python -m bench.tier_table --draws 10 --out tiers.jsonl

One engine is Qwen3-14B on an H200 with 120,000 tokens of keys and values; two of them serve each load, whose programs
begin at once. `cap` is the best of several caps, chosen for each load and tier over all draws: what a user finds who
tries them all. `auto` is `default` with rollout.concurrency=auto.

Invariants:
- Every arm of a load sees the same programs; ratios are taken draw by draw.
- The loads are those that bench.router_bench measures with: the same draws.
- An interval is that of the mean over draws, at 95 % (Student's t).
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bench.arms import router_config
from bench.load import Load, LoadOptions, make_load
from swe_rl.config.compose import compose
from swe_rl.config.schema import Config
from swe_rl.facts.concurrency import Bounds
from swe_rl.plan.concurrency import START_SHARE
from swe_rl.plan.engine_speed import EngineSpeed, speed_of
from swe_rl.plan.host_tier import HostTier
from swe_rl.router.make import make_router
from swe_rl.router.simulation.engine_model import EngineLimits
from swe_rl.router.simulation.simulate import simulate_router
from swe_rl.router.simulation.workload import Workload, mean_context_tokens

KV_TOKENS = 120_000
TOKEN_BYTES = 160 * 1024
GIB = 1 << 30
TIERS_GIB = (0, 30, 90)
CAPS = (4, 8, 12, 16, 20, 24, 32)
ENGINES = 2
AUTO = "auto"
# Two-sided 95 % of Student's t, by the number of draws less one; from 30 on that of the normal distribution.
_T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 11: 2.20, 14: 2.14, 19: 2.09}


@dataclass(frozen=True, slots=True)
class NamedLoad:
    """A load by name. `at_once` programs are under way; the others wait for one of them to end."""

    name: str
    options: LoadOptions


LOADS = (
    NamedLoad("published", LoadOptions(programs=80)),
    NamedLoad("groups of 4", LoadOptions(programs=80, samples_per_prompt=4)),
    NamedLoad("long tools", LoadOptions(programs=80, tool_median_s=5.0, tool_sigma=1.4)),
    NamedLoad("long contexts", LoadOptions(programs=80, token_scale=4.0, max_trajectory_tokens=60_000)),
    NamedLoad("undersubscribed", LoadOptions(programs=16)),
)


@dataclass(frozen=True, slots=True)
class _Engine:
    name: str


@dataclass(frozen=True, slots=True)
class Task:
    """One simulation: a load's draw, a tier and an arm."""

    load: NamedLoad
    seed: int
    tier_gib: int
    arm: str


@dataclass(frozen=True, slots=True)
class Result:
    task: Task
    tokens_per_s: float
    makespan_s: float
    cached_share: float
    pauses: int


@dataclass(slots=True)
class Cell:
    """The results of one load with one tier: sampled tokens a second by arm and draw."""

    load: str
    tier_gib: int
    speeds: dict[str, dict[int, float]] = field(default_factory=dict)

    @property
    def best_cap(self) -> str:
        caps = [arm for arm in self.speeds if arm.startswith("cap")]
        return max(caps, key=lambda arm: fmean(self.speeds[arm].values()))

    def ratios(self, arm: str, base: str) -> list[float]:
        return [self.speeds[arm][seed] / self.speeds[base][seed] for seed in sorted(self.speeds[base])]


def engine_of_h200() -> tuple[Config, EngineSpeed]:
    config = compose(["layout=dp4", "hardware=h200x8", "model=qwen3_14b"]).config
    return config, speed_of(config.model, config.hardware, config.layout)


def simulate_task(task: Task) -> Result:
    """Simulates one arm under one draw."""
    config, speed = engine_of_h200()
    load = make_load(replace(task.load.options, seed=task.seed))
    host_tokens = task.tier_gib * GIB // TOKEN_BYTES
    tier = HostTier(host_tokens, speed.copy_s, speed.token_s)
    felt = task.arm == AUTO
    router = make_router(
        router_config("default" if felt else task.arm),
        [_Engine(f"engine{number}") for number in range(ENGINES)],
        capacity_tokens=KV_TOKENS,
        max_num_seqs=256,
        host=tier,
    )
    limits = EngineLimits(KV_TOKENS, max_num_seqs=256, max_num_batched_tokens=8192, host_tokens=host_tokens)
    bounds = start_of(load, max(KV_TOKENS, host_tokens)) if felt else None
    workload = Workload((load.programs,), len(load.programs))
    outcome = simulate_router(router, workload, speed, limits, bounds=bounds)
    return Result(task, outcome.sampled_tokens_per_s, outcome.makespan_s, outcome.cached_share, outcome.pauses)


def start_of(load: Load, held_tokens: int) -> Bounds:
    """Returns where rollout.concurrency=auto begins, with the programs' mean length as the typical one."""
    most = len(load.programs)
    fitting = int(START_SHARE * ENGINES * held_tokens / mean_context_tokens(load.programs))
    return Bounds(ENGINES, most, min(most, max(ENGINES, fitting)))


def interval95(values: Sequence[float]) -> float:
    """Returns half of the width of the mean's 95 % interval, or 0 for a single value."""
    if len(values) < 2:
        return 0.0
    degrees = len(values) - 1
    t = next((_T95[known] for known in sorted(_T95, reverse=True) if known <= degrees), 12.71)
    return t * stdev(values) / math.sqrt(len(values))


def tasks_of(loads: Sequence[NamedLoad], tiers: Sequence[int], arms: Sequence[str], draws: int) -> Iterator[Task]:
    """Yields draw after draw, so that what is there after a while has all arms."""
    for seed in range(draws):
        for load in loads:
            for tier_gib in tiers:
                for arm in arms:
                    yield Task(load, seed, tier_gib, arm)


def key_of(line: Mapping[str, Any]) -> tuple[str, int, int, str]:
    return line["load"], line["tier_gib"], line["seed"], line["arm"]


def line_of(result: Result) -> dict[str, Any]:
    task = result.task
    named = {"load": task.load.name, "tier_gib": task.tier_gib, "seed": task.seed, "arm": task.arm}
    figures = {name: getattr(result, name) for name in ("tokens_per_s", "makespan_s", "cached_share", "pauses")}
    return {**named, **figures}


def read_lines(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table_of(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the table's lines. A cell has the arms of which most draws are known, and the draws that they all had."""
    titles = ("load", "tier", "draws", "default, tokens/s", "auto / default", "best cap / default", "tr / default")
    yield "| " + " | ".join((*titles, "tr / best other")) + " |"
    yield "|---|---|---|---|---|---|---|---|"
    cells: dict[tuple[str, int], Cell] = {}
    for line in lines:
        place = (line["load"], line["tier_gib"])
        cell = cells.setdefault(place, Cell(*place))
        cell.speeds.setdefault(line["arm"], {})[line["seed"]] = line["tokens_per_s"]
    for cell in cells.values():
        most = max(len(speeds) for speeds in cell.speeds.values())
        whole = {arm: speeds for arm, speeds in cell.speeds.items() if len(speeds) == most}
        common = set.intersection(*(set(speeds) for speeds in whole.values()))
        cell.speeds = {arm: {seed: speeds[seed] for seed in common} for arm, speeds in whole.items()}
        if common:
            yield row_of(cell)


def row_of(cell: Cell) -> str:
    """Returns a line of the table: `tr` against `default`, and against the best other arm."""
    best_other = max(["default", cell.best_cap], key=lambda arm: fmean(cell.speeds[arm].values()))
    draws = len(cell.speeds["default"])
    columns = [cell.load, f"{cell.tier_gib} GiB", f"{draws}", f"{fmean(cell.speeds['default'].values()):.0f}"]
    for arm, base in ((AUTO, "default"), (cell.best_cap, "default"), ("tr", "default"), ("tr", best_other)):
        if arm not in cell.speeds:
            columns.append("-")
            continue
        ratios = cell.ratios(arm, base)
        label = f" ({arm})" if arm.startswith("cap") else ""
        columns.append(f"{fmean(ratios):.2f} ± {interval95(ratios):.2f}{label}")
    return "| " + " | ".join(columns) + " |"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Compares routers and tiers of cache in simulation.")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--loads", default=",".join(load.name for load in LOADS))
    parser.add_argument("--tiers", default=",".join(map(str, TIERS_GIB)))
    parser.add_argument("--arms", default=",".join(["default", AUTO, *(f"cap:{cap}" for cap in CAPS), "tr"]))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="results; those that are there already are not simulated again")
    arguments = parser.parse_args(words)
    loads = [load for load in LOADS if load.name in arguments.loads.split(",")]
    tiers = [int(size) for size in arguments.tiers.split(",")]
    lines = read_lines(arguments.out)
    known = {key_of(line) for line in lines}
    wanted = tasks_of(loads, tiers, arguments.arms.split(","), arguments.draws)
    tasks = [task for task in wanted if (task.load.name, task.tier_gib, task.seed, task.arm) not in known]
    with ProcessPoolExecutor(arguments.processes) as pool:
        for result in pool.map(simulate_task, tasks):
            lines.append(line_of(result))
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    for row in table_of(lines):
        print(row)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
