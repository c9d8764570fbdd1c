"""Sampling ahead of the trainer: which weights a step sees, in which order things happen, how it ends."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.run.loop import Pipeline


class Work:
    """Steps that take made-up times; `seen` is the version that each step was sampled with."""

    def __init__(self, seed=0, evaluate_every=0, fail=None):
        self._rng, self._evaluate_every, self._fail = random.Random(seed), evaluate_every, fail
        self.trained = self.served = 0
        self.seen, self.evaluated, self.order, self.at_once = {}, {}, [], 0
        self._sampling = self._training = False

    async def _pause(self):
        for _ in range(self._rng.randrange(6)):
            await asyncio.sleep(0)

    def _break(self, what, step):
        if self._fail == (what, step):
            raise RuntimeError(f"{what} {step} broke")

    async def sample(self, step):
        assert not self._sampling
        self._sampling, version = True, self.served
        await self._pause()
        self.at_once = max(self.at_once, step - 1 - self.trained)
        self._break("sample", step)
        assert self.served == version, "weights changed under a step"
        self._sampling, self.seen[step] = False, version
        return step * 10

    async def learn(self, step, item):
        assert item == step * 10 and step == self.trained + 1 and not self._training
        self._training = True
        await self._pause()
        self._break("learn", step)
        self._training, self.trained = False, step
        self.order.append(step)

    async def refresh(self):
        assert not self._training and not self._sampling
        await self._pause()
        self.served = self.trained

    @property
    def evaluation_is_due(self):
        return bool(self._evaluate_every) and self.trained % self._evaluate_every == 0

    async def evaluate_when_due(self):
        assert not self._sampling and self.served == self.trained
        await self._pause()
        self.evaluated[self.trained] = self.served


def run(work, first, last, ahead):
    async def go():
        await asyncio.wait_for(Pipeline(work, ahead=ahead).run(first, last), timeout=10)

    asyncio.run(go())


@given(
    st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([0, 1, 2, 3]),
)  # fmt: skip
def test_one_step_ahead_is_the_same_whatever_the_timing(seed, last, every):
    work = Work(seed, every)
    run(work, 1, last, 1)
    assert work.order == list(range(1, last + 1))
    assert work.seen == {step: max(0, step - 2) for step in range(1, last + 1)}
    assert set(work.evaluated) == {step for step in range(1, last + 1) if every and step % every == 0}


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4), st.sampled_from([0, 2]))
def test_no_step_is_staler_than_allowed(seed, last, ahead, every):
    work = Work(seed, every)
    run(work, 1, last, ahead)
    assert work.order == list(range(1, last + 1))
    assert all(step - 1 - version <= ahead for step, version in work.seen.items())
    assert work.at_once <= ahead


def test_it_goes_on_where_a_run_stopped():
    work = Work(3)
    work.trained = work.served = 4
    run(work, 5, 8, 1)
    assert work.seen == {5: 4, 6: 4, 7: 5, 8: 6}


@pytest.mark.parametrize("broken", [("sample", 3), ("learn", 2)])
def test_what_breaks_ends_both_sides_with_its_own_words(broken):
    work = Work(1, fail=broken)
    with pytest.raises(RuntimeError, match=f"{broken[0]} {broken[1]} broke"):
        run(work, 1, 6, 1)


async def test_cancelled_it_leaves_no_task():
    work = Work(0)
    work.sample = lambda step: asyncio.sleep(60)
    task = asyncio.create_task(Pipeline(work, ahead=1).run(1, 3))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_pipeline_without_anything_ahead_is_none():
    with pytest.raises(ValueError, match="at least one step"):
        Pipeline(Work(), ahead=0)
