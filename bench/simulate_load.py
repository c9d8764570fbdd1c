"""The programs of bench/load.py through the simulator: what a router would do with them on engines of a kind.

    python -m bench.simulate_load --engines 2 --programs 80 --seeds 1 --arms "default tr:acting_token_weight=1 cap:20"

An arm is one of bench/arms.py; `best_cap`, the static cap of CAPS with which the load is done soonest, on average over
the seeds; or `no_limit`, the plain router with a cache that holds everything: what no scheduling can do much better.

Invariants:
- Seed 0 draws the very programs that bench/router_bench.py sends to real servers, so the two can be put side by side.
- Ratios are taken seed by seed, to the first arm.
- `best_cap` is searched on the very load that it is then measured with: it is better than a cap chosen beforehand.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from bench.arms import router_config
from bench.load import LoadOptions, make_load
from swe_rl.config.compose import compose
from swe_rl.config.schema import Config
from swe_rl.job.simulate import Arm, simulate_arm
from swe_rl.router.simulation.outcome import Outcome
from swe_rl.router.simulation.workload import Workload

ARMS = "default best_cap tr tr_atw01 tr:acting_token_weight=1 no_limit"
CAPS = tuple(range(8, 41, 2))  # programs an engine


@dataclass(frozen=True, slots=True)
class Machine:
    """`kv_tokens`: of one engine."""

    config: Config
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One arm under one load, in virtual time. `done_s`: when each program was done, ascending."""

    tokens_per_s: float  # sampled
    cached_share: float
    done_s: tuple[float, ...]

    @property
    def mean_done_s(self) -> float:
        return fmean(self.done_s)


def machine(engines: int, hardware: str, kv_tokens: int) -> Machine:
    """Qwen3-14B, one engine a GPU, no trainer."""
    layout = ("layout=dp4", f"layout.engines={engines}", "layout.trainer_gpus=0", "layout.sequence_parallel=1")
    length = "rollout.max_trajectory_tokens=16384"
    return Machine(
        compose(["model=qwen3_14b", *layout, f"hardware={hardware}", length, "job=rollout"]).config, kv_tokens
    )


def workloads(programs: int, seeds: int, samples_per_prompt: int = 1, first_seed: int = 0) -> list[Workload]:
    options = LoadOptions(programs=programs, samples_per_prompt=samples_per_prompt)
    loads = [make_load(replace(options, seed=first_seed + index)).programs for index in range(seeds)]
    return [Workload(steps=(load,), concurrency=len(load), think_s=0.0) for load in loads]


def measure(arm: str, on: Machine, loads: Sequence[Workload]) -> tuple[str, list[Measured]]:
    """What the arm turned out to be, and one measurement a load. Raises ArmError."""
    if arm == "best_cap":
        return _best_cap(on, loads)
    if arm == "no_limit":
        everything = max(sum(program.total_tokens for step in load.steps for program in step) for load in loads)
        on, arm = Machine(on.config, 2 * everything), "default"
        return "no_limit", measure(arm, on, loads)[1]
    made = Arm(arm, router_config(arm))
    return arm, [_measured(simulate_arm(on.config, made, load, on.kv_tokens), load) for load in loads]


def _best_cap(on: Machine, loads: Sequence[Workload]) -> tuple[str, list[Measured]]:
    """Of caps that bind: one that is higher than the number of an engine's programs is the plain router."""
    programs = max(len(load.steps[0]) for load in loads)
    binding = [cap for cap in CAPS if cap * on.config.layout.engines < programs] or [CAPS[-1]]
    found = [measure(f"cap:{cap}", on, loads) for cap in binding]
    return max(found, key=lambda one: fmean(measured.tokens_per_s for measured in one[1]))


def _measured(outcome: Outcome, load: Workload) -> Measured:
    """Groups of several programs count once a program."""
    size = len(load.steps[0]) // max(1, len(outcome.steps[0].group_s))
    done = tuple(at for at in outcome.steps[0].group_s for _ in range(size))
    return Measured(outcome.sampled_tokens_per_s, outcome.cached_share, done)


def row(name: str, found: Sequence[Measured], first: Sequence[Measured]) -> str:
    ratios = [one.tokens_per_s / base.tokens_per_s for one, base in zip(found, first, strict=True)]
    means = [one.mean_done_s / base.mean_done_s for one, base in zip(found, first, strict=True)]
    spread = stdev(ratios) if len(ratios) > 1 else 0.0
    done_s, cached = fmean(one.mean_done_s for one in found), fmean(one.cached_share for one in found)
    return (
        f"{name:<28} {fmean(one.tokens_per_s for one in found):>9.1f} {fmean(ratios):>8.3f} {spread:>6.3f}  "
        f"{min(ratios):.3f} - {max(ratios):.3f} {done_s:>11.1f} {fmean(means):>8.3f} {cached:>7.1%}"
    )


def add_load_arguments(parser: argparse.ArgumentParser, *, seeds: int, first_seed: int) -> None:
    """What `machine` and `workloads` are told; the defaults of both seeds are the caller's."""
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--first-seed", type=int, default=first_seed)
    parser.add_argument("--kv-tokens", type=int, default=120_000, help="of one engine")
    parser.add_argument("--hardware", default="h200x8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate routers under the load generator's programs.")
    parser.add_argument("--arms", default=ARMS, help="separated by blanks; ratios are to the first")
    parser.add_argument("--programs", type=int, default=160)
    parser.add_argument("--samples-per-prompt", type=int, default=1)
    add_load_arguments(parser, seeds=4, first_seed=0)
    arguments = parser.parse_args()
    on = machine(arguments.engines, arguments.hardware, arguments.kv_tokens)
    loads = workloads(arguments.programs, arguments.seeds, arguments.samples_per_prompt, arguments.first_seed)
    first: list[Measured] = []
    print(f"{arguments.programs} programs, {arguments.engines} engines, {arguments.seeds} seeds")
    header = f"{'arm':<28} {'tokens/s':>9} {'x first':>8} {'+-':>6}  {'range':<13}"
    print(f"{header} {'mean done s':>11} {'x first':>8} {'cached':>7}")
    for arm in arguments.arms.split():
        told, found = measure(arm, on, loads)
        first = first or found
        print(row(told if told == arm else f"{arm} = {told}", found, first), flush=True)


if __name__ == "__main__":
    main()
