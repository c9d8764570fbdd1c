"""This module simulates a training run in virtual time: rollouts and trainer together, in one of the three ways in
which they go on.

Invariants:
- Only what lies between two steps in the middle of the run is counted: neither its beginning, where all groups begin at
  once, nor its end, where none begin any more.
- Every way gets the same programs in the same order.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from swe_rl.facts.concurrency import Bounds
from swe_rl.plan.engine_speed import EngineSpeed
from swe_rl.router.core import Router
from swe_rl.router.simulation.engine_model import EngineLimits, require_room
from swe_rl.router.simulation.fleet import Fleet
from swe_rl.router.simulation.pace import FlowPace, Group, StepsPace, TrainedStep, TrainerSpeed


@dataclass(frozen=True, slots=True)
class Way:
    """Says how a run goes on: with groups that flow, or in steps. `ahead` is `trainer.max_staleness_steps`."""

    flows: bool
    ahead: int

    def __str__(self) -> str:
        if self.flows:
            if self.ahead == 1:
                return "stream"
            return f"stream, {self.ahead} steps ahead"
        if self.ahead == 0:
            return "step"
        return f"step, {self.ahead} ahead"


@dataclass(frozen=True, slots=True)
class SimulatedSchedule:
    """Has the sizes of a simulated run: `places` programs act at once, and `prompts` groups are a step. Of all steps
    the `counted` ones after the first `warm` count."""

    prompts: int
    places: int
    warm: int
    counted: int

    def groups(self, way: Way) -> int:
        """Returns how many groups a run needs: those of the steps that count, those before, and those that are under
        way at the end."""
        return (self.warm + self.counted + 1 + way.ahead) * self.prompts


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """Says what a simulated training came to. `tokens_per_h` counts trained trajectories, prompts included. `staleness`
    has the shares of sampled tokens by how many steps the trained weights were ahead of those that sampled them. The
    idle shares are of the time of one step."""

    way: str
    tokens_per_h: float
    step_s: float
    engine_idle_share: float
    trainer_idle_share: float
    staleness_mean: float
    staleness: dict[int, float]

    @property
    def slower_side(self) -> str:
        """Returns the side that the other one waits for."""
        if self.trainer_idle_share > self.engine_idle_share:
            return "engines"
        return "trainer"

    def to_record(self) -> dict[str, Any]:
        """Returns the figures rounded, with ages as words."""
        figures = {key: float(f"{value:.4g}") for key, value in asdict(self).items() if isinstance(value, float)}
        return figures | {"staleness": {str(age): float(f"{share:.4g}") for age, share in self.staleness.items()}}


def simulate_training(
    router: Router,
    groups: Sequence[Group],
    speed: EngineSpeed,
    limits: EngineLimits,
    trainer: TrainerSpeed,
    schedule: SimulatedSchedule,
    way: Way,
    bounds: Bounds | None = None,
) -> TrainingOutcome:
    """Simulates a run in one way. With `bounds` it feels for the number of programs at once. Raises SimulationTooSmall,
    SimulationError, and ValueError if there are too few groups."""
    needed = schedule.groups(way)
    if len(groups) < needed:
        raise ValueError(f"{needed} groups are needed, not {len(groups)}")
    groups = groups[:needed]
    require_room(max(program.total_tokens for group in groups for program in group), limits)
    fleet = Fleet(router, speed, limits)
    trained = _start_pace(fleet, groups, trainer, schedule, way, bounds)
    last = schedule.warm + schedule.counted
    fleet.run(lambda: len(trained) > last)
    return outcome_of_steps(str(way), trained[schedule.warm : last + 1], len(fleet.engines))


def _start_pace(
    fleet: Fleet,
    groups: Sequence[Group],
    trainer: TrainerSpeed,
    schedule: SimulatedSchedule,
    way: Way,
    bounds: Bounds | None,
) -> list[TrainedStep]:
    """Starts the run's pace. Returns the list that gets the trained steps while the fleet runs."""
    prompts = schedule.prompts
    places = schedule.places
    steps = len(groups) // prompts
    if way.flows:
        flow = FlowPace(
            fleet, groups, trainer, places=places, prompts=prompts, ahead=way.ahead, steps=steps, bounds=bounds
        )
        return flow.trained
    cut = [groups[step * prompts : (step + 1) * prompts] for step in range(steps)]
    programs = [[program for group in step for program in group] for step in cut]
    return StepsPace(fleet, programs, trainer, places=places, ahead=way.ahead, bounds=bounds).trained


def outcome_of_steps(way: str, trained: Sequence[TrainedStep], engines: int) -> TrainingOutcome:
    """Returns the figures of the trained steps. `trained[0]` is the step before the first that counts."""
    steps = trained[1:]
    span_s = trained[-1].at_s - trained[0].at_s
    ages = sum((step.ages for step in steps), Counter[int]())
    sampled = sum(ages.values())
    return TrainingOutcome(
        way=way,
        tokens_per_h=sum(step.tokens for step in steps) / span_s * 3600.0,
        step_s=span_s / len(steps),
        engine_idle_share=1.0 - (trained[-1].busy_s - trained[0].busy_s) / (span_s * engines),
        trainer_idle_share=sum(step.waited_s for step in steps) / span_s,
        staleness_mean=sum(age * tokens for age, tokens in ages.items()) / sampled,
        staleness={age: ages[age] / sampled for age in sorted(ages)},
    )


def mean_of(outcomes: Sequence[TrainingOutcome]) -> TrainingOutcome:
    """Returns the mean outcome of one way under several loads."""

    def mean(figure: Callable[[TrainingOutcome], float]) -> float:
        return sum(map(figure, outcomes)) / len(outcomes)

    ages = sorted({age for outcome in outcomes for age in outcome.staleness})
    return TrainingOutcome(
        way=outcomes[0].way,
        tokens_per_h=mean(lambda outcome: outcome.tokens_per_h),
        step_s=mean(lambda outcome: outcome.step_s),
        engine_idle_share=mean(lambda outcome: outcome.engine_idle_share),
        trainer_idle_share=mean(lambda outcome: outcome.trainer_idle_share),
        staleness_mean=mean(lambda outcome: outcome.staleness_mean),
        staleness={age: sum(made.staleness.get(age, 0.0) for made in outcomes) / len(outcomes) for age in ages},
    )
