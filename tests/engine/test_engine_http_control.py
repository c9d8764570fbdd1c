"""Requests that wait for a server, in their callers' tasks."""

import asyncio

import pytest

from swe_rl.engine.engine import EngineError
from swe_rl.engine.server.control import InFlight, Interrupted


async def forever():
    await asyncio.Event().wait()


async def begun(in_flight, request=None):
    """A caller whose request waits."""
    task = asyncio.ensure_future(in_flight.run(request or forever(), 3))
    await asyncio.sleep(0)
    assert (len(in_flight), in_flight.tokens) == (1, 3)
    return task


async def test_a_caller_lives_on_when_its_request_is_ended_here():
    in_flight = InFlight()

    async def call():
        with pytest.raises(Interrupted):
            await in_flight.run(forever(), 3)
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)  # would end a task that is still to be cancelled
        return await in_flight.run(asyncio.sleep(0, "answered"), 3)

    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    in_flight.interrupt()
    in_flight.interrupt()
    assert await task == "answered" and len(in_flight) == 0


async def test_a_failure_after_an_interruption_is_the_failure():
    in_flight = InFlight()
    task = await begun(in_flight)
    in_flight.interrupt()
    in_flight.fail(EngineError("it died"))
    with pytest.raises(EngineError, match="it died"):
        await task
    assert in_flight.loss.requests == 1


@pytest.mark.parametrize("first", ["caller", "server"])
async def test_a_caller_that_is_cancelled_is_cancelled_whatever_else_happens(first):
    in_flight = InFlight()
    task = await begun(in_flight)
    for act in (task.cancel, in_flight.interrupt)[:: 1 if first == "caller" else -1]:
        act()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled() and len(in_flight) == 0


async def test_a_limit_of_the_caller_is_its_own():
    in_flight = InFlight()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await in_flight.run(forever(), 3)
    async with asyncio.timeout(5.0):
        asyncio.get_running_loop().call_later(0.01, in_flight.interrupt)
        with pytest.raises(Interrupted):
            await in_flight.run(forever(), 3)


async def test_a_request_that_ends_by_itself_in_the_moment_it_is_ended_here_leaves_no_cancellation():
    in_flight = InFlight()

    async def broken():
        try:
            await forever()
        except asyncio.CancelledError:
            raise EngineError("broke off") from None

    async def call():
        with pytest.raises(EngineError, match="broke off"):
            await in_flight.run(broken(), 3)
        return asyncio.current_task().cancelling()

    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    in_flight.interrupt()
    assert await task == 0
