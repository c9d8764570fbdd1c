"""The order of a mix: weights hold at each draw, a resumed run goes on as an uninterrupted one, and what changed in a
part is refused or carried over."""

import json
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from swe_rl.facts.mix import shares_of
from swe_rl.rollout.order.mixed_sampler import MixedSampler, PartDraws
from swe_rl.rollout.order.sampler import GroupOrder, PromptSampler
from swe_rl.rollout.order.sampler_state import OtherInstancesError
from swe_rl.rollout.pass_rates import PassRates
from swe_rl.rollout.trajectory import Status

WEIGHTS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.one_of(st.integers(1, 9), st.floats(0.01, 10, allow_nan=False)),
    min_size=1,
    max_size=6,
)


def make(sizes, weights, seed=0, rates=False):
    samplers = {}
    for name in sorted(sizes):
        ids = [f"{name}{number}" for number in range(sizes[name])]
        known = PassRates(len(ids), 16.0) if rates else None
        samplers[name] = PromptSampler(len(ids), seed, known, ids=ids)
    return MixedSampler(samplers, weights)


def names_of(sampler, indices):
    return [sampler.ids[index] for index in indices]


@given(WEIGHTS, st.integers(1, 300))
def test_each_part_is_drawn_its_share_to_less_than_one_draw(weights, count):
    draws = PartDraws(weights)
    shares = shares_of(weights)
    for number in range(1, count + 1):
        draws.draw(sorted(weights))
        for name, share in shares.items():
            assert abs(draws.drawn[name] - share * number) < 1
    assert sum(draws.drawn.values()) == count and sum(shares.values()) == 1


def test_decimal_weights_are_what_is_written():
    assert shares_of({"a": 0.1, "b": 0.2, "c": 0}) == {"a": Fraction(1, 3), "b": Fraction(2, 3)}


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 12), min_size=1, max_size=3),
    st.data(),
    st.integers(0, 5),
    st.integers(1, 6),
)
def test_a_resumed_run_takes_what_an_uninterrupted_one_takes(sizes, data, seed, prompts):
    weights = {name: data.draw(st.integers(1, 5)) for name in sizes}
    whole = make(sizes, weights, seed)
    stop = data.draw(st.integers(0, 8))
    taken = [names_of(whole, whole.take(prompts)) for _ in range(stop)]
    saved = json.loads(json.dumps(whole.state(), sort_keys=True))
    rest = [names_of(whole, whole.take(prompts)) for _ in range(8)]
    resumed = make(sizes, weights, seed)
    resumed.restore(saved)
    assert [names_of(resumed, resumed.take(prompts)) for _ in range(8)] == rest
    again = make(sizes, weights, seed)
    assert [names_of(again, again.take(prompts)) for _ in range(stop)] == taken


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 12), min_size=1, max_size=3), st.data(), st.integers(1, 8)
)
def test_no_instance_is_twice_in_a_step_and_none_is_left_out_of_an_epoch(sizes, data, prompts):
    assume(sum(sizes.values()) >= prompts)
    weights = {name: data.draw(st.integers(1, 5)) for name in sizes}
    sampler = make(sizes, weights)
    seen = Counter()
    for _ in range(30):
        step = sampler.take(prompts)
        # A second round of the same step, as dynamic sampling asks for it.
        step += sampler.take(min(2, sum(sizes.values()) - prompts), step)
        assert len(set(step)) == len(step)
        seen.update(names_of(sampler, step))
    for name, size in sizes.items():
        counts = [seen[f"{name}{number}"] for number in range(size)]
        assert max(counts) - min(counts) <= 2


def test_a_part_that_a_step_has_wholly_is_made_up_for():
    sampler = make({"a": 2, "b": 50}, {"a": 1, "b": 1})
    first = names_of(sampler, sampler.take(8))
    assert sorted(first) == sorted(["a0", "a1", *[name for name in first if name[0] == "b"]]) and len(first) == 8
    later = [name for _ in range(4) for name in names_of(sampler, sampler.take(2))]
    assert Counter(name[0] for name in [*first, *later]) == {"a": 8, "b": 8}


