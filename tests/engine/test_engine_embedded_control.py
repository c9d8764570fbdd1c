"""What others do to a running engine: abort, pause, new weights, failure, close."""

import asyncio
import threading

import pytest
import torch

from swe_rl.config.schema import EngineConfig
from swe_rl.engine.embedded.core import EngineCore
from swe_rl.engine.embedded.engine import EmbeddedEngine
from swe_rl.engine.engine import EngineError, EngineState, SamplingParams
from tests.support.waiting import until

LONG = SamplingParams(200, seed=1)


def begin(engine, prompt, request_id="r", params=LONG, session_id=None):
    return asyncio.ensure_future(engine.generate(prompt, params, request_id=request_id, session_id=session_id))


async def sampling(engine, tokens=5):
    start = engine.stats().sampled_tokens_total
    await until(lambda: engine.stats().sampled_tokens_total >= start + tokens, pause_s=0.001)


async def test_abort_returns_what_was_sampled(engine, prompt_of):
    whole = await engine.generate(prompt_of(0, 20), LONG, request_id="whole")
    request = begin(engine, prompt_of(0, 20), "a")
    await sampling(engine)
    await engine.abort("a")
    await engine.abort("unknown")
    done = await request
    assert done.finish_reason == "abort"
    assert 5 <= len(done.token_ids) < 200
    assert done.token_ids == whole.token_ids[: len(done.token_ids)]


async def test_abort_of_a_waiting_request(start_engine, prompt_of):
    engine = await start_engine(max_num_seqs=1)
    running = begin(engine, prompt_of(0, 20), "running")
    waiting = begin(engine, prompt_of(1, 20), "waiting")
    await sampling(engine)
    await engine.abort("waiting")
    assert (await waiting).token_ids == () and (await waiting).finish_reason == "abort"
    assert not running.done()


async def test_cancelling_the_task_frees_the_slot(engine, prompt_of):
    request = begin(engine, prompt_of(0, 20))
    await sampling(engine)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await until(lambda: engine.stats().running == 0)
    settled = engine.stats().sampled_tokens_total
    await asyncio.sleep(0.02)
    assert engine.stats().sampled_tokens_total == settled


async def test_pause_freezes_and_resume_continues_where_it_was(engine, prompt_of):
    whole = await engine.generate(prompt_of(0, 20), LONG, request_id="whole")
    request = begin(engine, prompt_of(0, 20))
    await sampling(engine)
    await engine.pause()
    frozen = engine.stats()
    queued = begin(engine, prompt_of(1, 20), "queued", SamplingParams(2))
    await until(lambda: engine.stats().waiting == 1)
    await asyncio.sleep(0.03)
    assert engine.stats().sampled_tokens_total == frozen.sampled_tokens_total
    assert frozen.running == 1 and frozen.kv_used_tokens >= 24
    await engine.resume()
    assert (await request).token_ids == whole.token_ids
    assert len((await queued).token_ids) == 2


async def test_abort_works_while_paused(engine, prompt_of):
    request = begin(engine, prompt_of(0, 20))
    await sampling(engine)
    await engine.pause()
    await engine.abort("r")
    assert (await request).finish_reason == "abort"


async def test_new_weights_change_outputs_version_and_forget_the_cache(engine, build_model, prompt_of):
    other = build_model(1)
    prompt, params = prompt_of(0, 150), SamplingParams(20, temperature=0.0)
    before = await engine.generate(prompt, params, request_id="a", session_id="s")
    await engine.update_weights(other.state_dict(), 3)
    after = await engine.generate(prompt, params, request_id="b", session_id="s")
    expected = other.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert (before.weight_version, after.weight_version, engine.stats().weight_version) == (0, 3, 3)
    assert before.token_ids != after.token_ids
    assert list(after.token_ids) == expected[0, 150:].tolist()
    assert after.cached_tokens == 0


