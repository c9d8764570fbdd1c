"""The outcome says what a simulated rollout came to: throughput, work done twice, and how long programs waited.

Invariants:
- Rates are over the time of the steps; the time between two steps is not counted.
- Figures are counted from outside, the same for every policy: a pause is a request of a program's later turn that was
  not placed at once, a move is a turn on another engine than the one before.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swe_rl.router.simulation.engine_model import EngineCounts, SimulatedRequest


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Describes one step of a simulation. `group_s` says when the last program of each group was done, in seconds from
    the start of the step, ascending."""

    makespan_s: float
    group_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    policy: str
    programs: int
    turns: int
    makespan_s: float
    # Published figures are computed so: programs * mean length after the first prompt / makespan.
    tokens_per_s: float
    sampled_tokens_per_s: float
    sampled_tokens: int
    # Counts the prompts of all requests, with what was cached.
    prompt_tokens: int
    cached_tokens: int
    # This is a share of all prompt tokens.
    cached_share: float
    # This share of what a program held after its turn before was still there.
    prefix_hit_rate: float
    prefill_tokens: int
    # These were prefilled though the program had computed them before: after evictions, moves and preemptions.
    recomputed_tokens: int
    engine_idle_share: float
    hold_p50_s: float
    hold_p99_s: float
    hold_max_s: float
    # This is a share of all requests.
    held_share: float
    pauses: int
    moves: int
    preemptions: int
    # These were let go because they were held for router.max_hold_s, not because there was room.
    forced: int
    # This is a share of all requests.
    forced_share: float
    forced_share_of_held: float
    steps: tuple[StepOutcome, ...]
    group_p50_s: float
    group_p99_s: float

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class SimulationTally:
    """Counts while the simulation runs."""

    turns: int = 0
    sampled_tokens: int = 0
    response_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reusable_tokens: int = 0
    reused_tokens: int = 0
    # So many turns were not their program's first.
    returns: int = 0
    pauses: int = 0
    moves: int = 0
    forced: int = 0
    holds_s: list[float] = field(default_factory=list)
    steps: list[StepOutcome] = field(default_factory=list)

    def placement(self, hold_s: float, *, later_turn: bool, moved: bool, forced: bool) -> None:
        self.holds_s.append(hold_s)
        self.forced += forced
        self.pauses += later_turn and hold_s > 0
        self.moves += moved

    def answer(self, request: "SimulatedRequest", reusable_tokens: int) -> None:
        """Counts an answered request. `reusable_tokens` are the whole blocks of what the program had computed before; a
        first turn has a negative number."""
        reusable_tokens = max(0, reusable_tokens)
        self.returns += reusable_tokens > 0
        self.turns += 1
        self.prompt_tokens += request.prompt_tokens
        self.sampled_tokens += request.sampled
        self.cached_tokens += request.cached_tokens
        self.reusable_tokens += reusable_tokens
        self.reused_tokens += min(reusable_tokens, request.cached_tokens)


def outcome_of(
    policy: str, tally: SimulationTally, engines: "Sequence[EngineCounts]", *, programs: int
) -> SimulationOutcome:
    makespan_s = sum(step.makespan_s for step in tally.steps)
    busy_s = sum(engine.busy_s for engine in engines)
    holds = sorted(tally.holds_s)
    held = sum(hold > 0 for hold in holds)
    groups = sorted(group_s for step in tally.steps for group_s in step.group_s)
    return SimulationOutcome(
        policy=policy,
        programs=programs,
        turns=tally.turns,
        makespan_s=makespan_s,
        tokens_per_s=_safe_ratio(tally.response_tokens, makespan_s),
        sampled_tokens_per_s=_safe_ratio(tally.sampled_tokens, makespan_s),
        sampled_tokens=tally.sampled_tokens,
        prompt_tokens=tally.prompt_tokens,
        cached_tokens=tally.cached_tokens,
        cached_share=_safe_ratio(tally.cached_tokens, tally.prompt_tokens),
        prefix_hit_rate=_safe_ratio(tally.reused_tokens, tally.reusable_tokens, nothing=1.0),
        prefill_tokens=sum(engine.prefill_tokens for engine in engines),
        recomputed_tokens=sum(engine.recomputed_tokens for engine in engines),
        engine_idle_share=1.0 - _safe_ratio(busy_s, makespan_s * len(engines), nothing=1.0),
        hold_p50_s=percentile(holds, 50),
        hold_p99_s=percentile(holds, 99),
        hold_max_s=holds[-1] if holds else 0.0,
        held_share=_safe_ratio(held, len(holds)),
        pauses=tally.pauses,
        moves=tally.moves,
        preemptions=sum(engine.preemptions for engine in engines),
        forced=tally.forced,
        forced_share=_safe_ratio(tally.forced, len(holds)),
        forced_share_of_held=_safe_ratio(tally.forced, held),
        steps=tuple(tally.steps),
        group_p50_s=percentile(groups, 50),
        group_p99_s=percentile(groups, 99),
    )


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Returns the smallest value that at least `percent` of the values do not exceed, or 0 if there are none."""
    if not ascending:
        return 0.0
    return ascending[max(0, -(-int(len(ascending) * percent) // 100) - 1)]


def _safe_ratio(part: float, whole: float, nothing: float = 0.0) -> float:
    return part / whole if whole else nothing
