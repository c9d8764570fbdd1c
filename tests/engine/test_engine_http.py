"""A running server as an engine: the contract of `Engine`, and what happens when the server goes away."""

import asyncio
import base64
import io
import json

import numpy as np
import pytest

from swe_rl.engine.engine import ContextOverflowError, EngineError, SamplingParams
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.features import Needs
from swe_rl.engine.server.wire import BadReplyError, TokenIn, parse_reply
from tests.support.fake_vllm.server import FakeSettings, FakeVllm, Fault
from tests.support.waiting import until

PROMPT = list(range(1, 50))


@pytest.fixture
async def start():
    """start(**settings) -> (fake, engine)"""
    running = []

    async def make(*, reply=None, key=None, num_experts=0, **settings):
        fake = await FakeVllm(FakeSettings(**settings), reply=reply).__aenter__()
        length = settings.get("max_model_len", 4096)
        needs = Needs("policy", length, vocab_size=1000, num_experts=num_experts)
        engine = HttpEngine(
            HttpClient(fake.url, api_key=key), needs, name="engine0", max_num_seqs=8, stats_period_s=0.02
        )
        running.append((fake, engine))
        await engine.start()
        fake.requests.clear()
        return fake, engine

    yield make
    for fake, engine in running:
        await engine.close()
        await fake.__aexit__()


@pytest.mark.parametrize("timings", [True, False])
async def test_a_completion(start, timings):
    fake, engine = await start(timings=timings, token_delay_s=0.002, reply=lambda prompt: [7, 8, 9, 2, 11])
    done = await engine.generate(PROMPT, SamplingParams(20, stop_token_ids=(2,), seed=3), request_id="a")
    assert done.token_ids == (7, 8, 9, 2) and done.finish_reason == "stop" and done.weight_version == 0
    assert done.logprobs == tuple(fake.model.logprob(len(PROMPT) + at, t, {}) for at, t in enumerate(done.token_ids))
    assert 0.004 < done.decode_s < 1.0
    again = await engine.generate(PROMPT, SamplingParams(2), request_id="a")
    assert again.finish_reason == "length" and again.cached_tokens == 48
    stats = engine.stats()
    assert stats.sampled_tokens_total == 6 and stats.prefill_tokens_total == 2 * 49 - 48


async def test_equal_seeds_equal_tokens(start):
    _, engine = await start()

    async def tokens(seed):
        return (await engine.generate(PROMPT, SamplingParams(8, seed=seed), request_id="a")).token_ids

    assert await tokens(1) == await tokens(1) != await tokens(2)


async def test_what_is_asked_is_cut_to_the_room(start):
    fake, engine = await start(max_model_len=64)
    done = await engine.generate(PROMPT, SamplingParams(1000), request_id="a")
    assert len(done.token_ids) == 15 and fake.requests[0][1]["max_tokens"] == 15


async def test_a_prompt_without_room(start):
    fake, engine = await start(max_model_len=64)
    with pytest.raises(ContextOverflowError, match=r"max_model_len=64"):
        await engine.generate([1] * 64, SamplingParams(1), request_id="a")
    assert fake.requests == []
    fake.fail_next(Fault(400, '{"error": {"message": "This model\'s maximum context length is 64 tokens."}}'))
    with pytest.raises(ContextOverflowError):
        await engine.generate(PROMPT, SamplingParams(1), request_id="a")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(500), "answered 500: by script"),
        (Fault(503, "busy"), "answered 503: busy"),
        (Fault(200, "{}"), "not a completion"),
        (Fault(200, "<html>"), "not JSON"),
        (Fault(), "broke off"),
    ],
)
async def test_faults_are_engine_errors_and_pass(start, fault, words):
    fake, engine = await start()
    fake.fail_next(fault)
    with pytest.raises(EngineError, match=words) as caught:
        await engine.generate(PROMPT, SamplingParams(2), request_id="a")
    assert "engine0" in str(caught.value) and not isinstance(caught.value, ContextOverflowError)
    assert len(fake.requests) == 1  # never sent twice
    assert (await engine.generate(PROMPT, SamplingParams(2), request_id="a")).token_ids


