"""No engine for too long ends what waits; one that comes back, or a loop that stood still, does not."""

import asyncio

import pytest

from swe_rl.engine.engine import EngineError, EngineState
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.server.monitor import TICK_S
from swe_rl.engine.watch import NoEngineError, require_an_engine

LOST = EngineError("Engine `engine0` is lost: refused")


def make(why_lost=None):
    return told(ScriptedEngine(lambda prompt: [1]), why_lost)


def told(engine, why_lost):
    engine.state, engine.why_lost = EngineState.up if why_lost is None else EngineState.lost, why_lost
    return engine


async def watch(script, engines, limit_s=10.0):
    """`script(second)` is called before each look, and may stall the clock by what it returns. What was said, when."""
    now_s, said = 0.0, []

    async def sleep(seconds):
        nonlocal now_s
        now_s += seconds + (script(now_s) or 0.0)
        if now_s > 200:
            raise asyncio.CancelledError
        await asyncio.sleep(0)

    try:
        await require_an_engine(engines, limit_s, said.append, clock=lambda: now_s, sleep=sleep)
    except NoEngineError as error:
        return now_s, str(error), said
    except asyncio.CancelledError:
        return None, None, said
    raise AssertionError("it returns never")


async def test_every_engine_lost_for_the_whole_time_ends_it_by_name():
    engines = [make(), make(LOST)]

    def script(now_s):
        told(engines[0], LOST if now_s >= 50 else None)

    ended_s, words, said = await watch(script, engines)
    assert ended_s == pytest.approx(60.0, abs=2 * TICK_S)
    assert "No engine has served for 10 s (engine.max_away_s)" in words and words.count("refused") == 2
    assert "trainer.resume=auto" in words
    [line] = said
    assert "no engine serves" in line and "10 s" in line


async def test_one_that_comes_back_in_time_starts_the_time_anew():
    engine = make()

    def script(now_s):
        told(engine, None if now_s % 9 < 1 else LOST)

    assert (await watch(script, [engine]))[0] is None


async def test_a_stall_of_ours_is_not_counted():
    engine = make(LOST)

    def script(now_s):
        if now_s > 30:
            told(engine, None)
        return 40.0 if 1.0 <= now_s < 2.0 else 0.0

    assert (await watch(script, [engine]))[0] is None


@pytest.mark.parametrize("state", [None, EngineState.up, EngineState.starting, EngineState.gone])
async def test_engines_that_are_never_lost_are_never_missed(state):
    """Also one that starts its own server again: it ends that time itself."""
    engines = [] if state is None else [make()]
    for engine in engines:
        engine.state, engine.why_lost = state, None if state is EngineState.up else LOST
    assert await watch(lambda now_s: None, engines) == (None, None, [])
