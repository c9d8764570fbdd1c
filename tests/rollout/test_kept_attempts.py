"""Rejection sampling: which attempts of a group are imitated."""

import pytest

from swe_rl.config.choices import AdvantageKind
from swe_rl.config.schema import AlgoConfig
from swe_rl.rollout.batch import learned_numbers, set_advantages
from swe_rl.rollout.trajectory import Status, Trajectory


def attempt(sample, reward, *, tokens=10, group="a", trained=True, status=Status.resolved):
    return Trajectory(
        trajectory_id=f"{group}.{sample}",
        instance_id=group,
        group_id=group,
        split="train",
        step=1,
        sample=sample,
        attempt=0,
        status=status,
        reward=reward,
        trained=trained,
        in_baseline=trained,
        sampled_tokens=tokens,
    )


def algo(**keys):
    return AlgoConfig(advantage=AdvantageKind.kept, **keys)


def kept(attempts):
    return [one.trajectory_id for one in attempts if one.trained]


def test_what_resolved_is_kept_and_all_else_is_left_out():
    step = [
        attempt(0, 1.0),
        attempt(1, 0.0),
        attempt(2, None),
        attempt(3, 1.0, trained=False),
        attempt(0, 0.5, group="b"),
    ]
    assert set_advantages(step, algo()) == 1
    assert kept(step) == ["a.0"]
    assert [one.advantage for one in step] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert learned_numbers(step, algo()) == {"kept_attempts": 1, "signal_rate": 0.5}


def test_a_group_that_resolved_throughout_teaches():
    step = [attempt(sample, 1.0) for sample in range(3)]
    assert set_advantages(step, algo()) == 0 and len(kept(step)) == 3


@pytest.mark.parametrize(("most", "expected"), [(None, 4), (2, 2), (9, 4)])
def test_the_shortest_of_each_instance_are_kept(most, expected):
    step = [attempt(sample, 1.0, tokens=tokens) for sample, tokens in enumerate((40, 10, 30, 20))]
    set_advantages(step, algo(keep_shortest=most))
    assert len(kept(step)) == expected
    if most == 2:
        assert kept(step) == ["a.1", "a.3"]


def test_the_reward_that_is_enough_is_a_key_and_penalties_do_not_count():
    step = [attempt(0, 0.5), attempt(1, 0.49)]
    set_advantages(step, algo(keep_reward=0.5, overlong_share=0.5), max_trajectory_tokens=1)
    assert kept(step) == ["a.0"]


def test_what_a_limit_cut_short_is_left_out_with_the_filter():
    step = [attempt(0, 1.0, status=Status.step_limit), attempt(1, 1.0)]
    set_advantages(step, algo(overlong_filter=True))
    assert kept(step) == ["a.1"]
