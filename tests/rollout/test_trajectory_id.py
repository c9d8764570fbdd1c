"""A trajectory's facts are in its name, and nowhere read but by its one parser."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.agent.agent import Turn
from swe_rl.rollout.trajectory import Status, Trajectory, TrajectoryId

splits = st.from_regex(r"(eval-)?[a-z_]+(\.[a-z0-9]+)?", fullmatch=True)
names = st.from_regex(r"[A-Za-z0-9_\-]+(\.[a-z\-]+)*", fullmatch=True)
numbers = st.integers(0, 10**6)


@given(splits, numbers, names, numbers, numbers)
def test_a_name_says_what_it_was_made_of(split, step, instance, sample, attempt):
    made = TrajectoryId(split, step, instance, sample, attempt)
    assert str(made) == f"{split}.{step}.{instance}.{sample}.{attempt}"
    assert TrajectoryId.parse(str(made), [split, "a", f"{split}.x"]) == made
    assert TrajectoryId.parse(str(made)) == made or re.search(r"\.[0-9]+$", split)
    assert str(made).startswith(f"{made.group_id}.") and made.is_evaluation == split.startswith("eval-")


@pytest.mark.parametrize("name", ["", "p1", "a.b.c", "train.1.one", "train.x.one.0.0", "train.1.one.0.0."])
def test_other_sessions_are_no_trajectories(name):
    assert TrajectoryId.parse(name) is None


def test_a_trajectory_of_release_0_5_is_read_without_the_fields_that_are_gone():
    turn = Turn(0, "make", "make", "done")
    made = Trajectory("t.1.a.0.0", "a", "t.1.a", "t", 1, 0, 0, Status.resolved, 1.0, True, True, turns=[turn])
    record = made.to_record()
    record |= {"prefix": "", "prefix_sampled_tokens": 0, "prefix_tokens": 0, "prefix_dropped": ""}
    record["turns"] = [fields | {"replayed": False} for fields in record["turns"]]
    assert Trajectory.from_record(record) == made
    with pytest.raises(TypeError):
        Trajectory.from_record(record | {"unheard_of": 1})
