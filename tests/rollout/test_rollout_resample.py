"""Groups of equal rewards are replaced, within the rounds and within what there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.choices import DynamicSampling
from swe_rl.config.schema import AlgoConfig
from swe_rl.rollout.batch import set_advantages
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.counts import groups_of
from swe_rl.rollout.order.sampler import PromptSampler, sample_step
from swe_rl.rollout.trajectory import Status

NONE, FILTER, RESAMPLE = (
    AlgoConfig(dynamic_sampling=one, normalize_std=False, max_resample_rounds=3) for one in DynamicSampling
)


@pytest.fixture
def run(trajectory):
    """The collected step and what was asked for in each round; `useful` are the instances with differing rewards."""

    async def make(algo, useful, prompts=3, available=10):
        asked = []

        async def generate(indices):
            asked.append(list(indices))
            collected = Collected([], [])
            for index in indices:
                for sample in range(2):
                    status = Status.resolved if index in useful and sample else Status.unresolved
                    collected.trajectories.append(trajectory(f"train.1.i{index}", sample, status))
                    collected.results.append(None)
            collected.retried.append(trajectory(f"train.1.i{indices[0]}", 0, Status.infra_error))
            return collected

        sampler = PromptSampler(available, seed=0)
        return await sample_step(sampler, generate, algo, prompts=prompts, available=available), asked, sampler

    return make


async def test_without_it_there_is_one_round(run):
    for algo in (NONE, FILTER):
        collected, asked, _ = await run(algo, useful=())
        assert len(asked) == 1 and len(collected.trajectories) == 6


async def test_only_what_is_missing_is_sampled_again(run):
    order = PromptSampler(10, 0).take(10)
    collected, asked, sampler = await run(RESAMPLE, useful={order[0], order[3], order[5]})
    assert asked == [order[:3], order[3:5], order[5:6]]
    assert len(groups_of(collected.trajectories)) == 6 == len(collected.results) // 2
    assert len(collected.retried) == 3
    assert set_advantages(collected.trajectories, RESAMPLE) == 3
    trained = {one.instance_id for one in collected.trajectories if one.trained}
    assert trained == {f"i{index}" for index in (order[0], order[3], order[5])}
    assert sampler.take(4) == order[6:]


async def test_the_rounds_are_bounded(run):
    collected, asked, _ = await run(RESAMPLE, useful=())
    assert [len(one) for one in asked] == [3, 3, 3, 1]  # the fourth finds one instance left
    assert len({one.instance_id for one in collected.trajectories}) == 10


async def test_enough_is_enough(run):
    _, asked, _ = await run(RESAMPLE, useful=set(range(10)))
    assert len(asked) == 1


async def test_all_were_asked(run):
    _, asked, _ = await run(RESAMPLE, useful=(), prompts=4, available=4)
    assert len(asked) == 1


@given(
    size=st.integers(2, 12),
    seed=st.integers(0, 5),
    steps=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=8),
)
def test_no_instance_twice_in_a_step_of_several_takes_and_each_once_an_epoch(size, seed, steps):
    sampler, everything = PromptSampler(size, seed), []
    for takes in steps:
        taken = []
        for count in takes:
            taken += sampler.take(min(count, size - len(taken)), taken)
        assert len(set(taken)) == len(taken)
        everything += taken
    for start in range(0, len(everything) - size + 1, size):
        assert sorted(everything[start : start + size]) == list(range(size))
