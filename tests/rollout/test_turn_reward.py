"""What single turns bring, and how it reaches the tokens that they sampled."""

import dataclasses

import numpy as np
import pytest

from swe_rl.agent.agent import Turn
from swe_rl.config.choices import AdvantageKind, DynamicSampling
from swe_rl.config.schema import AlgoConfig, TurnRewardsConfig
from swe_rl.gateway.trace import Break
from swe_rl.rollout.batch import pays, set_advantages, turn_numbers, turn_reward
from swe_rl.rollout.rows import traced_rows, with_current_advantages
from swe_rl.rollout.trajectory import Status, Trajectory

TABLE = TurnRewardsConfig(format_error=-0.5, command_failed=-0.25, command_done=0.125)
WRONG = Turn(0, "hm", None, "reminder", format_error=True)
FAILED = Turn(0, "```", "false", "", exit_code=1)
DONE = Turn(0, "```", "true", "", exit_code=0)
SUBMITS = Turn(0, "```", "submit", None)
MEAN_ONLY = AlgoConfig(normalize_std=False)


@pytest.mark.parametrize(("turn", "reward"), [(WRONG, -0.5), (FAILED, -0.25), (DONE, 0.125), (SUBMITS, 0.0)])
def test_the_table_says_what_a_turn_brings(turn, reward):
    assert turn_reward(turn, TABLE) == reward


def test_a_table_of_zeros_pays_nothing():
    assert pays(TABLE) and not pays(TurnRewardsConfig())


def test_turns_are_compared_within_their_group(trajectory):
    group = [
        trajectory("a", 0, Status.resolved, turns=[DONE, SUBMITS]),
        trajectory("a", 1, turns=[WRONG, DONE]),
        trajectory("a", 2, Status.infra_error, turns=[WRONG]),
    ]
    assert set_advantages(group, MEAN_ONLY, turns=TABLE) == 0
    assert [one.advantage for one in group] == [0.5, -0.5, 0.0]
    assert group[0].turn_rewards == [0.125, 0.0] and group[1].turn_rewards == [-0.5, 0.125]
    # returns: 0.125, 0 and -0.375, 0.125; the broken member moves nobody
    assert [one.turn_advantages for one in group] == [[0.25, -0.0625], [-0.25, 0.0625], [0.0]]
    assert turn_numbers(group) == {"turn_reward_mean": pytest.approx((0.125 - 0.375 - 0.5) / 3)}


def test_they_are_scaled_as_the_rewards_of_their_group(trajectory):
    """A format error must not weigh half of what it does where rewards are divided by a deviation of a half."""
    group = [trajectory("a", 0, Status.resolved, turns=[DONE]), trajectory("a", 1, turns=[DONE])]
    group += [trajectory("a", 2, Status.resolved, turns=[WRONG]), trajectory("a", 3, turns=[WRONG])]
    set_advantages(group, AlgoConfig(), turns=TABLE)
    scale = group[0].advantage / 0.5
    assert [one.turn_advantages[0] / scale for one in group] == pytest.approx([0.3125, 0.3125, -0.3125, -0.3125])


def test_a_group_of_equal_rewards_teaches_by_its_turns(trajectory):
    solved = [trajectory("a", 0, Status.resolved, turns=[DONE]), trajectory("a", 1, Status.resolved, turns=[WRONG])]
    assert set_advantages(solved, AlgoConfig()) == 1
    assert set_advantages(solved, AlgoConfig(), turns=TABLE) == 0
    assert [one.turn_advantages for one in solved] == [[0.3125], [-0.3125]]
    filtering = AlgoConfig(dynamic_sampling=DynamicSampling.filter)
    assert set_advantages(solved, filtering, turns=TABLE) == 1 and not any(one.trained for one in solved)


@pytest.mark.parametrize("advantage", [AdvantageKind.grpo, AdvantageKind.gae])
@pytest.mark.parametrize("sampling", list(DynamicSampling))
def test_the_mean_of_turn_rewards_is_over_all_trajectories(trajectory, sampling, advantage):
    """A group of equal rewards that is left out of training has brought what it brought."""
    step = [trajectory("a", 0, Status.resolved, turns=[DONE]), trajectory("a", 1, turns=[FAILED])]
    step += [trajectory("b", 0, turns=[WRONG, DONE]), trajectory("b", 1, turns=[FAILED, SUBMITS])]
    set_advantages(step, AlgoConfig(advantage=advantage, dynamic_sampling=sampling), turns=TABLE)
    assert [one.turn_rewards for one in step] == [[0.125], [-0.25], [-0.5, 0.125], [-0.25, 0.0]]
    assert turn_numbers(step) == {"turn_reward_mean": pytest.approx((0.125 - 0.25 - 0.375 - 0.25) / 4)}
    is_left_out = sampling is not DynamicSampling.none
    assert [one.trained for one in step] == [True, True, not is_left_out, not is_left_out]
    assert not (is_left_out and any(one.turn_advantages for one in step[2:]))