async def test_a_running_request_goes_on_with_new_weights(engine, start_engine, build_model, prompt_of):
    """What it has sampled stays; nothing that the old weights cached is used for what comes after it."""
    before = await engine.generate(prompt_of(0, 20), LONG, request_id="before")
    request = begin(engine, prompt_of(0, 20), session_id="s")
    await sampling(engine)
    await engine.pause()
    await engine.update_weights(build_model(1).state_dict(), 9)
    assert (engine.stats().running, engine.stats().waiting) == (0, 1)
    await engine.resume()
    done = await request
    kept = done.weight_versions.index(9)
    assert done.weight_versions == (0,) * kept + (9,) * (200 - kept) and 5 <= kept < 200
    assert done.token_ids[:kept] == before.token_ids[:kept] and done.logprobs[:kept] == before.logprobs[:kept]
    assert done.weight_version == 9 and len(done.token_ids) == len(done.logprobs) == 200
    other = build_model(1).eval()
    with torch.no_grad():
        logits = other(torch.tensor([[*prompt_of(0, 20), *done.token_ids]])).logits[0, 19 + kept : -1]
    told = logits.log_softmax(-1).gather(1, torch.tensor(done.token_ids[kept:])[:, None])[:, 0]
    assert (told - torch.tensor(done.logprobs[kept:])).abs().max() < 1e-4
    fresh = await start_engine(build_model(1))
    history, again = [*prompt_of(0, 20), *done.token_ids], SamplingParams(1, seed=1)
    later = await engine.generate(history, again, request_id="later", session_id="s")
    theirs = await fresh.generate(history, again, request_id="later", session_id="s")
    assert later.token_ids == theirs.token_ids and later.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


async def test_a_request_that_goes_on_draws_the_next_numbers(engine, model, prompt_of):
    """Under weights that are equal its tokens are those of a request that nobody interrupted."""
    whole = await engine.generate(prompt_of(0, 20), LONG, request_id="whole")
    request = begin(engine, prompt_of(0, 20))
    for version in (1, 2, 3):
        await sampling(engine, 20)
        await engine.update_weights(model.state_dict(), version)
    done = await request
    assert done.token_ids == whole.token_ids and set(done.weight_versions) == {0, 1, 2, 3}
    assert done.logprobs == pytest.approx(whole.logprobs, abs=1e-4)


async def test_what_an_update_costs_is_no_time_of_the_request(engine, build_model, prompt_of):
    request = begin(engine, prompt_of(0, 20))
    await sampling(engine)
    await engine.pause()
    await engine.update_weights(build_model(1).state_dict(), 1)
    await asyncio.sleep(0.3)
    await engine.resume()
    done = await request
    assert done.queue_s > 0.3 and done.decode_s > 0.0
    begun = begin(engine, prompt_of(0, 20), "cut")
    await sampling(engine)
    await engine.pause()
    await engine.update_weights(build_model(2).state_dict(), 2)
    await asyncio.sleep(0.3)
    await engine.abort("cut")
    await engine.resume()
    assert (await begun).queue_s > 0.3 and set((await begun).weight_versions) == {1}


async def test_requests_that_go_on_keep_their_places(start_engine, build_model, prompt_of):
    engine = await start_engine(max_num_seqs=2)
    requests = [begin(engine, prompt_of(i, 20), str(i), SamplingParams(60, seed=i)) for i in range(5)]
    await sampling(engine)
    await engine.update_weights(build_model(1).state_dict(), 1)
    ended = []
    for number, request in enumerate(requests):
        request.add_done_callback(lambda _, number=number: ended.append(number))
    assert {one.weight_version for one in await asyncio.gather(*requests)} == {1}
    assert sorted(ended[:2]) == [0, 1] and sorted(ended[2:4]) == [2, 3]


async def test_a_refused_update_changes_nothing(engine, build_model, prompt_of):
    params = SamplingParams(10, seed=0)
    before = await engine.generate(prompt_of(0, 20), params, request_id="a")
    weights = dict(build_model(1).state_dict())
    del weights["model.norm.weight"]
    with pytest.raises(EngineError, match=r"`model.norm.weight` is missing"):
        await engine.update_weights(weights, 5)
    after = await engine.generate(prompt_of(0, 20), params, request_id="b")
    assert (after.token_ids, after.weight_version) == (before.token_ids, 0)


