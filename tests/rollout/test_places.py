"""Places whose number changes while they are taken."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.rollout.places import Places


async def _settle():
    for _ in range(5):
        await asyncio.sleep(0)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 8), st.lists(st.one_of(st.just("in"), st.just("out"), st.integers(1, 12)), max_size=40))
def test_no_more_than_the_limit_come_in_and_every_place_is_used(limit, steps):
    async def play():
        places = Places(limit)
        waiting = []
        inside = 0

        async def enter():
            nonlocal inside
            await places.acquire()
            inside += 1

        for step in steps:
            before = inside
            if step == "in":
                waiting.append(asyncio.create_task(enter()))
            elif step == "out" and inside:
                inside -= 1
                places.release()
                before = inside
            elif isinstance(step, int):
                places.resize(step)
            await _settle()
            assert inside == places.taken
            # Nobody comes in where there is no place, and nobody waits where there is one.
            assert inside <= max(places.limit, before)
            left = sum(not task.done() for task in waiting)
            assert not left or inside >= places.limit
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(play())


def test_who_waits_longest_comes_in_first():
    async def play():
        places = Places(1)
        order = []

        async def enter(name):
            async with places:
                order.append(name)
                await asyncio.sleep(0)

        await places.acquire()
        tasks = [asyncio.create_task(enter(name)) for name in range(4)]
        await _settle()
        places.release()
        await asyncio.gather(*tasks)
        return order, places.given_back

    assert asyncio.run(play()) == ([0, 1, 2, 3], 5)


def test_a_waiting_task_that_is_cancelled_takes_no_place():
    async def play():
        places = Places(1)
        await places.acquire()
        places.resize(2)
        places.resize(1)
        waiting = asyncio.create_task(places.acquire())
        await _settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        places.release()
        await asyncio.wait_for(places.acquire(), 1)
        return places.taken

    assert asyncio.run(play()) == 1