async def test_cancelling_frees_the_sequence(start):
    fake, engine = await start(token_delay_s=0.01)
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(500), request_id="a"))
    await until(lambda: engine.stats().running == 1 and engine.stats().kv_used_tokens > 0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: fake.running == 0 and engine.stats().running == 0)
    assert fake.disconnected == 1


@pytest.mark.parametrize("timings", [True, False])
async def test_an_abort_keeps_what_was_sampled(start, timings):
    fake, engine = await start(token_delay_s=0.01, timings=timings)
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(500), request_id="a"))
    await until(lambda: fake.running == 1)
    await asyncio.sleep(0.05)
    await engine.abort("unknown")
    await engine.abort("a")
    done = await asyncio.wait_for(asking, 2)
    assert done.finish_reason == "abort" and 1 <= len(done.token_ids) < 100


async def test_an_abort_without_control_routes(start):
    fake, engine = await start(token_delay_s=0.01, dev_mode=False)
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(500), request_id="a"))
    await until(lambda: fake.running == 1)
    await engine.abort("a")
    assert (await asyncio.wait_for(asking, 2)).finish_reason == "abort"


async def test_pause_freezes_and_queues(start):
    fake, engine = await start(token_delay_s=0.005)
    old = asyncio.create_task(engine.generate(PROMPT, SamplingParams(20), request_id="a"))
    await until(lambda: fake.running == 1)
    await engine.pause()
    new = asyncio.create_task(engine.generate(PROMPT, SamplingParams(2), request_id="b"))
    await asyncio.sleep(0.2)
    assert fake.paused and not old.done() and not new.done() and fake.running == 1
    await engine.resume()
    assert len((await old).token_ids) == 20 and len((await new).token_ids) == 2


async def test_pause_where_the_server_has_none(start):
    _, engine = await start(dev_mode=False)
    with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1"):
        await engine.pause()
    assert (await engine.generate(PROMPT, SamplingParams(1), request_id="a")).token_ids  # the gate is open


async def test_weights_need_a_folder(start):
    _, engine = await start()
    with pytest.raises(EngineError, match="takes no weights"):
        await engine.update_weights({}, 1)


async def test_what_is_in_flight_at_an_update_is_sent_again(start):
    """One sequence at a time: the second request waits in the server while the weights change."""
    fake, engine = await start(token_delay_s=0.01, max_num_seqs=1)
    begun = (await engine.generate(PROMPT, SamplingParams(3), request_id="z")).weight_version
    first = asyncio.create_task(engine.generate(PROMPT, SamplingParams(30), request_id="a"))
    await until(lambda: fake.running == 1)
    second = asyncio.create_task(engine.generate(PROMPT, SamplingParams(2), request_id="b"))
    await asyncio.sleep(0.1)
    await engine.pause()
    fake.model.weights = "5"
    engine.stamp(5)
    await engine.resume()
    done, later = await first, await second
    assert (begun, done.weight_version, later.weight_version) == (0, 5, 5) and fake.disconnected == 2
    assert done.queue_s > 0.1  # the first try
    assert list(done.token_ids) == fake.model.sample(PROMPT, {"max_tokens": 30}, 100)[0]
    assert 0 in (done.cached_tokens, later.cached_tokens)  # the first to come finds nothing of the old weights' cache
    assert fake.requests[-1][1]["cache_salt"] == "weights-5"


