"""A saved order goes on with other instances: by id, each once an epoch, and no loop without an end."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.rollout.order.sampler import Begun, GroupOrder, PromptSampler
from swe_rl.rollout.order.sampler_state import InstancesDifference, OtherInstancesError, in_earlier_order
from swe_rl.rollout.pass_rates import GroupResult, PassRates

NAMES = [f"repo-{number:02}" for number in range(12)]


def _sampler(ids, seed=0, *, chooses=False):
    rates = PassRates(len(ids), 8.0) if chooses else None
    return PromptSampler(len(ids), seed, rates, ids=ids)


def _names(sampler, indices):
    return [sampler.ids[index] for index in indices]


def _resumed(state, earlier, present, seed=0, *, chooses=False):
    """A sampler of `present` that goes on, and the state that it was given."""
    sampler = _sampler(present, seed, chooses=chooses)
    state = sampler.carry_over(json.loads(json.dumps(state)), earlier)
    sampler.restore(state)
    return sampler, state


@st.composite
def edits(draw, least=1):
    """A list of ids, and what somebody made of it: some removed, some added, all in another order."""
    earlier = NAMES[: draw(st.integers(max(2, least), len(NAMES)))]
    kept = draw(st.lists(st.sampled_from(earlier), min_size=1, unique=True))
    added = [f"new-{number}" for number in range(draw(st.integers(max(0, least - len(kept)), least + 3)))]
    return earlier, draw(st.permutations([*kept, *added]))


@given(edits(), st.integers(0, 3), st.lists(st.integers(1, 5), max_size=8))
def test_each_instance_once_in_the_epoch_of_the_change_and_in_those_after_it(edit, seed, counts):
    earlier, present = edit
    first = _sampler(earlier, seed)
    trained = Counter()
    epoch = 0
    for count in counts:
        taken = _names(first, first.take(count))
        if first.state()["epoch"] != epoch:
            # The epoch's first ones are the last of these: what the state says is taken.
            epoch = first.state()["epoch"]
            taken = taken[len(taken) - first.state()["taken"] :] if first.state()["taken"] else []
            trained = Counter()
        trained.update(taken)
    second, state = _resumed(first.state(), earlier, present, seed)
    left = len(present) - state["taken"]
    trained.update(_names(second, [second.take(1)[0] for _ in range(left)]))
    assert {name: trained[name] for name in present} == dict.fromkeys(present, 1)
    for _ in range(2):
        assert sorted(_names(second, second.take(len(present)))) == sorted(present)


@given(st.integers(2, 12), st.integers(0, 3), st.lists(st.integers(1, 5), max_size=6), st.data())
def test_another_order_alone_changes_nothing(size, seed, counts, data):
    ids = NAMES[:size]
    first = _sampler(ids, seed)
    for count in counts:
        first.take(count)
    second, _ = _resumed(first.state(), ids, data.draw(st.permutations(ids)), seed)
    for count in (1, size, 3, size + 1):
        assert _names(second, second.take(count)) == _names(first, first.take(count))


@given(edits(), st.integers(0, 3), st.integers(0, 11))
def test_the_rest_of_the_epoch_keeps_its_order_and_added_ones_end_it(edit, seed, taken):
    earlier, present = edit
    first = _sampler(earlier, seed)
    for _ in range(min(taken, len(earlier) - 1)):
        first.take(1)
    state = first.state()
    second, moved = _resumed(state, earlier, present, seed)
    rest = [name for name in _names(first, first.take(len(earlier) - state["taken"])) if name in present]
    rest += [name for name in present if name not in earlier]
    assert _names(second, second.take(len(present) - moved["taken"])) == rest


@given(edits(), edits(), st.integers(0, 3), st.lists(st.integers(1, 4), max_size=4), st.integers(1, 9))
def test_a_state_after_a_change_is_restored_and_changed_again(edit, other, seed, counts, more):
    earlier, present = edit
    second, _ = _resumed(_sampler(earlier, seed).state(), earlier, present, seed)
    for count in counts:
        second.take(count)
    third = PromptSampler(len(present), seed, ids=second.ids)
    third.restore(json.loads(json.dumps(second.state())))
    fourth, _ = _resumed(second.state(), second.ids, other[1], seed)
    assert _names(third, third.take(more)) == _names(second, second.take(more))
    assert set(_names(fourth, fourth.take(len(other[1]) * 2))) == set(other[1])


@given(edits(least=3), st.integers(1, 3), st.integers(0, 14), st.integers(0, 4), st.booleans(), st.data())
def test_groups_that_flow_go_on_with_other_instances(edit, prompts, begun, trained, chooses, data):
    earlier, present = edit
    before = GroupOrder(_sampler(earlier, chooses=chooses), prompts)
    groups = [before.take() for _ in range(begun)]
    open_groups = data.draw(st.permutations(groups))[trained:]
    saved = json.loads(json.dumps(before.state(open_groups)))
    sampler = _sampler(present, chooses=chooses)
    state = sampler.carry_over(saved, earlier)
    after = GroupOrder(sampler, prompts)
    after.restore(state, 0)
    again = {group.number: earlier[group.index] for group in open_groups if earlier[group.index] in present}
    later = [after.take() for _ in range(len(again) + 3 * len(present) + prompts)]
    assert {group.number: sampler.ids[group.index] for group in later[: len(again)]} == again
    new = later[len(again) :]
    assert [group.number for group in new] == list(range(begun, begun + len(new)))
    named = {group.number: earlier[group.index] for group in groups} | {
        group.number: sampler.ids[group.index] for group in new
    }
    for step in range(0, begun + len(new), prompts):
        instances = [named[number] for number in range(step, step + prompts) if number in named]
        assert len(set(instances)) == len(instances), "an instance is twice in a nominal step"
    if not chooses:
        assert set(present) <= {sampler.ids[group.index] for group in new}


def test_what_is_known_of_instances_moves_with_them():
    earlier, present = ["a", "b", "c"], ["new", "c", "a"]
    rates = PassRates(3, 8.0)
    first = PromptSampler(3, 0, rates, ids=earlier)
    rates.observe([GroupResult(0, 4, 4), GroupResult(2, 0, 4)])
    state = first.state()
    now = PassRates(3, 8.0)
    second = PromptSampler(3, 0, now, ids=present)
    second.restore(second.carry_over(state, earlier))
    assert second.ids == ["a", "c", "new"]
    assert [now.mean(index) for index in (0, 1)] == [rates.mean(index) for index in (0, 2)]
    assert now.mean(2) == rates.mean(1), "nobody has seen it"


@pytest.mark.parametrize("size", [1, 2, 8, 11, 13])
def test_a_state_is_not_restored_with_another_list(size):
    first = PromptSampler(12, 0)
    for _ in range(3):
        first.take(3)
    with pytest.raises(OtherInstancesError, match="another list of instances"):
        PromptSampler(size, 0).restore(first.state())


@pytest.mark.parametrize(
    "state",
    [
        {"epoch": 0, "taken": 9},
        {"epoch": 0, "taken": 1, "deferred": [8]},
        {"epoch": 0, "taken": -1},
        {"epoch": 0, "taken": 0, "deferred": [], "order": [0, 0, 1, 2, 3, 4, 5, 6]},
        {"epoch": 0, "taken": 0, "flow": {"next": 4, "ready": [8], "begun": []}},
        {"epoch": 0, "taken": 0, "flow": {"next": 4, "ready": [], "begun": [(3, 8)]}},
        {"epoch": 0, "taken": 0, "pass_rates": {"skipped": [(8, 1)]}},
        {"epoch": 0, "taken": 0, "pass_rates": {"skipped": [], "counts": [(8, 1.0, 1.0)]}},
    ],
)
def test_an_older_state_that_does_not_fit_is_refused(state):
    with pytest.raises(OtherInstancesError, match=r"8 instances\. Put the data back"):
        PromptSampler(8, 0).restore(state)


def test_an_older_state_of_groups_that_flow_is_refused_before_anything_is_restored():
    order = GroupOrder(PromptSampler(3, 0), 2)
    with pytest.raises(OtherInstancesError):
        order.restore({"epoch": 0, "taken": 2, "flow": {"next": 2, "ready": [], "begun": [(1, 7)]}}, 1)
    assert order.take() == Begun(0, PromptSampler(3, 0).take(1)[0])


def test_two_instances_of_one_id_have_no_order():
    with pytest.raises(ValueError, match="an id of its own"):
        PromptSampler(2, 0, ids=["a", "a"])


def test_a_difference_names_what_is_other():
    assert str(InstancesDifference.between(["a", "b", "c"], ["c", "d", "a"])) == "1 removed (b), 1 added (d)"
    assert str(InstancesDifference.between(["a", "b"], ["b", "a"])) == "the same ones in another order"
    assert str(InstancesDifference.between(NAMES, NAMES[:1])).endswith("repo-08 and 3 more)")


@given(edits())
def test_the_earlier_ones_come_first(edit):
    earlier, present = edit
    ordered = in_earlier_order(earlier, present)
    assert sorted(ordered) == sorted(present)
    assert [name for name in earlier if name in present] == ordered[: len(set(earlier) & set(present))]


def test_a_nominal_step_across_two_epochs_has_no_instance_twice():
    earlier = ["a", "b", "c", "x"]
    state = PromptSampler(4, 0, ids=earlier).state() | {"epoch": 1, "taken": 2, "deferred": [3]}
    first, second, third = [name for name in _names(*_order_of_epoch(earlier, state)) if name != "x"]
    ready = [earlier.index(first), earlier.index(second)]
    # Of the nominal step of groups 3 to 5, group 3 has begun: with `x`, which the end of the epoch before gave.
    flow = {"next": 4, "ready": ready, "begun": [], "chosen": [3]}
    sampler = _sampler([second, "x", "added"])
    order = GroupOrder(sampler, 3)
    order.restore(sampler.carry_over({**state, "flow": flow}, earlier), 1)
    assert _names(sampler, [order.take().index for _ in range(2)]) == [second, "added"]
    assert third not in sampler.ids


def _order_of_epoch(ids, state):
    sampler = PromptSampler(len(ids), 0, ids=ids)
    sampler.restore({**state, "taken": 0})
    return sampler, sampler.take(len(ids))
