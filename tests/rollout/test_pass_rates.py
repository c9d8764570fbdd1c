"""What is known of instances chooses among them: in proportion, without starving any, and exactly over a resume."""

import json
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.rollout.order.sampler import GroupOrder, PromptSampler, observe_step
from swe_rl.rollout.pass_rates import MAX_SKIPS, SPREAD, GroupResult, PassRates
from swe_rl.rollout.trajectory import Status, Trajectory

N = 8
RATES = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), min_size=2, max_size=12)


def trajectory(instance_id, status):
    return Trajectory("train.1.a.0.0", instance_id, "train.1.a", "train", 1, 0, 0, status, None, True, True)


def played(index, rate, generator):
    return GroupResult(index, sum(generator.random() < rate for _ in range(N)), N)


def informative(size, seed, half_life=40.0):
    return PromptSampler(size, seed, PassRates(size, half_life))


def steps(sampler, rates, prompts, number, generator):
    """Instances of each step; what their groups showed is observed."""
    taken = []
    for _ in range(number):
        taken.append(sampler.take(prompts))
        sampler.rates.observe([played(index, rates[index], generator) for index in taken[-1]])
    return taken


@given(RATES, st.integers(0, 9), st.data())
def test_nobody_starves_and_no_step_repeats(rates, seed, data):
    size = len(rates)
    prompts = data.draw(st.integers(1, size))
    taken = steps(informative(size, seed), rates, prompts, 60 * size // prompts, random.Random(seed))
    assert all(len(set(step)) == prompts for step in taken)
    flat = [index for step in taken for index in step]
    for index in range(size):
        places = [-1, *(place for place, other in enumerate(flat) if other == index), len(flat)]
        gaps = [after - before for before, after in zip(places, places[1:], strict=False)]
        assert max(gaps) <= (MAX_SKIPS + 2) * size


@given(st.integers(1, 12), st.integers(0, 9), st.data())
def test_with_equal_knowledge_it_is_uniform(size, seed, data):
    prompts = data.draw(st.integers(1, size))
    uniform, chooser = PromptSampler(size, seed), informative(size, seed)
    flow = GroupOrder(informative(size, seed), prompts)
    for step in range(6):
        expected = uniform.take(prompts)
        assert chooser.take(prompts) == expected
        assert [flow.take().index for _ in range(prompts)] == expected
        if step == 2:  # everybody was seen, and showed the same
            chooser.rates.observe([GroupResult(index, 4, N) for index in range(size)])


@given(RATES, st.integers(0, 9), st.integers(0, 8), st.data())
def test_a_restored_sampler_goes_on_as_the_first_would(rates, seed, before, data):
    size = len(rates)
    prompts = data.draw(st.integers(1, size))
    sampler, generator = informative(size, seed), random.Random(seed)
    steps(sampler, rates, prompts, before, generator)
    other = informative(size, seed)
    other.restore(json.loads(json.dumps(sampler.state())))
    later = random.Random(7), random.Random(7)
    assert steps(sampler, rates, prompts, 5, later[0]) == steps(other, rates, prompts, 5, later[1])
    assert sampler.state() == other.state()


@given(st.integers(2, 12), st.integers(0, 9), st.lists(st.booleans(), max_size=30))
def test_groups_that_flow_go_on_exactly(size, seed, trains):
    """Complete groups that are not trained are no part of the state; who goes on finds them in its queue."""

    def ended(begun):
        solved = random.Random(begun.number).randint(0, N)
        statuses = [Status.resolved] * solved + [Status.unresolved] * (N - solved)
        return [trajectory(str(begun.index), status) for status in statuses]

    order, waiting = GroupOrder(informative(size, seed), 2), []
    for now in trains:
        group = order.take()
        order.completed(group, ended(group))
        waiting.append(group)
        if now:
            order.trained([(group, ended(group)) for group in waiting])
            waiting = []
    state = json.loads(json.dumps(order.state(waiting)))
    other = GroupOrder(informative(size, seed), 2)
    other.restore(state, 9)
    for group in waiting:
        assert other.take() == group
        other.completed(group, ended(group))
    assert [other.take() for _ in range(9)] == [order.take() for _ in range(9)]


def test_what_is_complete_counts_before_it_is_trained():
    rates = PassRates(2, 40.0)
    rates.note(0, GroupResult(0, N, N))
    before = rates.mean(0)
    assert before > 0.85 and rates.information(0) < rates.information(1)
    assert rates.state() == PassRates(2, 40.0).state()
    rates.observe([GroupResult(0, N, N)], [0])
    assert rates.mean(0) == pytest.approx(before, abs=0.03) and rates.state()["deviations"]


def test_instances_near_one_half_are_taken_more_often():
    rates = [0.0] * 8 + [0.5] * 8 + [1.0] * 8
    taken = Counter(sum(steps(informative(24, 0), rates, 4, 300, random.Random(0)), []))
    middle = sum(taken[index] for index in range(8, 16)) / taken.total()
    assert 0.6 < middle < 0.9


def test_what_was_seen_fades():
    """A half-life later its precision is half of what it was, and in the end that of an unknown instance."""
    rates = PassRates(2, 8.0)
    rates.observe([GroupResult(0, N, N)])
    [(_, deviation, variance)] = rates.state()["deviations"]
    rates.observe([GroupResult(1, 0, 0)] * 8)
    assert rates.state()["deviations"] == [(0, deviation, pytest.approx(2 * variance))]
    for _ in range(9):
        rates.observe([GroupResult(1, 0, 0)] * 8)
    assert rates.state()["deviations"] == [(0, deviation, SPREAD)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, N)), min_size=1, max_size=6, unique_by=lambda one: one[0]))