@pytest.mark.parametrize("timings", [True, False])
async def test_what_is_in_flight_at_an_update_goes_on(start, timings):
    fake, engine = await start(token_delay_s=0.01, timings=timings, max_num_seqs=1)
    never_drawn = 1_000_000  # what is left is drawn anew, from wherever timing has it
    params = SamplingParams(40, seed=4, stop_token_ids=(never_drawn,))
    first = asyncio.create_task(engine.generate(PROMPT, params, request_id="a"))
    await until(lambda: fake.running == 1)
    second = asyncio.create_task(engine.generate(PROMPT, SamplingParams(90), request_id="b"))  # waits there
    await asyncio.sleep(0.1)
    async with engine.renewing(5):
        assert fake.running == 0  # the server has answered for all of it
        fake.model.weights = "5"
        await asyncio.sleep(0.2)
    done, later = await first, await second
    kept = done.weight_versions.index(5)
    asked = [body for path, body in fake.requests if "prompt" in body or "token_ids" in body]
    prompts = [body.get("prompt", body.get("token_ids")) for body in asked]
    assert 0 < kept < 40 and done.weight_versions == (0,) * kept + (5,) * (40 - kept)
    assert [*PROMPT, *done.token_ids[:kept]] in prompts  # what there was is asked for no more
    longer = [body for body, prompt in zip(asked, prompts, strict=True) if len(prompt) == len(PROMPT) + kept]
    bodies = [body.get("sampling_params", body) for body in longer]
    assert bodies[0]["max_tokens"] == 40 - kept and bodies[0]["seed"] != 4
    assert done.finish_reason == "length" and len(done.token_ids) == len(done.logprobs) == 40
    assert 0.2 < done.queue_s < 5 and (done.decode_s < 1.0 or not timings)
    assert later.weight_version == 5 and later.queue_s > 0.2 and len(later.token_ids) == 90
    assert fake.disconnected == 0


def expected_routes(ids):
    """As the fake server makes them up."""
    numbers = np.array(ids[:-1])[:, None, None] + np.arange(2)[None, :, None] + np.arange(2)
    return (numbers % 4).astype(np.uint8)


@pytest.mark.parametrize("timings", [True, False])
async def test_the_experts_of_each_token_come_with_it(start, timings):
    """Both ways of asking, and a reply that new weights cut in two."""
    fake, engine = await start(timings=timings, routes=True, num_experts=4, token_delay_s=0.005)
    done = await engine.generate(PROMPT, SamplingParams(3, seed=1), request_id="a")
    assert np.array_equal(done.routes, expected_routes([*PROMPT, *done.token_ids])) and done.routes.dtype == np.uint8
    asked = asyncio.create_task(engine.generate(PROMPT, SamplingParams(60, seed=1), request_id="b"))
    await until(lambda: fake.running == 1)
    await asyncio.sleep(0.1)
    async with engine.renewing(5):
        fake.model.weights = "5"
    done = await asked
    assert len(set(done.weight_versions)) == 2
    assert np.array_equal(done.routes, expected_routes([*PROMPT, *done.token_ids]))


@pytest.mark.parametrize("routes_start", [True, False])
@pytest.mark.parametrize("timings", [True, False])
async def test_experts_of_known_tokens_are_not_asked_for_again(start, timings, routes_start):
    """Both ways of asking, a server that sends them all the same, and a reply that new weights cut in two."""
    fake, engine = await start(
        timings=timings, routes=True, routes_start=routes_start, num_experts=4, token_delay_s=0.005
    )
    asked = asyncio.create_task(engine.generate(PROMPT, SamplingParams(60, seed=1, routes_from=2), request_id="b"))
    await until(lambda: fake.running == 1)
    await asyncio.sleep(0.1)
    async with engine.renewing(5):
        fake.model.weights = "5"
    done = await asked
    assert len(set(done.weight_versions)) == 2 and done.routes_from == 2
    assert np.array_equal(done.routes, expected_routes([*PROMPT, *done.token_ids])[2:])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda routes: None, "start it with --enable-return-routed-experts"),
        (lambda routes: routes[1:], "it read 10 tokens, and tells the experts of 9"),
        (lambda routes: routes + 9, "experts outside 0 .. 3"),
        (lambda routes: routes.astype(float), "experts outside 0 .. 3"),
        (lambda routes: routes[:0], "it read 10 tokens, and tells the experts of 0"),
        (lambda routes: routes * 0, "the same expert twice for one token: .* another --moe-backend"),
        (
            lambda routes: routes * [[0], [1]],
            "1 of the model's 2 layers have no experts, and cannot be replayed: set tr",
        ),
        (lambda routes: np.array([{}]), "not a completion"),  # a pickle, which is not opened
    ],
)
def test_what_is_no_sound_account_of_experts_is_refused(change, named):
    file = io.BytesIO()
    changed = change(expected_routes(range(11)))
    np.save(file, changed, allow_pickle=True)
    packed = None if changed is None else base64.b64encode(file.getvalue()).decode()
    choice = {"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0, -1.0]}, "finish_reason": "stop"}
    reply = {"choices": [choice | {"routed_experts": packed}]}
    with pytest.raises(BadReplyError, match=named):
        parse_reply(TokenIn.completions, reply, prompt_tokens=9, num_experts=4)
    assert parse_reply(TokenIn.completions, reply).routes is None  # nobody asked


async def test_what_a_server_cannot_cut_short_is_sampled_anew(start):
    fake, engine = await start(token_delay_s=0.01)
    fake.broken_paths |= {"/abort_requests", "/inference/v1/abort_requests"}
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(30), request_id="a"))
    await until(lambda: fake.running == 1)
    await asyncio.sleep(0.1)
    async with engine.renewing(5):
        fake.model.weights = "5"
    done = await asking
    assert done.weight_versions == (5,) * 30 and fake.disconnected == 1
    assert list(done.token_ids) == fake.model.sample(PROMPT, {"max_tokens": 30}, 100)[0]