def test_a_reward_of_ones_own_adds_to_the_table_or_pays_alone(trajectory):
    group = [
        trajectory("a", 0, Status.resolved, turns=[DONE, SUBMITS], own_turn_rewards=[0.5, -1.0]),
        trajectory("a", 1, turns=[WRONG, DONE], own_turn_rewards=[0.0, 0.0]),
        trajectory("a", 2, Status.infra_error, turns=[WRONG]),
    ]
    for _ in range(2):  # weighed again, as after a resume
        set_advantages(group, MEAN_ONLY, turns=TABLE)
        assert [one.turn_rewards for one in group] == [[0.625, -1.0], [-0.5, 0.125], [-0.5]]
    set_advantages(group, MEAN_ONLY)
    # returns: -0.5, -1 and 0, 0
    assert [one.turn_advantages for one in group] == [[-0.25, -0.5], [0.25, 0.5], [0.0]]


def test_without_a_table_nothing_of_it_is_there(trajectory):
    group = [trajectory("a", 0, Status.resolved, turns=[DONE]), trajectory("a", 1, turns=[WRONG])]
    set_advantages(group, AlgoConfig(advantage=AdvantageKind.grpo))
    assert not any(one.turn_rewards or one.turn_advantages for one in group) and turn_numbers(group) == {}


@pytest.fixture
def talk(trajectory, trace):
    """Three turns in two chains; a client's retry superseded the second answer, and the last one was aborted."""
    traces = [
        trace(0, [1, 2], [3, 4]),
        trace(1, [1, 2, 3, 4, 5], [6]),
        trace(2, [1, 2, 3, 4, 5], [6, 7], chain=1, break_kind=Break.duplicate),
        trace(3, [9], [10], chain=2, break_kind=Break.prefix_changed),
        trace(4, [9, 10, 11], [12], chain=2, finish_reason="abort"),
    ]
    return trajectory("a", 0, turns=[DONE, WRONG, SUBMITS]), traces


def test_each_token_gets_what_its_turn_has(talk):
    owner, traces = talk
    rows = traced_rows(owner, traces)
    owner.advantage, owner.turn_advantages = 1.0, [0.25, 0.5, -2.0]
    by_turn = {1.25: 2, 1.5: 2, -1.0: 1}  # sampled tokens of each turn
    got = np.concatenate([row.advantage for row in with_current_advantages(rows, [owner])])
    assert {value: int((got == value).sum()) for value in by_turn} == by_turn and len(got) == 5
    assert [row.turns.tolist() for row in with_current_advantages(rows, [owner])] == [
        row.turns.tolist() for row in rows
    ]


def test_where_answers_and_turns_are_not_as_many_the_trajectory_alone_counts(talk):
    """Nobody knows then which answer an agent made a turn of."""
    owner, traces = talk
    owner.turns.pop()
    rows = traced_rows(owner, traces)
    owner.advantage, owner.turn_advantages = 1.0, [0.25, 0.5]
    assert {value for row in with_current_advantages(rows, [owner]) for value in row.advantage} == {1.0}


def test_a_critic_gets_rewards_where_they_were_earned(talk):
    """The trajectory's at the end of its last row, a turn's at its last token; nothing is compared here."""
    owner, traces = talk
    rows = traced_rows(owner, traces)
    algo = AlgoConfig(advantage=AdvantageKind.gae, overlong_share=0.0)
    owner.reward, owner.trained = 1.0, True
    assert set_advantages([owner], algo, turns=TABLE) == 0
    assert owner.advantage is None and owner.charged_reward == 1.0 and owner.turn_rewards == [0.125, -0.5, 0.0]
    first, retried, last = with_current_advantages(rows, [owner])
    assert list(first.rewards) == [0.0, 0.125] and list(retried.rewards) == [0.0, -0.5] and list(last.rewards) == [1.0]


def test_nothing_of_a_critic_is_left_in_other_algorithms(talk):
    owner, traces = talk
    set_advantages([owner], AlgoConfig(advantage=AdvantageKind.teacher))
    rows = with_current_advantages(traced_rows(owner, traces), [owner])
    assert rows and all(row.rewards is None for row in rows)


def test_a_record_of_before_is_read(talk):
    record = talk[0].to_record()
    del record["turn_rewards"], record["turn_advantages"], record["charged_reward"]
    assert dataclasses.replace(Trajectory.from_record(record), turns=[]) == dataclasses.replace(talk[0], turns=[])


def test_a_turn_that_costs_what_its_trajectory_won_teaches_nothing(trajectory):
    """Two ways to the same sum: no row may be trained, and the group counts as one that teaches nothing."""
    costs = TurnRewardsConfig(command_failed=-0.3)
    group = [trajectory("a", 0, reward=0.3, turns=[FAILED]), trajectory("a", 1, reward=0.0, turns=[SUBMITS])]
    group += [trajectory("a", 2, reward=0.1 + 0.2, turns=[FAILED])]
    assert set_advantages(group, AlgoConfig(), turns=costs) == 1
    assert all(one.advantage for one in group)


@pytest.mark.parametrize("number", [3, 6, 7, 48])
def test_equal_turns_of_equal_trajectories_are_a_group_that_teaches_nothing(trajectory, number):
    group = [trajectory("a", sample, turns=[FAILED, FAILED, FAILED]) for sample in range(number)]
    assert set_advantages(group, AlgoConfig(), turns=TurnRewardsConfig(command_failed=-0.1)) == 1
