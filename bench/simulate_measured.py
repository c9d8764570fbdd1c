"""How far the simulator is from what bench/router_bench.py measured on real servers: each of its lines, simulated.

    python -m bench.simulate_measured arms.jsonl

Arms that conf/router does not have (other projects' routers, servers without one) are left out.

Invariants:
- A line is simulated with the programs, engines, caches and router settings that it names; programs that came out
  differently since then are refused.
- The policies are today's: a line that was measured with an older one is not comparable.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.arms import ArmError, router_config
from bench.load import LoadOptions, make_load
from bench.simulate_load import Machine, machine
from swe_rl.config.schema import RouterConfig
from swe_rl.job.simulate import Arm, simulate_arm
from swe_rl.router.simulation.outcome import Outcome, percentile
from swe_rl.router.simulation.workload import Workload


class OtherLoadError(ValueError):
    """The line's programs are not the ones that its options give today."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one arm. `done_s`: of programs, from the start of the load."""

    tokens_per_s: float  # sampled
    makespan_s: float
    mean_done_s: float
    half_done_s: float
    most_done_s: float  # nine of ten
    cached_share: float


def measured(line: dict[str, Any]) -> Figures:
    done_s = [program["ended_s"] for program in line["by_program"]]
    return _figures(line["tokens_per_s"], done_s, line["cached_share"])


def simulated(line: dict[str, Any], hardware: str) -> Figures:
    """Raises ArmError for what conf/router does not have, OtherLoadError."""
    router = RouterConfig(**line["router"]) if line.get("router") else router_config(line["arm"])
    load = make_load(LoadOptions(**line["options"]))
    if load.digest != line["workload"]:
        raise OtherLoadError(f"{line['arm']}: its programs were {line['workload']}, the options give {load.digest} now")
    on: Machine = machine(line["engines"], hardware, min(line["kv_capacity_tokens"]))
    workload = Workload((load.programs,), len(load.programs))
    outcome: Outcome = simulate_arm(on.config, Arm(line["arm"], router), workload, on.kv_tokens)
    return _figures(outcome.sampled_tokens_per_s, outcome.steps[0].group_s, outcome.cached_share)


def _figures(tokens_per_s: float, done_s: Sequence[float], cached_share: float) -> Figures:
    """Of groups the last program's end counts: what was measured is right for groups of one program only."""
    ended = sorted(done_s)
    return Figures(tokens_per_s, ended[-1], fmean(ended), percentile(ended, 50), percentile(ended, 90), cached_share)


def rows(lines: Sequence[dict[str, Any]], hardware: str) -> Iterator[str]:
    yield (
        f"{'arm':<22} {'tokens/s':>8} {'simulated':>9} {'error':>7} {'mean done s':>11} {'simulated':>9} {'error':>7} "
        f"{'half s':>7} {'':>7} {'90 % s':>7} {'':>7} {'last s':>7} {'':>7} {'cached':>6} {'':>6}"
    )
    for line in lines:
        try:
            own = simulated(line, hardware)
        except ArmError:
            continue
        real = measured(line)
        rate, done = own.tokens_per_s / real.tokens_per_s - 1, own.mean_done_s / real.mean_done_s - 1
        yield (
            f"{line['engines']} x {line['arm']:<18} {real.tokens_per_s:>8.1f} {own.tokens_per_s:>9.1f} {rate:>7.1%} "
            f"{real.mean_done_s:>11.1f} {own.mean_done_s:>9.1f} {done:>7.1%} {real.half_done_s:>7.1f} "
            f"{own.half_done_s:>7.1f} {real.most_done_s:>7.1f} {own.most_done_s:>7.1f} {real.makespan_s:>7.1f} "
            f"{own.makespan_s:>7.1f} {real.cached_share:>6.1%} {own.cached_share:>6.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate what was measured, and show the errors.")
    parser.add_argument("measured", type=Path, nargs="+", help="what bench.router_bench wrote")
    parser.add_argument("--arms", default="", help="of these only, separated by blanks")
    parser.add_argument("--hardware", default="h200x8")
    arguments = parser.parse_args()
    lines = [json.loads(line) for path in arguments.measured for line in path.read_text(encoding="utf-8").splitlines()]
    wanted = arguments.arms.split()
    for row in rows([line for line in lines if not wanted or line["arm"] in wanted], arguments.hardware):
        print(row, flush=True)


if __name__ == "__main__":
    main()
