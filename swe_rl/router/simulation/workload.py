"""A workload is what a rollout asks of the engines: programs of turns, drawn by a seeded generator or recorded.

Invariants:
- A program depends on the parameters, the seed and its own place in the step only: a larger step starts with the
  programs of a smaller one.
- A trajectory stays within the limits of `rollout`, as the gateway and the agent would keep it.
- Equal parameters, limits and seeds give equal workloads, whatever the machine: only the standard library draws.
- Recorded programs keep their lengths and pauses. How long an engine took is not taken over, as that is simulated.
- A turn whose prompt does not go on from the one before (a cut chain) counts as going on: a program only grows.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from swe_rl.config.schema import RolloutConfig, WorkloadConfig
from swe_rl.errors import UserError


class WorkloadError(UserError):
    """There is nothing to simulate, or nowhere to simulate it."""


@dataclass(frozen=True, slots=True)
class SimulatedTurn:
    """Describes a turn of a program: `new_in_tokens` are put after all that the program holds (the first turn's are its
    whole prompt), `out_tokens` are sampled, then a tool runs for `tool_s`."""

    new_in_tokens: int
    out_tokens: int
    tool_s: float


@dataclass(frozen=True, slots=True)
class SimulatedProgram:
    """Describes a simulated trajectory. `boot_s` passes before its first turn, `grade_s` after its last. All programs
    share `system_tokens` at the start, those of one group the whole first prompt."""

    program_id: str
    group: str
    turns: tuple[SimulatedTurn, ...]
    boot_s: float = 0.0
    grade_s: float = 0.0
    system_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        return self.turns[0].new_in_tokens

    @property
    def sampled_tokens(self) -> int:
        return sum(turn.out_tokens for turn in self.turns)

    @property
    def total_tokens(self) -> int:
        return sum(turn.new_in_tokens + turn.out_tokens for turn in self.turns)

    def contexts(self) -> Iterator[int]:
        """Yields the tokens held after each turn."""
        held = 0
        for turn in self.turns:
            held += turn.new_in_tokens + turn.out_tokens
            yield held


@dataclass(frozen=True, slots=True)
class Workload:
    """Steps that come one after the other, with `concurrency` programs of a step at once. `think_s` passes between two
    steps; after it no engine has a prefix left, as its weights are new."""

    steps: tuple[tuple[SimulatedProgram, ...], ...]
    concurrency: int
    think_s: float = 0.0

    @property
    def max_context_tokens(self) -> int:
        return max((program.total_tokens for step in self.steps for program in step), default=0)


class Distribution(Protocol):
    def draw(self, rng: Random) -> float: ...


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Draws from a lognormal distribution. `sigma` is that of the logarithm; what is drawn is at most `high`."""

    median: float
    sigma: float
    high: float = math.inf

    def draw(self, rng: Random) -> float:
        return min(self.high, self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0)))


@dataclass(frozen=True, slots=True)
class Uniform:
    low: float
    high: float

    def draw(self, rng: Random) -> float:
        return rng.uniform(self.low, self.high)


@dataclass(frozen=True, slots=True)
class WorkloadParameters:
    """Has the distributions of turns and programs. `system_tokens` are the agent's words and its tools, the same for
    all."""

    turns: Distribution
    # These tokens of the first prompt come after what all programs share.
    issue_tokens: Distribution
    # A tool says so many tokens.
    observation_tokens: Distribution
    out_tokens: Distribution
    tool_s: Distribution
    boot_s: Distribution
    grade_s: Distribution
    system_tokens: int


def parameters_of(config: WorkloadConfig) -> WorkloadParameters:
    return WorkloadParameters(
        turns=Lognormal(*config.turns),
        issue_tokens=Lognormal(*config.issue_tokens),
        observation_tokens=Lognormal(*config.observation_tokens),
        out_tokens=Lognormal(*config.sampled_tokens),
        tool_s=Lognormal(*config.tool_s),
        boot_s=Lognormal(*config.boot_s),
        grade_s=Lognormal(*config.grade_s),
        system_tokens=config.shared_prompt_tokens,
    )


MINI_SWE = parameters_of(WorkloadConfig())


# 160 programs run on four engines of 120,000 tokens: 8 to 16 turns that grow to about 11k tokens, with tools of 2 s
# (median; at most 30 s), as in a published benchmark. It does not say how its turns' tokens divide into observation and
# answer. So divided, default routing serves about a tenth more tokens a second than were published.
AGENT_LOAD = replace(
    MINI_SWE,
    turns=Uniform(8, 16),
    issue_tokens=Lognormal(1000.0, 0.3),
    observation_tokens=Lognormal(480.0, 0.5),
    out_tokens=Uniform(100, 230),
    tool_s=Lognormal(2.0, 1.0, 30.0),
    boot_s=Uniform(0.0, 0.0),
    grade_s=Uniform(0.0, 0.0),
)
# Tools of science agents take tens to hundreds of seconds at p95 and p99.
SLOW_TOOLS = replace(MINI_SWE, tool_s=Lognormal(2.0, 2.0, 600.0))

WORKLOADS = {"mini_swe": MINI_SWE, "agent_load": AGENT_LOAD, "slow_tools": SLOW_TOOLS}