async def test_an_abort_of_its_own_ends_a_request_that_was_cut_short(start):
    fake, engine = await start(token_delay_s=0.01)
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(300), request_id="a"))
    await until(lambda: fake.running == 1)
    await asyncio.sleep(0.05)
    async with engine.renewing(5):
        pass
    await until(lambda: fake.running == 1)
    await asyncio.sleep(0.05)
    await engine.abort("a")
    done = await asyncio.wait_for(asking, 5)
    assert done.finish_reason == "abort" and {0, 5} == set(done.weight_versions)


async def test_a_request_on_its_way_to_the_server_has_the_new_version(start):
    fake, engine = await start(token_delay_s=0.005)
    fake.arrival_delay_s = 0.05
    await engine.pause()
    engine._control.open_gate()  # as if it had been sent just before
    waiting = asyncio.create_task(engine.generate(PROMPT, SamplingParams(2), request_id="a"))
    await asyncio.sleep(0.2)
    engine.stamp(6)
    await engine.resume()
    assert (await waiting).weight_version == 6


async def test_spans_of_the_server_win(start):
    fake, engine = await start(timings=False, weight_spans=True)
    fake.model.weights = "9"
    assert (await engine.generate(PROMPT, SamplingParams(2), request_id="a")).weight_version == 9


async def test_a_reply_of_two_versions_is_asked_for_again(start):
    """Somebody else has changed the weights of that server, and the spans tell."""
    fake, engine = await start(timings=False, weight_spans=True, token_delay_s=0.005)
    fake.model.weights = "1"
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(20), request_id="a"))
    await until(lambda: fake.running == 1)
    await asyncio.sleep(0.03)
    fake.model.weights = "2"
    done = await asking
    assert done.weight_version == 2
    assert list(done.token_ids) == fake.model.sample(PROMPT, {"max_tokens": 20}, 100)[0]
    assert [path for path, _ in fake.requests] == ["/inference/v1/generate"] * 2


async def test_weights_that_never_rest_are_an_error(start):
    fake, engine = await start(timings=False, weight_spans=True, token_delay_s=0.005)

    async def churn():
        for version in range(10_000):
            fake.model.weights = str(version)
            await asyncio.sleep(0.01)

    churning = asyncio.create_task(churn())
    try:
        with pytest.raises(EngineError, match="its weights change while it replies"):
            await engine.generate(PROMPT, SamplingParams(20), request_id="a")
    finally:
        churning.cancel()