async def test_the_engine_has_its_own_copy_of_the_model(build_model, start_engine, prompt_of):
    model = build_model(5)
    engine = await start_engine(model)
    before = await engine.generate(prompt_of(0, 20), SamplingParams(10, seed=0), request_id="a")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    after = await engine.generate(prompt_of(0, 20), SamplingParams(10, seed=0), request_id="b")
    assert after.token_ids == before.token_ids


async def test_release_session_forgets_it(engine, prompt_of):
    prompt = prompt_of(0, 20)
    await engine.generate(prompt, SamplingParams(1), request_id="a", session_id="s")
    engine.release_session("s")
    engine.release_session("unknown")
    assert (await engine.generate(prompt, SamplingParams(1), request_id="b", session_id="s")).cached_tokens == 0


async def test_a_failure_in_the_thread_reaches_everyone_with_its_cause(engine, build_model, prompt_of):
    broken = {name: torch.full_like(value, float("nan")) for name, value in build_model(1).state_dict().items()}
    requests = [begin(engine, prompt_of(i, 20), str(i)) for i in range(3)]
    await sampling(engine)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        broken[name] = torch.zeros_like(broken[name])
    await engine.update_weights(broken, 1)
    for outcome in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(outcome, EngineError)
        assert isinstance(outcome.__cause__, FloatingPointError)
    with pytest.raises(EngineError, match="logits are not finite") as later:
        await engine.generate(prompt_of(0, 20), LONG, request_id="later")
    assert isinstance(later.value.__cause__, FloatingPointError)
    with pytest.raises(EngineError, match="logits are not finite"):
        await engine.pause()
    await engine.abort("0")


async def test_an_engine_whose_thread_has_ended_is_gone_and_says_so_once(engine, model, monkeypatch, prompt_of):
    told = []
    engine.on_change = told.append
    request = begin(engine, prompt_of(0, 20))
    await sampling(engine)
    assert engine.state is EngineState.up and engine.why_lost is None
    monkeypatch.setattr(EngineCore, "step", lambda core: 1 / 0)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        await request
    await until(lambda: told)
    assert engine.state is EngineState.gone
    assert "ZeroDivisionError" in str(engine.why_lost)
    await engine.close()
    assert told == [False]


async def test_close_fails_what_is_pending_and_joins_the_thread(engine, prompt_of):
    requests = [begin(engine, prompt_of(i, 20), str(i)) for i in range(12)]
    await sampling(engine)
    await engine.close()
    await engine.close()
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert all(isinstance(o, EngineError) and "was closed" in str(o) for o in outcomes)
    assert not [t for t in threading.enumerate() if t.name == f"engine-{engine.name}"]
    with pytest.raises(EngineError, match="is closed"):
        await engine.generate(prompt_of(0, 5), LONG, request_id="late")


async def test_close_while_paused(engine, prompt_of):
    request = begin(engine, prompt_of(0, 20))
    await sampling(engine)
    await engine.pause()
    await engine.close()
    with pytest.raises(EngineError, match="was closed"):
        await request


async def test_generate_before_start_says_so(model, prompt_of):
    engine = EmbeddedEngine(model, EngineConfig(max_model_len=64, max_num_seqs=2), pad_token_id=0)
    with pytest.raises(EngineError, match="was not started"):
        await engine.generate(prompt_of(0, 5), LONG, request_id="early")
    await engine.close()


async def test_an_unexpected_error_in_an_update_reaches_the_caller_and_ends_the_engine(engine, model, monkeypatch):
    def explode(self, weights, version):
        raise OSError("disk on fire")

    monkeypatch.setattr(EngineCore, "update_weights", explode)
    with pytest.raises(OSError, match="disk on fire"):
        await engine.update_weights(model.state_dict(), 1)
    await until(lambda: not engine._thread.alive)
    with pytest.raises(EngineError, match="disk on fire"):
        await engine.generate([1], LONG, request_id="late")


async def test_threads_of_the_caller_are_left_alone(model, prompt_of):
    torch.set_num_threads(1)
    config = EngineConfig(max_model_len=64, max_num_seqs=2, num_threads=2)
    engine = EmbeddedEngine(model, config, pad_token_id=0)
    await engine.start()
    await engine.generate(prompt_of(0, 5), SamplingParams(2), request_id="a")
    assert torch.get_num_threads() == 1
    await engine.close()
