"""Groups that flow through the simulator: does a router that hears of the groups serve a trainer better?

    python -m bench.stream_load --seeds 3 --arms "tr tr+groups default cap:20" --concurrency 48 96

An arm is one of bench/arms.py; `+groups`: its router is told how many of each group have not ended. Programs are those
of bench/load.py, groups of `--n`; a step takes the oldest `--prompts` complete groups, trains for `--train-s`, and
empties the engines' caches, as an update of their weights does.

Invariants:
- Groups begin, are paced and taken as `rollout/flow` does it; the routers are those of the gateway.
- Figures are in virtual time and depend on the arguments alone.
"""

import argparse
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from bench.arms import router_config
from bench.load import LoadOptions, make_load
from bench.simulate_load import Machine, add_load_arguments, machine
from swe_rl.job.simulate import speed_of
from swe_rl.router.core import GroupLeft, Router, SyncBegan, SyncEnded
from swe_rl.router.make import make_router
from swe_rl.router.simulation.engine_model import EngineLimits
from swe_rl.router.simulation.fleet import Fleet
from swe_rl.router.simulation.workload import Program

_TOLD = "+groups"


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


@dataclass(frozen=True, slots=True)
class Pace:
    """As `rollout.flow.Pace`; `train_s`: a step of the trainer."""

    n: int
    prompts: int
    ahead: int
    concurrency: int
    steps: int
    train_s: float


@dataclass(slots=True)
class Flowed:
    end_s: float = 0.0
    trainer_idle_s: float = 0.0
    ages: list[int] = field(default_factory=list)  # of groups in steps, since they began


class FlowSimulation:
    """Trains `pace.steps` steps of `groups`, then stops. `told`: the router hears of groups."""

    def __init__(
        self, router: Router, groups: Sequence[Sequence[Program]], on: Machine, pace: Pace, *, told: bool
    ) -> None:
        engine = on.config.engine
        limits = EngineLimits(on.kv_tokens, engine.max_num_seqs, engine.max_num_batched_tokens, engine.prefix_caching)
        speed = speed_of(on.config.model, on.config.hardware, on.config.layout)
        self._fleet = Fleet(router, speed, limits)
        self._pace, self._told, self._waiting_groups = pace, told, deque(groups)
        self._ready: deque[Program] = deque()
        self._numbers: dict[str, int] = {}  # of groups that are begun and not taken
        self._begun_with: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._complete: list[str] = []
        self._acting = self._version = self._training = 0
        self._idle_since_s = 0.0
        self.flowed = Flowed()

    def flow(self) -> Flowed:
        self._fill()
        self._fleet.run(lambda: self._version >= self._pace.steps)
        self.flowed.end_s = self._fleet.clock.now_s
        return self.flowed

    def _fill(self) -> None:
        pace = self._pace
        while self._acting < pace.concurrency:
            room = (1 + pace.ahead) * pace.prompts - len(self._numbers) - self._training
            if not self._ready and room > 0 and self._waiting_groups:
                group = self._waiting_groups.popleft()
                self._numbers[group[0].group] = len(self._begun_with)
                self._begun_with[group[0].group] = self._version
                self._ready.extend(group)
                self._tell(group[0].group, len(group))
            if not self._ready:
                return
            self._acting += 1
            program = self._ready.popleft()
            self._fleet.begin(program, partial(self._end_program, program))

    def _tell(self, group: str, left: int) -> None:
        self._left[group] = left
        if self._told:
            self._fleet.feed(GroupLeft(group, left))

    def _end_program(self, program: Program) -> None:
        self._fleet.release(program)
        self._acting -= 1
        self._tell(program.group, self._left[program.group] - 1)
        if not self._left[program.group]:
            self._complete.append(program.group)
        self._train()
        self._fill()

    def _train(self) -> None:
        if self._training or len(self._complete) < self._pace.prompts:
            return
        self.flowed.trainer_idle_s += self._fleet.clock.now_s - self._idle_since_s
        self._complete.sort(key=self._numbers.__getitem__)
        taken, self._complete = self._complete[: self._pace.prompts], self._complete[self._pace.prompts :]
        for group in taken:
            del self._numbers[group]
            self.flowed.ages.append(self._version - self._begun_with[group])
        self._training = len(taken)
        self._fleet.clock.after(self._pace.train_s, self._trained)

    def _trained(self) -> None:
        self._training, self._version, self._idle_since_s = 0, self._version + 1, self._fleet.clock.now_s
        self._fleet.feed(SyncBegan())
        for engine in self._fleet.engines.values():
            engine.cache.flush()
        self._fleet.feed(SyncEnded(kv_kept=False))
        self._train()
        self._fill()


def flowed(arm: str, on: Machine, pace: Pace, seed: int) -> Flowed:
    """Raises ArmError."""
    groups = pace.prompts * (pace.steps + pace.ahead + 2)
    load = make_load(LoadOptions(programs=groups * pace.n, samples_per_prompt=pace.n, seed=seed)).programs
    by_group: dict[str, list[Program]] = {}
    for program in load:
        by_group.setdefault(program.group, []).append(program)
    router = make_router(
        router_config(arm.removesuffix(_TOLD)),
        [_Named(f"engine{index}") for index in range(on.config.layout.engines)],
        capacity_tokens=on.kv_tokens,
        max_num_seqs=on.config.engine.max_num_seqs,
    )
    return FlowSimulation(router, list(by_group.values()), on, pace, told=arm.endswith(_TOLD)).flow()


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate routers under groups that flow.")
    parser.add_argument(
        "--arms", default=f"tr tr{_TOLD} default cap:20", help="separated by blanks; ratios are to the first"
    )
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--ahead", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--train-s", type=float, default=20.0)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[96])
    add_load_arguments(parser, seeds=3, first_seed=0)
    arguments = parser.parse_args()
    on = machine(arguments.engines, arguments.hardware, arguments.kv_tokens)
    print(f"{'arm':<14} {'places':>6} {'steps/h':>8} {'x first':>8}  {'range':<13} {'age':>5} {'trainer idle':>12}")
    first: list[Flowed] = []
    for concurrency in arguments.concurrency:
        for arm in arguments.arms.split():
            pace = Pace(
                arguments.n, arguments.prompts, arguments.ahead, concurrency, arguments.steps, arguments.train_s
            )
            seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
            measured = [flowed(arm, on, pace, seed) for seed in seeds]
            first = first or measured
            ratios = [base.end_s / run.end_s for run, base in zip(measured, first, strict=True)]
            speed = fmean(3600 * pace.steps / run.end_s for run in measured)
            age = fmean(fmean(run.ages) for run in measured)
            idle = fmean(run.trainer_idle_s / run.end_s for run in measured)
            shown = f"{min(ratios):.3f} - {max(ratios):.3f}"
            print(
                f"{arm:<14} {concurrency:>6} {speed:>8.1f} {fmean(ratios):>8.3f}  {shown} {age:>5.2f} {idle:>11.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
