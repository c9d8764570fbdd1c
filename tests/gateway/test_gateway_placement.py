import asyncio

import pytest

from swe_rl.engine.engine import EngineState
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.placement import Placement
from swe_rl.router.core import Place, ProgramReleased, RequestArrived, RequestFinished, Router, Tick
from swe_rl.router.default import DefaultPolicy


class Holding:
    """Holds every request until a tick, then places them all on the last engine."""

    name = "holding"
    tick_s = 0.02

    def __init__(self):
        self.events = []
        self.failures = []

    def initial(self, engines):
        return {"engine": engines[-1], "held": []}

    def step(self, state, event, now_s):
        self.events.append(event)
        if isinstance(event, RequestArrived):
            state["held"].append(event.request_id)
        if not isinstance(event, Tick):
            return []
        held, state["held"] = state["held"], []
        if held and self.failures:
            raise self.failures.pop()
        return [Place(one, state["engine"]) for one in [*held, "nobody"]]


@pytest.fixture
async def held():
    policy = Holding()
    engines = [ScriptedEngine(lambda prompt: [1], name=f"e{i}") for i in range(2)]
    placement = Placement(Router(policy, ["e0", "e1"]), engines)
    yield placement, policy
    await placement.close()


async def test_a_held_request_goes_at_a_tick(held):
    placement, policy = held
    placement.start()
    async with placement.place("p", "r", 7) as placed:
        assert placed.engine.name == "e1" and placement.held == 0
        placed.context_tokens += 5
    placement.release("p")
    events = [event for event in policy.events if not isinstance(event, Tick)]
    assert events == [RequestArrived("p", "r", 7), RequestFinished("p", "r", 12), ProgramReleased("p")]
    (load, _) = next(event for event in policy.events if isinstance(event, Tick)).loads
    assert (load.engine, load.running, load.kv_capacity_tokens) == ("e0", 0, 4096)


async def test_a_held_request_that_is_given_up_is_finished(held):
    placement, policy = held

    async def wait():
        async with placement.place("p", "r", 7):
            raise AssertionError("never placed")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert placement.held == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert placement.held == 0 and policy.events[-1] == RequestFinished("p", "r", 7)


async def test_a_router_that_fails_at_a_tick_is_the_error_of_those_who_wait_and_ticks_on(held):
    placement, policy = held
    placement.start()
    policy.failures = [ZeroDivisionError("of the router")]
    with pytest.raises(ZeroDivisionError, match="of the router"):
        async with asyncio.timeout(20), placement.place("p", "r", 7):
            raise AssertionError("never placed")
    async with asyncio.timeout(20), placement.place("p", "again", 7) as placed:
        assert placed.engine.name == "e1"


async def test_a_failing_request_is_finished(held):
    placement, policy = held
    placement.start()
    with pytest.raises(ZeroDivisionError):
        async with placement.place("p", "r", 7):
            raise ZeroDivisionError
    assert policy.events[-1] == RequestFinished("p", "r", 7)


async def test_an_engine_that_is_gone_from_the_start_gets_nothing():
    engines = [ScriptedEngine(lambda prompt: [1], name=f"e{i}") for i in range(2)]
    engines[0].state = EngineState.gone
    placement = Placement(Router(DefaultPolicy(), ["e0", "e1"]), engines)
    placement.start()
    for number in range(3):
        async with placement.place(f"p{number}", "r", 7) as placed:
            assert placed.engine.name == "e1"
    await placement.close()


async def test_what_is_held_goes_to_a_failed_engine_when_none_will_serve_again():
    """There it fails with the reason, rather than wait for its client's patience to end."""
    engines = [ScriptedEngine(lambda prompt: [1], name=f"e{i}") for i in range(2)]
    placement = Placement(Router(DefaultPolicy(), ["e0", "e1"]), engines)
    placement.start()

    async def ask():
        async with placement.place("p", "r", 7) as placed:
            return placed.engine.name

    for engine in engines:
        engine.on_change(False)
    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    engines[0].state = EngineState.gone
    engines[0].on_change(False)
    await asyncio.sleep(0)
    assert placement.held == 1  # the other one may come back
    engines[1].state = EngineState.gone
    engines[1].on_change(False)
    assert await asking == "e1"
    await placement.close()
