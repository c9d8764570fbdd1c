"""Decides by the failure policy what a status means for the reward. `attempt.py` says whether it is trained.

Invariants:
- conf/rollout has one row for every status. Else only a reward of the user's own and rollout.tricks decide.
- An infrastructure failure has no reward at all.
"""

from collections.abc import Mapping

from swe_rl.agent.agent import Exit
from swe_rl.config.choices import INFRA_STATUSES, OutcomeReward, RewardKind
from swe_rl.config.schema import OutcomeConfig
from swe_rl.env.env import TRICKS, Grade
from swe_rl.gateway.live import SessionSummary
from swe_rl.gateway.trace import MEANT_BREAKS
from swe_rl.rollout.trajectory import Status, Trajectory

_UNSUBMITTED = {
    Exit.STEP_LIMIT: Status.step_limit,
    Exit.CONTEXT_OVERFLOW: Status.context_overflow,
    Exit.AGENT_TIMEOUT: Status.agent_timeout,
    Exit.FORMAT_ERRORS: Status.format_errors,
    Exit.AGENT_CRASHED: Status.agent_crashed,
}
# Programs that end as if they were done have these, too.
_GIVEN_UP = frozenset({Status.unresolved, Status.empty_patch})
FAILURE_REWARD = {
    RewardKind.zero_one: 0.0,
    RewardKind.plus_minus_one: -1.0,
    RewardKind.fail_to_pass_fraction: 0.0,
    RewardKind.score: 0.0,
    RewardKind.fail_to_pass_only: -1.0,
}


def needs_grading(exit: Exit, patch: str) -> bool:
    """Tells whether the tests are run: only a submitted change is put to them."""
    return exit is Exit.SUBMITTED and bool(patch.strip())


def status_of(exit: Exit, patch: str, grade: Grade | None) -> Status:
    if exit is not Exit.SUBMITTED:
        return _UNSUBMITTED[exit]
    if grade is None and not patch.strip():
        return Status.empty_patch
    if grade is not None and grade.resolved:
        return Status.resolved
    return Status.unresolved


def status_if_unanswered(summary: SessionSummary, status: Status | None) -> tuple[Status, str | None] | None:
    """Returns what a trajectory whose last call got no answer ends as, and its error; None: as it ended.

    `status` is that so far, None where the program's end is unknown. A failed call counts whatever the tests say: else
    an engine's failures would take away attempts that fail alone. A refused one does not: whoever solved the instance
    had said all by then, and anybody in the sandbox can be refused.
    """
    if summary.failed and status not in INFRA_STATUSES:
        return Status.engine_error, f"its last call of the model failed: {summary.failed}"
    if status is not None and status not in _GIVEN_UP:
        return None
    if summary.had_all_calls:
        return Status.step_limit, None
    if summary.overflowed:
        return Status.context_overflow, None
    if summary.refused:
        return Status.request_refused, f"the gateway refused its last call of the model: {summary.refused}"
    return None


def graded_reward(grade: Grade, kind: RewardKind) -> float:
    """Returns the reward. `fail_to_pass_fraction` is 0 as soon as a PASS_TO_PASS test breaks.

    `fail_to_pass_only` ignores those.
    """
    if kind is RewardKind.score and grade.score is not None:
        return grade.score
    if kind is RewardKind.fail_to_pass_only:
        solved = grade.patch_applied and bool(grade.fail_to_pass) and all(grade.fail_to_pass.values())
        return 1.0 if solved else FAILURE_REWARD[kind]
    if kind is RewardKind.fail_to_pass_fraction:
        intact = grade.patch_applied and all(grade.pass_to_pass.values())
        if intact:
            return sum(grade.fail_to_pass.values()) / max(1, len(grade.fail_to_pass))
        return 0.0
    return 1.0 if grade.resolved else FAILURE_REWARD[kind]


def tricks_of(grade: Grade | None) -> list[str]:
    """Returns the findings that say that the patch made tests pass without solving the issue."""
    return [name for name in grade.findings if name in TRICKS] if grade else []


def count_calls(trajectory: Trajectory, summary: SessionSummary) -> None:
    """Fills in what its session at the gateway counted.

    A trajectory that a cut reply ended says so in its `error`: else a limit of ours would look like a fault of the
    model.
    """
    trajectory.num_calls = summary.num_calls
    trajectory.recalled_turns = summary.recalled_turns
    trajectory.sampled_tokens = summary.sampled_tokens
    trajectory.prefix_breaks = sum(number for kind, number in summary.breaks.items() if kind not in MEANT_BREAKS)
    trajectory.request_notes = dict(summary.notes)
    trajectory.superseded_replies = summary.superseded_replies
    trajectory.superseded_tokens = summary.superseded_tokens
    trajectory.times_s |= summary.times_s
    trajectory.cut_replies = summary.cut_replies
    was_run = bool(trajectory.turns) and trajectory.turns[-1].cut_tokens > 0 and trajectory.turns[-1].command
    solved_or_broken = trajectory.status is Status.resolved or trajectory.status in INFRA_STATUSES
    trajectory.ended_by_cut = summary.cut_last and not was_run and not solved_or_broken
    if trajectory.ended_by_cut and trajectory.error is None:
        trajectory.error = (
            "its last reply was cut by a limit of its length (rollout.max_turn_tokens, or what was left of "
            f"rollout.max_trajectory_tokens); of its {summary.num_calls} replies {summary.cut_replies} were cut"
        )


def findings_of(grade: Grade | None) -> list[str]:
    if grade is None:
        return []
    timed_out = ["timed_out"] if grade.timed_out and "timed_out" not in grade.findings else []
    return [*grade.findings, *timed_out]


def reward_of(
    status: Status, grade: Grade | None, outcomes: Mapping[str, OutcomeConfig], kind: RewardKind
) -> float | None:
    """Returns the reward; None where the policy table gives none."""
    rule = outcomes[status.value].reward
    if rule is OutcomeReward.none:
        return None
    if rule is OutcomeReward.graded and grade is not None:
        return graded_reward(grade, kind)
    return FAILURE_REWARD[kind]
