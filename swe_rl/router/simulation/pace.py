"""The pace decides which programs begin when, and what the trainer does meanwhile: step by step, ahead of the trainer,
or flowing.

Invariants:
- `StepsPace` is run/loop: a step's programs begin together, and hold their places until they are graded. With `ahead`
  steps are sampled while the trainer learns (its Pipeline): the engines change their weights between two steps only.
- `FlowPace` is rollout/flow: groups begin in order, at most `(1 + ahead) * prompts` of them begun and not trained. The
  oldest complete ones are trained first. A place is given back before grading, which has as many places of its own.
  tests/rollout/test_pace.py holds the two against each other: the same order at the same times.
- The trainer learns one step at a time. Staleness counts tokens by how many versions the weights that are trained are
  ahead of those that sampled.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from swe_rl.facts.concurrency import Bounds
from swe_rl.router.core import StepTail
from swe_rl.router.simulation.clock import Happening
from swe_rl.router.simulation.felt_places import Drives, FeltPlaces
from swe_rl.router.simulation.outcome import StepOutcome
from swe_rl.router.simulation.workload import SimulatedProgram

Group = tuple[SimulatedProgram, ...]


@dataclass(frozen=True, slots=True)
class TrainerSpeed:
    """Has the trainer's times in seconds: of a token of the trained trajectories, of an update of the engines' weights,
    and of what comes after it until the next step's groups are asked for (records, a checkpoint's share)."""

    token_s: float
    sync_s: float
    rest_s: float = 0.0

    def train_s(self, programs: Sequence[SimulatedProgram]) -> float:
        return self.token_s * sum(program.total_tokens for program in programs)


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """Records a step that the trainer learned at `at_s`. Until then all engines together were busy for `busy_s`, and
    the trainer waited for rollouts for `waited_s` before it. `ages` counts sampled tokens by staleness. `numbers` are
    those of groups that flow, in the order of their begin."""

    at_s: float
    busy_s: float
    waited_s: float
    tokens: int
    ages: Counter[int]
    numbers: tuple[int, ...]


@dataclass(slots=True)
class _Trainer:
    """Learns what it is given; `trained` has its steps."""

    fleet: Drives
    speed: TrainerSpeed
    trained: list[TrainedStep] = field(default_factory=list)
    free_since_s: float = 0.0
    is_busy: bool = False

    def learn(
        self, programs: Sequence[SimulatedProgram], ages: Counter[int], numbers: Sequence[int], then: Happening
    ) -> None:
        """Learns a step. `ages` counts tokens by the version that sampled them."""
        self.is_busy = True
        waited_s = self.fleet.clock.now_s - self.free_since_s
        version = len(self.trained)
        stale = Counter[int]()
        for sampler, tokens in ages.items():
            stale[version - sampler] += tokens

        def learned() -> None:
            tokens = sum(program.total_tokens for program in programs)
            clock = self.fleet.clock
            self.trained.append(TrainedStep(clock.now_s, self.fleet.busy_s(), waited_s, tokens, stale, tuple(numbers)))
            then()

        self.fleet.clock.after(self.speed.train_s(programs), learned)

    def rest(self, then: Happening) -> None:
        """Passes the time after a step, before the next."""

        def is_free() -> None:
            self.is_busy = False
            self.free_since_s = self.fleet.clock.now_s
            then()

        self.fleet.clock.after(self.speed.rest_s, is_free)


@dataclass(slots=True)
class _Step:
    started_s: float
    programs: tuple[SimulatedProgram, ...]
    waiting: deque[SimulatedProgram]
    unfinished: int
    left_of_group: Counter[str]
    group_s: list[float] = field(default_factory=list)
    ages: Counter[int] = field(default_factory=Counter)


class StepsPace:
    """Runs steps. With `ahead` = 0, each step waits for the one before to be learned. When a step has `tail_programs`
    programs left, the router is told of its tail; with 0 it never is."""

    def __init__(
        self,
        fleet: Drives,
        steps: Sequence[Sequence[SimulatedProgram]],
        trainer: TrainerSpeed,
        *,
        places: int,
        ahead: int = 0,
        tail_programs: int = 0,
        bounds: Bounds | None = None,
    ) -> None:
        self._fleet = fleet
        self._felt = None if bounds is None else FeltPlaces(fleet, bounds, self._resize)
        self._steps = [tuple(step) for step in steps]
        self._places = places if self._felt is None else self._felt.limit
        self._ahead = ahead
        self._tail_programs = tail_programs
        self._trainer = _Trainer(fleet, trainer)
        self._sampled: deque[_Step] = deque()
        # This step is sampled, and is not given to the trainer before the engines are ready.
        self._held: _Step | None = None
        # Counts the steps that began.
        self._begun = 0
        # The pace waits for the engines to be made ready.
        self._is_waiting = False
        # The engines get the trainer's weights once it is free.
        self._is_next = False
        # The step that is sampled, or was last.
        self._current: _Step | None = None
        self._begin_step()

    @property
    def trained(self) -> list[TrainedStep]:
        return self._trainer.trained

    @property
    def changes(self) -> list[tuple[float, int]]:
        """Returns when the number of places changed, and to what; nothing where it stays."""
        if self._felt is None:
            return []
        return self._felt.changes

    @property
    def is_sampled(self) -> bool:
        return len(self._fleet.tally.steps) == len(self._steps)

    def _begin_step(self) -> None:
        """Begins the next step. Empty steps take no time."""
        while self._begun < len(self._steps) and not self._steps[self._begun]:
            self._begun += 1
            self._fleet.tally.steps.append(StepOutcome(0.0, ()))
        if self._begun == len(self._steps):
            return
        programs = self._steps[self._begun]
        self._begun += 1
        groups = Counter(program.group for program in programs)
        step = _Step(self._fleet.clock.now_s, programs, deque(programs), len(programs), groups)
        self._current = step
        self._fill(step)

    def _resize(self, places: int) -> None:
        self._places = places
        if self._current is not None:
            self._fill(self._current)

    def _fill(self, step: _Step) -> None:
        """Begins programs while there are places."""
        while step.waiting and step.unfinished - len(step.waiting) < self._places:
            self._begin(step)

    def _begin(self, step: _Step) -> None:
        if self._felt is not None:
            self._felt.under_way += 1
        program = step.waiting.popleft()
        self._fleet.begin(
            program, lambda: self._fleet.clock.after(program.grade_s, lambda: self._end_program(step, program))
        )

    def _end_program(self, step: _Step, program: SimulatedProgram) -> None:
        step.ages.update(self._fleet.release(program))
        step.left_of_group[program.group] -= 1
        if not step.left_of_group[program.group]:
            step.group_s.append(self._fleet.clock.now_s - step.started_s)
        step.unfinished -= 1
        if step.unfinished and step.unfinished == self._tail_programs:
            self._fleet.feed(StepTail())
        if self._felt is not None:
            self._felt.under_way -= 1
            self._felt.ended += 1
        self._fill(step)
        if not step.unfinished:
            self._end_step(step)

    def _end_step(self, step: _Step) -> None:
        tally = self._fleet.tally
        tally.steps.append(StepOutcome(self._fleet.clock.now_s - step.started_s, tuple(step.group_s)))
        if self._ahead == 0 or self._begun == len(self._steps):
            self._give(step)
        else:
            self._held = step
        self._is_waiting = self._begun < len(self._steps)
        self._make_ready()

    def _give(self, step: _Step) -> None:
        self._sampled.append(step)
        self._learn()

    def _learn(self) -> None:
        if self._sampled and not self._trainer.is_busy:
            step = self._sampled.popleft()
            self._trainer.learn(step.programs, step.ages, (), lambda: self._trainer.rest(self._learned))

    def _learned(self) -> None:
        if not self._is_next:
            self._learn()
        self._make_ready()
        self._learn()

    def _make_ready(self) -> None:
        """Begins the next step once the weights that it may be sampled with are there: the newest that can be had."""
        if not self._is_waiting:
            return
        learned = len(self.trained)
        needed = self._begun - self._ahead
        if learned < needed:
            return
        self._is_next = self._trainer.is_busy and self._fleet.version < needed
        if self._is_next:
            return
        self._is_waiting = False
        if self._trainer.is_busy or self._fleet.version == learned:
            self._go_on()
        else:
            # The trainer's weights are read meanwhile.
            self._trainer.is_busy = True
            self._fleet.renew(learned, self._trainer.speed.sync_s, self._renewed)

    def _renewed(self) -> None:
        self._trainer.is_busy = False
        self._go_on()

    def _go_on(self) -> None:
        if self._held is not None:
            step = self._held
            self._held = None
            self._give(step)
        self._begin_step()


@dataclass(slots=True)
class _PacedGroup:
    number: int
    programs: Group
    left: int
    ages: Counter[int] = field(default_factory=Counter)


class FlowPace:
    """Runs groups that flow. `groups` begin in their order, `steps` steps of `prompts` groups are trained, and `places`
    programs act at once."""

    def __init__(
        self,
        fleet: Drives,
        groups: Sequence[Group],
        trainer: TrainerSpeed,
        *,
        places: int,
        prompts: int,
        ahead: int,
        steps: int,
        bounds: Bounds | None = None,
    ) -> None:
        # Says when which group began, by the group's number.
        self.begun: list[tuple[float, int]] = []
        self._fleet = fleet
        self._groups = groups
        self._prompts = prompts
        self._ahead = ahead
        self._steps_left = steps
        self._felt = None if bounds is None else FeltPlaces(fleet, bounds, self._resize)
        self._places = places if self._felt is None else self._felt.limit
        # It is below 0 while more act than there are places now.
        self._free = self._places
        self._free_to_grade = places
        self._trainer = _Trainer(fleet, trainer)
        # These groups began and were not taken.
        self._open: dict[int, _PacedGroup] = {}
        self._training = 0
        # These programs of the group that begins wait for a place.
        self._waiting: deque[tuple[_PacedGroup, SimulatedProgram]] = deque()
        self._to_grade: deque[tuple[_PacedGroup, SimulatedProgram]] = deque()
        self._begin()

    @property
    def trained(self) -> list[TrainedStep]:
        return self._trainer.trained

    @property
    def _has_room(self) -> bool:
        steps = min(1 + self._ahead, self._steps_left)
        return len(self._open) + self._training < steps * self._prompts

    def _begin(self) -> None:
        """Begins groups while there is room. A group begins once all programs of the one before have; each of them
        takes a place."""
        while self._waiting or self._has_room:
            if not self._waiting:
                number = len(self.begun)
                self.begun.append((self._fleet.clock.now_s, number))
                programs = self._groups[number]
                group = self._open[number] = _PacedGroup(number, programs, len(programs))
                self._waiting.extend((group, program) for program in programs)
            while self._waiting and self._free > 0:
                self._free -= 1
                self._start(*self._waiting.popleft())
            if self._waiting:
                return

    def _resize(self, places: int) -> None:
        self._free += places - self._places
        self._places = places
        self._begin()

    def _start(self, group: _PacedGroup, program: SimulatedProgram) -> None:
        if self._felt is not None:
            self._felt.under_way += 1

        def acted() -> None:
            if self._felt is not None:
                self._felt.under_way -= 1
                self._felt.ended += 1
            self._free += 1
            self._to_grade.append((group, program))
            self._grade()
            self._begin()

        self._fleet.begin(program, acted)

    def _grade(self) -> None:
        while self._to_grade and self._free_to_grade:
            self._free_to_grade -= 1
            group, program = self._to_grade.popleft()
            self._grade_one(group, program)

    def _grade_one(self, group: _PacedGroup, program: SimulatedProgram) -> None:
        def graded() -> None:
            self._free_to_grade += 1
            group.ages.update(self._fleet.release(program))
            group.left -= 1
            self._grade()
            if not group.left:
                self._take()

        self._fleet.clock.after(program.grade_s, graded)

    def _take(self) -> None:
        """Trains the oldest complete groups, as soon as there are enough of them."""
        complete = [group for _, group in sorted(self._open.items()) if not group.left]
        if self._trainer.is_busy or not self._steps_left or len(complete) < self._prompts:
            return
        chosen = complete[: self._prompts]
        for group in chosen:
            del self._open[group.number]
        self._training = len(chosen)
        programs = [program for group in chosen for program in group.programs]
        ages = Counter[int]()
        for group in chosen:
            ages.update(group.ages)
        self._trainer.learn(programs, ages, [group.number for group in chosen], self._send)

    def _send(self) -> None:
        self._fleet.renew(len(self.trained), self._trainer.speed.sync_s, self._done)

    def _done(self) -> None:
        self._training = 0
        self._steps_left -= 1
        self._begin()
        self._trainer.rest(self._take)