async def test_a_lost_server_fails_what_waits_and_is_taken_back(start, monkeypatch):
    monkeypatch.setattr("swe_rl.engine.server.monitor.REFUSED_S", 0.3)
    monkeypatch.setattr("swe_rl.engine.server.client._REFUSED_PAUSE_S", 0.01)
    fake, engine = await start(token_delay_s=0.01)
    changes = []
    engine.on_change = changes.append
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(500), request_id="a"))
    await until(lambda: fake.running == 1)
    port = fake._port
    await fake.__aexit__()
    with pytest.raises(EngineError, match="engine0"):
        await asyncio.wait_for(asking, 5)
    await until(lambda: changes == [False], 10.0)
    with pytest.raises(EngineError, match="is lost"):
        await engine.generate(PROMPT, SamplingParams(1), request_id="b")
    async with FakeVllm(FakeSettings(), port=port):
        await until(lambda: changes == [False, True], 10.0)
        assert (await engine.generate(PROMPT, SamplingParams(1), request_id="b")).token_ids


async def test_a_hung_request_fails_when_the_server_is_lost(start):
    fake, engine = await start(token_delay_s=0.01)
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(500), request_id="a"))
    await until(lambda: fake.running == 1)
    engine.lose("the network is gone")
    with pytest.raises(EngineError, match="the network is gone"):
        await asyncio.wait_for(asking, 1)


async def test_a_server_restarted_behind_our_back(start):
    fake, engine = await start()
    fake.restart()
    await until(lambda: engine.stats().running == 0)
    await asyncio.sleep(0.1)
    assert (await engine.generate(PROMPT, SamplingParams(1), request_id="a")).token_ids  # it had no weights of ours
    await engine.adopt(4)
    fake.restart()  # now it has: those of step 4 are gone
    await asyncio.sleep(0.2)
    with pytest.raises(EngineError, match="without the weights of step 4"):
        await engine.generate(PROMPT, SamplingParams(1), request_id="a")


async def test_stats_without_metrics(start):
    fake, engine = await start(metrics=False, token_delay_s=0.01)
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(20), request_id="a"))
    await until(lambda: fake.running == 1)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv_used_tokens) == (1, 0, 49)
    assert stats.kv_capacity_tokens == 8 * 4096
    await asking


async def test_stats_of_the_server(start):
    fake, engine = await start(kv_capacity_tokens=1024)
    fake.preemptions_total = 3
    await engine.refresh()
    assert engine.stats().kv_capacity_tokens == 1024 and engine.stats().preemptions_total == 3


async def test_close_ends_what_is_in_flight(start):
    fake, engine = await start(token_delay_s=0.01)
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(500), request_id="a"))
    await until(lambda: fake.running == 1)
    await engine.close()
    with pytest.raises(EngineError, match="is closed"):
        await asking
    with pytest.raises(EngineError, match="is closed"):
        await engine.generate(PROMPT, SamplingParams(1), request_id="a")
    await engine.close()


async def test_before_start():
    engine = HttpEngine(HttpClient("http://127.0.0.1:9"), Needs(None, 9), name="engine0", max_num_seqs=1)
    with pytest.raises(EngineError, match="not started"):
        await engine.generate([1], SamplingParams(1), request_id="a")


async def test_many_at_once(start):
    fake, engine = await start(max_num_seqs=16)
    done = await asyncio.gather(
        *(engine.generate([1 + i % 900, 2, 3], SamplingParams(5, seed=i), request_id=str(i)) for i in range(300))
    )
    assert all(len(one.token_ids) == 5 for one in done) and fake.running == 0


async def test_a_reply_that_would_poison_a_row_is_this_engines_error(start):
    """One beyond the vocabulary, and a log-probability above 0: the next request is served."""
    fake, engine = await start(reply=lambda prompt: [7])
    choice = {"index": 0, "finish_reason": "length", "token_ids": [900_000], "logprobs": {"token_logprobs": [-1.0]}}
    likely = {**choice, "token_ids": [7], "logprobs": {"token_logprobs": [5.0]}}
    for broken, words in ((choice, "its token 0 is 900000, outside 0 .. 999"), (likely, "above 0")):
        fake.fail_next(Fault(status=200, body=json.dumps({"choices": [broken]})))
        with pytest.raises(BadReplyError, match=f"Engine `engine0`: .*{words}"):
            await engine.generate(PROMPT, SamplingParams(1), request_id="a")
    assert (await engine.generate(PROMPT, SamplingParams(1), request_id="b")).token_ids == (7,)
