"""Every instance once an epoch, and a state that continues exactly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.rollout.order.sampler import GroupOrder, PromptSampler


@given(st.integers(1, 12), st.integers(0, 5), st.lists(st.integers(1, 9), max_size=6), st.integers(1, 9))
def test_a_restored_sampler_goes_on_as_the_first_would(size, seed, counts, more):
    sampler = PromptSampler(size, seed)
    for count in counts:
        sampler.take(count)
    other = PromptSampler(size, seed)
    other.restore(sampler.state())
    assert other.take(more) == sampler.take(more)


@given(st.integers(1, 12), st.integers(0, 5))
def test_every_instance_once_an_epoch(size, seed):
    sampler = PromptSampler(size, seed)
    for _ in range(3):
        assert sorted(sampler.take(size)) == list(range(size))


def test_epochs_differ_and_seeds_differ():
    one, two = PromptSampler(20, 0), PromptSampler(20, 1)
    first = one.take(20)
    assert first != one.take(20) and first != two.take(20)


def test_nothing_to_sample():
    with pytest.raises(ValueError, match="at least one"):
        PromptSampler(0, 0)


@given(st.integers(2, 12), st.integers(0, 9), st.data())
def test_no_instance_twice_in_one_step_also_across_epochs(size, seed, data):
    count = data.draw(st.integers(1, size))
    sampler, taken = PromptSampler(size, seed), []
    for _ in range(6):
        step = sampler.take(count)
        assert len(set(step)) == count
        taken += step
    for start in range(0, len(taken) - size + 1, size):
        assert sorted(taken[start : start + size]) == list(range(size))


def test_a_state_of_an_older_checkpoint():
    sampler = PromptSampler(5, 0)
    sampler.restore({"epoch": 0, "taken": 2})
    other = PromptSampler(5, 0)
    other.take(2)
    assert sampler.take(3) == other.take(3)


@given(st.integers(2, 12), st.integers(0, 9), st.data())
def test_groups_that_flow_have_the_instances_of_whole_steps(size, seed, data):
    prompts = data.draw(st.integers(1, size))
    whole, order = PromptSampler(size, seed), GroupOrder(PromptSampler(size, seed), prompts)
    for step in range(1, 5):
        groups = [order.take() for _ in range(prompts)]
        assert [group.index for group in groups] == whole.take(prompts)
        assert {order.step_of(group.number) for group in groups} == {step}


@given(st.integers(2, 12), st.integers(0, 9), st.integers(0, 20), st.sets(st.integers(0, 19)))
def test_groups_that_were_begun_and_not_trained_come_first(size, seed, begun, trained):
    order = GroupOrder(PromptSampler(size, seed), 2)
    groups = [order.take() for _ in range(begun)]
    open_groups = [group for group in groups if group.number not in trained]
    state, following = order.state(open_groups), [order.take() for _ in range(5)]
    other = GroupOrder(PromptSampler(size, seed), 2)
    other.restore(json.loads(json.dumps(state)), 9)
    assert other.state([]) == json.loads(json.dumps(state)) | {
        "flow": state["flow"] | {"begun": [(group.number, group.index) for group in open_groups]}
    }
    assert [other.take() for _ in range(len(open_groups) + 5)] == open_groups + following


def test_a_state_of_whole_steps_goes_on_with_the_next_step():
    sampler, order = PromptSampler(9, 0), GroupOrder(PromptSampler(9, 0), 3)
    sampler.take(6)
    order.restore(sampler.state(), 2)
    assert [order.take().number for _ in range(3)] == [6, 7, 8] and order.step_of(6) == 3
