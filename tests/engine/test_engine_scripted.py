import asyncio

import numpy as np
import pytest

from swe_rl.engine.engine import ContextOverflowError, EngineError, SamplingParams
from swe_rl.engine.scripted import ScriptedEngine


def ask(engine, prompt=(1, 2), request_id="r", **params):
    return engine.generate(
        prompt, SamplingParams(**{"max_tokens": 10, "stop_token_ids": (9,), **params}), request_id=request_id
    )


async def test_the_reply_ends_at_a_stop_token_or_at_the_limit():
    engine = ScriptedEngine(lambda prompt: [sum(prompt), 5, 9, 7])
    done = await ask(engine)
    assert (done.token_ids, done.finish_reason) == ((3, 5, 9), "stop")
    assert done == await ask(engine) and all(one == np.float32(one) and one <= 0 for one in done.logprobs)
    cut = await ask(engine, max_tokens=2)
    assert (cut.token_ids, cut.finish_reason, cut.logprobs) == ((3, 5), "length", done.logprobs[:2])


async def test_context_and_injected_failures():
    engine = ScriptedEngine(lambda prompt: [5, 5, 5], max_model_len=4)
    assert len((await ask(engine)).token_ids) == 2
    with pytest.raises(ContextOverflowError):
        await ask(engine, (1, 2, 3, 4))
    engine.fail_next(EngineError("x"))
    with pytest.raises(EngineError, match="x"):
        await ask(engine)
    await ask(engine)


async def test_a_paused_engine_freezes_and_goes_on():
    engine = ScriptedEngine(lambda prompt: [5, 9])
    await engine.pause()
    task = asyncio.create_task(ask(engine))
    await asyncio.sleep(0.02)
    assert not task.done() and engine.stats().running == 1
    await engine.update_weights({}, 4)
    await engine.resume()
    assert (await task).weight_version == 4 and engine.stats().running == 0


async def test_abort_and_cancel():
    engine = ScriptedEngine(lambda prompt: [5, 6, 9], token_delay_s=30)
    task = asyncio.create_task(ask(engine))
    await asyncio.sleep(0.01)
    await engine.abort("unknown")
    await engine.abort("r")
    done = await task
    assert (done.token_ids, done.finish_reason) == ((), "abort")
    task = asyncio.create_task(ask(engine))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.cancelled == ["r"] and engine.stats().running == 0
