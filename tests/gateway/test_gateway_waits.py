"""What a session's calls waited for is told apart from what its agent did, while it waits and afterwards."""

import asyncio
import contextlib
from dataclasses import replace

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.engine.engine import EngineError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.errors import ApiError
from swe_rl.gateway.waits import BACK_OFF_S, Waits
from tests.gateway.test_gateway_completion import SETTINGS, USER, make_door

__all__ = ["make_door"]


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_a_wait_counts_while_it_lasts_and_what_overlaps_once():
    clock = Clock()
    waits = Waits(clock)
    first = waits.begin()
    clock.now_s += 5
    second = waits.begin()
    clock.now_s += 5
    assert waits.total_s() == 10
    first()
    first()  # again: nothing
    clock.now_s += 5
    assert waits.total_s() == 15
    second()
    clock.now_s += 100
    assert waits.total_s() == 15
    waits.add(112.0, 117.0)  # queued in an engine meanwhile: two seconds are new
    waits.add(50.0, 40.0)
    assert waits.total_s() == 17


def test_backing_off_ends_with_the_next_call_and_is_bounded():
    clock = Clock()
    waits = Waits(clock)
    waits.asked()
    waits.refused()
    clock.now_s += 3
    waits.refused()
    assert waits.total_s() == 3
    clock.now_s += 1
    waits.asked()
    clock.now_s += 50
    assert waits.total_s() == 4
    waits.refused()  # a client that never comes again
    clock.now_s += 10 * BACK_OFF_S
    assert waits.total_s() == 4 + BACK_OFF_S


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8),
    st.lists(st.integers(0, 60), max_size=3),
    st.none() | st.integers(0, 60),
)
def test_what_is_under_way_counts_as_if_it_had_just_ended(spans, begun, refused):
    clock = Clock()
    waits = Waits(clock)
    for began, length in spans:
        waits.add(began, began + length)
    ends = []
    for clock.now_s in sorted(begun):
        ends.append(waits.begin())
    if refused is not None:
        clock.now_s = refused
        waits.refused()
    clock.now_s = 80.0
    under_way = waits.total_s()
    for end in ends:
        end()
    waits.asked()
    assert waits.total_s() == under_way


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), max_size=12))
def test_never_more_than_what_passed(spans):
    waits = Waits(lambda: 0.0)
    seen: set[int] = set()
    for began, length in spans:
        began, length = round(began), round(length)
        waits.add(began, began + length)
        seen |= set(range(began, began + length))
        assert waits.total_s() == len(seen)


async def test_the_routers_hold_is_waited_and_sampling_is_not(make_door):
    engine = ScriptedEngine(lambda prompt: [300] * 4, token_delay_s=0.05)
    engine.fail_next(EngineError("it died"))
    door = make_door(engine)
    door.placement.start()
    engine.on_change(False)
    call = asyncio.create_task(door.ask())
    await asyncio.sleep(0.3)
    live = door.sessions.waited_s("s")
    assert 0.25 < live < 0.4  # while it is held
    engine.on_change(True)
    await call
    assert live <= door.sessions.waited_s("s") < live + 0.1
    assert door.live.times_s["queue"] >= 0.25, "also of the try that came to nothing"
    assert door.sessions.waited_s("nobody") == 0.0


async def test_an_engines_queue_and_an_engine_that_fails_are_waited(make_door):
    class Queueing(ScriptedEngine):
        fails = False

        async def generate(self, *args, **options):
            await asyncio.sleep(0.2)
            if self.fails:
                self.fails = False
                raise EngineError("it died")
            return replace(await super().generate(*args, **options), queue_s=0.1)

    engine = Queueing(lambda prompt: [300])
    door = make_door(engine)
    await door.ask()
    once = door.sessions.waited_s("s")
    assert 0.1 <= once < 0.15
    engine.fails = True
    await door.ask([USER, USER])
    assert 0.3 <= door.sessions.waited_s("s") - once < 0.4  # the failed one whole, and the queue of the second


async def test_after_an_error_of_ours_a_client_backs_off_and_after_its_own_it_does_not(make_door):
    engine = ScriptedEngine(lambda prompt: [300])
    door = make_door(engine)
    engine.fail_next(*[EngineError("it died")] * 3)
    with pytest.raises(ApiError, match="it died"):
        await door.ask()
    before = door.sessions.waited_s("s")
    await asyncio.sleep(0.1)
    assert door.sessions.waited_s("s") - before >= 0.09
    assert "it died" in door.live.summary().failed
    call = asyncio.create_task(asyncio.sleep(0))
    door.sessions.began(door.live, call)
    after = door.sessions.waited_s("s")
    await asyncio.sleep(0.05)
    assert door.sessions.waited_s("s") == after
    await door.ask()
    assert door.live.summary().failed == "", "a later call was answered"


async def test_a_call_that_is_refused_for_load_is_backed_off_from(serve, says):
    async with serve(ScriptedEngine(says("hello"))) as (gateway, _, _), aiohttp.ClientSession() as http:
        gateway.open_session("s", SETTINGS)
        url = f"{gateway.session_url('s')}/chat/completions"
        gateway._sessions.num_calls = 10**6
        async with http.post(url, json={"messages": [USER]}) as answer:
            assert answer.status == 503
        await asyncio.sleep(0.2)
        assert 0.2 <= gateway.waited_s("s") < 1.0
        assert gateway._sessions.all()[0].summary().failed
        gateway._sessions.num_calls = 0
        async with http.post(url, json={"messages": [USER]}) as answer:
            assert answer.status == 200
        waited_s = gateway.waited_s("s")
        await asyncio.sleep(0.1)
        assert gateway.waited_s("s") == waited_s
        with contextlib.suppress(asyncio.CancelledError):
            await gateway.close_session("s")
        assert gateway.waited_s("s") == 0.0