def draw_workload(parameters: WorkloadParameters, rollout: RolloutConfig, seed: int, steps: int = 1) -> Workload:
    """Draws `rollout.prompts_per_step` groups of `rollout.n` programs a step, in the order in which a rollout starts
    them."""
    programs = rollout.prompts_per_step * rollout.n
    return Workload(
        tuple(
            tuple(
                _draw_program(parameters, rollout, seed, f"{step}.{prompt}", sample)
                for prompt in range(rollout.prompts_per_step)
                for sample in range(rollout.n)
            )
            for step in range(steps)
        ),
        rollout.concurrency if isinstance(rollout.concurrency, int) else programs,
    )


def _draw_program(
    parameters: WorkloadParameters, rollout: RolloutConfig, seed: int, group: str, sample: int
) -> SimulatedProgram:
    issue = _draw_tokens(parameters.issue_tokens, Random(f"{seed}/{group}"))
    rng = Random(f"{seed}/{group}/{sample}")
    prompt_limit = min(rollout.max_prompt_tokens, rollout.max_trajectory_tokens - 1)
    system_tokens = min(parameters.system_tokens, max(0, prompt_limit - 1))
    boot_s = parameters.boot_s.draw(rng)
    grade_s = parameters.grade_s.draw(rng)
    turns = _draw_turns(parameters, rollout, min(prompt_limit, system_tokens + issue), rng)
    return SimulatedProgram(
        program_id=f"{group}.{sample}",
        group=group,
        turns=tuple(turns),
        boot_s=boot_s,
        grade_s=min(grade_s, rollout.grade_timeout_s),
        system_tokens=system_tokens,
    )


def _draw_turns(
    parameters: WorkloadParameters, rollout: RolloutConfig, prompt_tokens: int, rng: Random
) -> Iterator[SimulatedTurn]:
    """Draws turns up to the limit of turns, or until the trajectory has no room left."""
    count = min(rollout.max_turns, max(1, round(parameters.turns.draw(rng))))
    held = 0
    new = prompt_tokens
    for _ in range(count):
        room = rollout.max_trajectory_tokens - held - new
        if room <= 0:
            return
        out = min(room, rollout.max_turn_tokens, _draw_tokens(parameters.out_tokens, rng))
        yield SimulatedTurn(new, out, min(parameters.tool_s.draw(rng), rollout.command_timeout_s))
        held += new + out
        new = _draw_tokens(parameters.observation_tokens, rng)


def _draw_tokens(distribution: Distribution, rng: Random) -> int:
    return max(1, round(distribution.draw(rng)))


def mean_context_tokens(programs: Sequence[SimulatedProgram]) -> float:
    """Returns what a program under way holds: the mean over all turns of what is held after them."""
    contexts = [context for program in programs for context in program.contexts()]
    return sum(contexts) / max(1, len(contexts))


def oversubscription(workload: Workload, engines: int, capacity_tokens: int) -> float:
    """Returns what the programs under way hold, as a multiple of what the engines' caches hold, if the programs are
    spread evenly."""
    programs = [program for step in workload.steps for program in step]
    at_once = min(workload.concurrency, max((len(step) for step in workload.steps), default=0))
    return at_once / engines * mean_context_tokens(programs) / capacity_tokens


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """Describes a turn of a run. `asked_s` and `answered_s` are on one clock: when the request reached the gateway and
    when it was answered."""

    prompt_tokens: int
    sampled_tokens: int
    asked_s: float
    answered_s: float


def program_of(
    program_id: str, group: str, turns: Sequence[RecordedTurn], *, boot_s: float = 0.0, grade_s: float = 0.0
) -> SimulatedProgram | None:
    """Makes a program of recorded turns, or None of no turn. What all programs share at the start is not recorded: a
    group's first prompt is."""
    if not turns:
        return None
    return SimulatedProgram(program_id, group, tuple(_recorded_turns(turns)), boot_s, grade_s)


def _recorded_turns(turns: Sequence[RecordedTurn]) -> Iterator[SimulatedTurn]:
    held = 0
    for number, turn in enumerate(turns):
        new = max(1, turn.prompt_tokens - held)
        out = max(1, turn.sampled_tokens)
        last = number + 1 == len(turns)
        tool_s = 0.0
        if not last:
            tool_s = max(0.0, turns[number + 1].asked_s - turn.answered_s)
        yield SimulatedTurn(new, out, tool_s)
        held += new + out


def resize_programs(programs: Sequence[SimulatedProgram], count: int) -> tuple[SimulatedProgram, ...]:
    """Returns `count` programs in order. If there are fewer, it takes them from the beginning again, as groups of their
    own."""
    made = list(programs[:count])
    while len(made) < count:
        again = len(made) // len(programs)
        program = programs[len(made) % len(programs)]
        made.append(replace(program, program_id=f"{program.program_id}~{again}", group=f"{program.group}~{again}"))
    return tuple(made)


def shared_tokens(prompts: Iterable[Sequence[int]]) -> int:
    """Returns the length of the beginning that all token sequences have in common: a workload's `system_tokens`."""
    common: Sequence[int] | None = None
    for prompt in prompts:
        if common is None:
            common = prompt
        length = min(len(common), len(prompt))
        same = next((index for index in range(length) if common[index] != prompt[index]), length)
        common = common[:same]
    return len(common or ())