def test_the_instances_of_a_part_come_as_they_do_without_a_mix():
    mixed = make({"a": 9, "b": 5}, {"a": 2, "b": 1}, seed=3)
    alone = PromptSampler(9, 3, ids=[f"a{number}" for number in range(9)])
    of_a = [name for name in names_of(mixed, mixed.take(6)) if name[0] == "a"]
    assert of_a == [alone.ids[index] for index in alone.take(4)]


def test_groups_that_flow_are_resumed_with_those_that_were_begun():
    def order(sampler):
        return GroupOrder(sampler, 4)

    whole = order(make({"a": 7, "b": 6}, {"a": 1, "b": 3}))
    begun = [whole.take() for _ in range(10)]
    state = json.loads(json.dumps(whole.state(begun[7:])))
    rest = [whole.take() for _ in range(9)]
    resumed = order(make({"a": 7, "b": 6}, {"a": 1, "b": 3}))
    resumed.restore(state, 0)
    assert [resumed.take() for _ in range(12)] == [*begun[7:], *rest]


def test_pass_rates_are_kept_by_part(trajectory):
    def make_group(solved, attempts):
        statuses = [Status.resolved] * solved + [Status.unresolved] * (attempts - solved)
        return [trajectory("train.1.one", sample, status) for sample, status in enumerate(statuses)]

    sampler = make({"a": 4, "b": 4}, {"a": 1, "b": 1}, rates=True)
    assert sampler.follows_rates
    first = sampler.take(8)
    figures = sampler.observe([(index, make_group(solved=2, attempts=4)) for index in first])
    assert figures["foreseen_groups"] == 0 and figures["pass_rate_seen"] is None
    second = sampler.take(4)
    figures = sampler.observe([(index, make_group(solved=3, attempts=4)) for index in second])
    assert figures["foreseen_groups"] == 4 and figures["pass_rate_seen"] == pytest.approx(0.75)
    assert figures["pass_rate_expected"] == pytest.approx(0.5, abs=0.1)
    restored = make({"a": 4, "b": 4}, {"a": 1, "b": 1}, rates=True)
    restored.restore(json.loads(json.dumps(sampler.state())))
    assert restored.take(6) == sampler.take(6)


def test_changed_instances_of_a_part_are_carried_over():
    sampler = make({"a": 6, "b": 6}, {"a": 1, "b": 1})
    taken = names_of(sampler, sampler.take(4))
    saved = sampler.state()
    fewer = {"a": ["a1", "a2", "a3", "a4", "a5", "new"], "b": [f"b{number}" for number in range(6)]}
    now = MixedSampler({name: PromptSampler(len(ids), 0, ids=ids) for name, ids in fewer.items()}, {"a": 1, "b": 1})
    with pytest.raises(OtherInstancesError):
        now.restore(saved)
    now.restore(now.carry_over(saved, sampler.ids))
    rest = [name for _ in range(4) for name in names_of(now, now.take(2))]
    rest_of_a = [name for name in [*taken, *rest] if name[0] in "an" and name != "a0"]
    assert len(set(rest_of_a)) == len(rest_of_a) and "a0" not in rest
    # What was trained in b stays trained: the epoch has each once.
    of_b = [name for name in [*taken, *rest] if name[0] == "b"]
    assert len(set(of_b)) == 6


@pytest.mark.parametrize("parts", [{"a": 6}, {"a": 6, "c": 6}, {"a": 6, "b": 6, "c": 3}])
def test_other_parts_are_refused_with_the_names_of_both(parts):
    sampler = make({"a": 6, "b": 6}, {"a": 1, "b": 1})
    saved = sampler.state()
    now = make(parts, dict.fromkeys(parts, 1))
    for restore in (lambda: now.restore(saved), lambda: now.carry_over(saved, sampler.ids)):
        with pytest.raises(OtherInstancesError, match=f"{', '.join(parts)}"):
            restore()


def test_the_state_of_one_environment_is_no_state_of_a_mix():
    alone = PromptSampler(6, 0, ids=[f"a{number}" for number in range(6)])
    with pytest.raises(OtherInstancesError, match="none"):
        make({"a": 6}, {"a": 1}).carry_over(alone.state(), alone.ids)
