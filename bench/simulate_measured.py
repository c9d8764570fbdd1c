"""How far is the simulation from what was measured on GPUs? Each measured arm of this file, simulated.

    python -m bench.simulate_measured

Invariants:
- No setting of the simulation was fitted to these arms but one: `default` on four H200 (plan/engine_speed.py).
- A measurement whose draw is known is simulated with this draw. Of the others only the sizes are known, and the mean
  over several draws is compared.
- A measurement that was cut after some seconds is simulated for as long: young programs are short, and a run that ends
  early says nothing of the time when they are long.
- A router that did not know the tier is simulated as one that is told of none.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf
from statistics import fmean

from bench.arms import router_config
from bench.load import LoadOptions, make_load
from bench.tier_table import GIB, KV_TOKENS, TOKEN_BYTES, engine_of_h200
from swe_rl.config.schema import RolloutConfig
from swe_rl.plan.host_tier import HostTier
from swe_rl.router.core import Action, Event, Router, Tick
from swe_rl.router.make import make_router
from swe_rl.router.simulation.engine_model import EngineLimits
from swe_rl.router.simulation.simulate import Simulation
from swe_rl.router.simulation.workload import (
    AGENT_LOAD,
    Lognormal,
    SimulatedProgram,
    Workload,
    draw_workload,
)

DRAWS = 5
# The throughput of two arms that differ by less is the same: two runs of one arm differ by so much.
SAME = 0.01


@dataclass(frozen=True, slots=True)
class MeasuredArm:
    """An arm as measured: sampled tokens a second. With `blind` the router did not know of the tier."""

    router: str
    tokens_per_s: float
    tier_gib: int = 0
    blind: bool = False

    @property
    def name(self) -> str:
        tier = f", {self.tier_gib} GiB" if self.tier_gib else ""
        return f"{self.router}{tier}{' (blind)' if self.blind else ''}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Arms that were measured with one load. `options` None: with a draw of which the sizes alone are known."""

    name: str
    engines: int
    programs: int
    arms: tuple[MeasuredArm, ...]
    options: LoadOptions | None = None
    until_s: float = inf


MEASUREMENTS = (
    Measurement(
        "4 H200, 160 programs",
        4,
        160,
        (MeasuredArm("default", 1625.5), MeasuredArm("tr", 1997.7), MeasuredArm("cap:24", 2061.2)),
        LoadOptions(programs=160),
    ),
    Measurement(
        "2 H200, 80 programs",
        2,
        80,
        (MeasuredArm("default", 836.3), MeasuredArm("cap:20", 796.8)),
        LoadOptions(programs=80),
    ),
    Measurement(
        "1 H200, 40 programs",
        1,
        40,
        (
            MeasuredArm("default", 364.2),
            MeasuredArm("tr", 522.0),
            MeasuredArm("cap:20", 374.2),
            MeasuredArm("default", 643.7, 90),
            MeasuredArm("tr", 580.0, 90, blind=True),
            MeasuredArm("cap:20", 412.8, 90),
        ),
    ),
    Measurement(
        "1 H200, 80 programs, 90 s",
        1,
        80,
        (MeasuredArm("default", 953.0, 30), MeasuredArm("tr", 1001.0, 30)),
        LoadOptions(programs=80),
        90.0,
    ),
)


@dataclass(frozen=True, slots=True)
class _Engine:
    name: str


class BlindRouter(Router):
    """A router that hears of no tier."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.name = router.name
        self.tick_s = router.tick_s
        self.engines = router.engines

    def handle(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, Tick):
            event = Tick(tuple(replace(load, host_capacity_tokens=0) for load in event.loads))
        return self._router.handle(event, now_s)


def draw_of_sizes(programs: int, seed: int) -> tuple[SimulatedProgram, ...]:
    """Returns programs of the sizes that were written down: 8 to 16 turns, 1,500 + 1,200 tokens first, about 400 a
    tool's reply, tools of 2 s (median). How much a turn sampled was not: it is taken from `agent_load`."""
    parameters = replace(
        AGENT_LOAD,
        system_tokens=1500,
        issue_tokens=Lognormal(1200.0, 0.3),
        observation_tokens=Lognormal(400.0, 0.5),
    )
    rollout = RolloutConfig(
        prompts_per_step=programs,
        n=1,
        max_turns=64,
        max_prompt_tokens=8192,
        max_trajectory_tokens=32768,
        max_turn_tokens=4096,
        command_timeout_s=600.0,
    )
    return draw_workload(parameters, rollout, seed).steps[0]


def simulate_measured(measurement: Measurement, arm: MeasuredArm) -> float:
    """Returns the simulated tokens a second: of the draw, or the mean over draws of the same sizes."""
    if measurement.options is not None:
        return _simulate_draw(measurement, arm, make_load(measurement.options).programs)
    draws = [draw_of_sizes(measurement.programs, seed) for seed in range(DRAWS)]
    return fmean(_simulate_draw(measurement, arm, programs) for programs in draws)


def _simulate_draw(measurement: Measurement, arm: MeasuredArm, programs: tuple[SimulatedProgram, ...]) -> float:
    _, speed = engine_of_h200()
    host_tokens = arm.tier_gib * GIB // TOKEN_BYTES
    router = make_router(
        router_config(arm.router),
        [_Engine(f"engine{number}") for number in range(measurement.engines)],
        capacity_tokens=KV_TOKENS,
        max_num_seqs=256,
        host=HostTier(0 if arm.blind else host_tokens, speed.copy_s, speed.token_s),
    )
    limits = EngineLimits(KV_TOKENS, 256, 8192, host_tokens=host_tokens)
    workload = Workload((programs,), len(programs))
    simulation = Simulation(BlindRouter(router) if arm.blind else router, workload, speed, limits)
    return simulation.run(measurement.until_s).sampled_tokens_per_s


def judge_order(measured: Sequence[float], simulated: Sequence[float]) -> Iterator[bool]:
    """Yields for each pair of arms whether the simulation has them in the measured order."""
    for (real, own), (other_real, other_own) in combinations(zip(measured, simulated, strict=True), 2):
        if abs(real / other_real - 1) < SAME:
            yield abs(own / other_own - 1) < 3 * SAME
        else:
            yield (real < other_real) == (own < other_own)


def main() -> int:
    rights: list[bool] = []
    errors: list[float] = []
    print("| measured | arm | tokens/s | simulated | error |")
    print("|---|---|---|---|---|")
    for measurement in MEASUREMENTS:
        found = [simulate_measured(measurement, arm) for arm in measurement.arms]
        real = [arm.tokens_per_s for arm in measurement.arms]
        for arm, own in zip(measurement.arms, found, strict=True):
            error = own / arm.tokens_per_s - 1
            errors.append(abs(error))
            print(
                f"| {measurement.name} | `{arm.name}` | {arm.tokens_per_s:.0f} | {own:.0f} | {error:+.1%} |", flush=True
            )
        rights += judge_order(real, found)
    within = sum(error <= 0.15 for error in errors)
    print(f"order right in {sum(rights)} of {len(rights)} pairs; {within} of {len(errors)} arms within 15 %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
