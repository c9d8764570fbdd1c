"""The failure policy table decides every reward."""

import pytest

from swe_rl.agent.agent import Exit
from swe_rl.config.choices import INFRA_STATUSES, RewardKind
from swe_rl.config.compose import compose
from swe_rl.env.env import Grade
from swe_rl.rollout.attempt import needs_grading, reward_of, status_of
from swe_rl.rollout.trajectory import Status

GOOD = Grade(True, True, {"a": True}, {"b": True})
BAD = Grade(False, True, {"a": True, "c": False}, {"b": True})
BROKEN = Grade(False, True, {"a": True, "c": True}, {"b": False})


@pytest.fixture(scope="module")
def outcomes():
    return compose([]).config.rollout.outcomes


@pytest.mark.parametrize(
    ("exit", "patch", "grade", "status"),
    [
        (Exit.SUBMITTED, "diff", GOOD, Status.resolved),
        (Exit.SUBMITTED, "diff", BAD, Status.unresolved),
        (Exit.SUBMITTED, "", None, Status.empty_patch),
        (Exit.STEP_LIMIT, "diff", None, Status.step_limit),
        (Exit.CONTEXT_OVERFLOW, "", None, Status.context_overflow),
        (Exit.AGENT_TIMEOUT, "", None, Status.agent_timeout),
        (Exit.FORMAT_ERRORS, "", None, Status.format_errors),
        (Exit.AGENT_CRASHED, "", None, Status.agent_crashed),
    ],
)
def test_status(exit, patch, grade, status):
    assert status_of(exit, patch, grade) is status


def test_only_a_submitted_change_is_graded():
    assert needs_grading(Exit.SUBMITTED, "diff")
    assert not needs_grading(Exit.SUBMITTED, " \n")
    assert not needs_grading(Exit.STEP_LIMIT, "diff")


@pytest.mark.parametrize("kind", list(RewardKind))
def test_infrastructure_failures_never_become_a_reward(outcomes, kind):
    for status in map(Status, INFRA_STATUSES):
        assert reward_of(status, None, outcomes, kind) is None
        assert not outcomes[status].trained and not outcomes[status].in_baseline


def test_rewards(outcomes):
    assert reward_of(Status.resolved, GOOD, outcomes, RewardKind.zero_one) == 1.0
    assert reward_of(Status.unresolved, BAD, outcomes, RewardKind.zero_one) == 0.0
    assert reward_of(Status.unresolved, BAD, outcomes, RewardKind.plus_minus_one) == -1.0
    assert reward_of(Status.unresolved, BAD, outcomes, RewardKind.fail_to_pass_fraction) == 0.5
    assert reward_of(Status.unresolved, BROKEN, outcomes, RewardKind.fail_to_pass_fraction) == 0.0
    assert reward_of(Status.empty_patch, None, outcomes, RewardKind.plus_minus_one) == -1.0
    assert reward_of(Status.step_limit, None, outcomes, RewardKind.zero_one) == 0.0


def test_a_reward_by_fail_to_pass_alone(outcomes):
    kind = RewardKind.fail_to_pass_only
    assert reward_of(Status.resolved, GOOD, outcomes, kind) == 1.0
    assert reward_of(Status.unresolved, BROKEN, outcomes, kind) == 1.0
    assert reward_of(Status.unresolved, BAD, outcomes, kind) == -1.0
    assert reward_of(Status.unresolved, Grade(False, True, {}, {"b": True}), outcomes, kind) == -1.0
    assert reward_of(Status.unresolved, Grade(False, False, {"a": True}), outcomes, kind) == -1.0
    assert reward_of(Status.empty_patch, None, outcomes, kind) == -1.0
    assert compose(["env=django201"]).config.env.reward is kind