def test_a_step_is_observed_in_no_order(groups):
    results = [GroupResult(index, solved, N) for index, solved in groups]
    one, other = PassRates(6, 40.0), PassRates(6, 40.0)
    one.observe(results)
    other.observe(results[::-1])
    for index in range(6):
        assert one.mean(index) == pytest.approx(other.mean(index), abs=1e-9)


@given(st.integers(0, N - 1), st.integers(1, N))
def test_more_that_are_solved_are_expected_to_be_solved_more_often(solved, attempts):
    solved = min(solved, attempts - 1)
    few, more = PassRates(2, 40.0), PassRates(2, 40.0)
    few.observe([GroupResult(0, solved, attempts)])
    more.observe([GroupResult(0, solved + 1, attempts)])
    assert few.mean(0) < more.mean(0) and few.mean(1) < more.mean(1)  # and those of which nobody knows
    assert 0.0 < few.information(0) < 0.25


def test_it_follows_a_policy_that_improves_on_all_instances():
    """Twenty instances, four a step; log-odds rise by 0.35 a step, as on the shipped job."""
    biases = []
    for seed in range(20):
        generator, rates, levels = random.Random(seed), PassRates(20, 32.0), [index / 2 - 6 for index in range(20)]
        sampler = PromptSampler(20, seed)
        for step in range(14):
            chances = [1 / (1 + math.exp(-(level + 0.35 * step))) for level in levels]
            foreseen = rates.observe([played(index, chances[index], generator) for index in sampler.take(4)])
            if foreseen["foreseen_groups"]:
                biases.append(foreseen["pass_rate_expected"] - foreseen["pass_rate_seen"])
    assert abs(sum(biases) / len(biases)) < 0.08


def test_counts_of_older_checkpoints_are_read():
    rates = PassRates(3, 40.0)
    rates.restore({"counts": [[0, 0.0, 6.2], [1, 5.5, 0.4]], "skipped": [[2, 3]]})
    assert rates.mean(0) < 0.2 < 0.75 < rates.mean(1) and rates.state()["skipped"] == [(2, 3)]


def test_how_well_a_step_was_foreseen():
    rates = PassRates(3, 40.0)
    assert rates.observe([GroupResult(0, 4, N), GroupResult(1, 0, 0)])["foreseen_groups"] == 0
    foreseen = rates.observe([GroupResult(0, 2, 8), GroupResult(2, 8, 8)])
    assert foreseen["foreseen_groups"] == 1 and foreseen["pass_rate_seen"] == 0.25
    assert foreseen["pass_rate_expected"] == pytest.approx(0.5, abs=1e-6)  # four of eight, and nothing else was seen
    assert foreseen["pass_rate_error"] == pytest.approx(0.25, abs=1e-6)


def test_infrastructure_says_nothing_of_an_instance():
    sampler = informative(2, 0)
    broken = [trajectory("b", Status.infra_error) for _ in range(N)]
    observe_step(sampler, broken, {"a": 0, "b": 1})
    assert sampler.rates.mean(1) == pytest.approx(0.5) and sampler.state()["pass_rates"]["deviations"] == []


def test_no_time_to_fade_in():
    with pytest.raises(ValueError, match="above 0"):
        PassRates(3, 0.0)


@given(st.integers(3, 12), st.integers(0, 9), st.dictionaries(st.integers(0, 9), st.integers(0, 2), max_size=6))
def test_complete_groups_keep_their_instances_and_no_step_repeats(size, seed, kept):
    """`kept`: of numbers that the state does not know."""
    kept = {number: (index, number // 3) for number, index in kept.items()}
    distinct = {step: {} for _, step in kept.values()}
    for number, (index, step) in kept.items():
        if index not in distinct[step].values():
            distinct[step][number] = index
    kept = {number: index for step in distinct.values() for number, index in step.items()}
    order = GroupOrder(informative(size, seed), 3)
    order.keep(kept)
    groups = [order.take() for _ in range(12)]
    assert {group.number: group.index for group in groups if group.number in kept} == kept
    for start in range(0, 12, 3):
        assert len({group.index for group in groups[start : start + 3]}) == 3
