import asyncio
import json
import socket
from dataclasses import replace

import aiohttp
import pytest

pytest.importorskip("openai")

from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from swe_rl.config.schema import GatewayConfig, RouterConfig
from swe_rl.engine.engine import Completion, ContextOverflowError, EngineError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.completion import turn_seed
from swe_rl.gateway.errors import GatewayConfigError, GatewayError
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.trace import Break, TraceStoreError, whole_prompts
from swe_rl.router.make import make_router

USER = {"role": "user", "content": "Fix the bug."}
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
CALL = {"function": {"name": "bash", "arguments": {"command": "ls"}}}
PINNED = SessionSettings(
    max_turn_tokens=32, max_trajectory_tokens=1500, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=3
)


def client_of(url, **options):
    return AsyncOpenAI(base_url=url, api_key="none", max_retries=0, **options)


async def ask(client, messages=(USER,), **options):
    return await client.chat.completions.create(model="tiny", messages=list(messages), **options)


async def post(url, body, **options):
    async with aiohttp.ClientSession() as http, http.post(f"{url}/chat/completions", json=body, **options) as response:
        return response.status, response.headers, json.loads(await response.read())


def body(**more):
    return {"model": "tiny", "messages": [USER], **more}


async def test_a_plain_call(serve, says, renderer):
    async with serve(ScriptedEngine(says("It is fixed."))) as (_, store, url), client_of(url) as client:
        reply = await ask(client, logprobs=True, extra_body={"program_id": "p"})
        await store.flush()
        (trace,) = store.traces("p")
    choice = reply.choices[0]
    assert (choice.message.content, choice.finish_reason, reply.model) == ("It is fixed.", "stop", "tiny")
    assert trace.delta_ids.tolist() == renderer.start([USER]) and trace.finish_reason == "stop"
    assert reply.usage.prompt_tokens == trace.prompt_tokens
    assert reply.usage.completion_tokens == len(trace.sampled_ids)
    assert [one.logprob for one in choice.logprobs.content] == trace.logprobs.tolist()
    assert "".join(one.token for one in choice.logprobs.content) == "It is fixed.<|im_end|>"


def test_the_synchronous_client(serve, says):
    async def run():
        async with serve(ScriptedEngine(says("ok"))) as (_, _, url):
            return await asyncio.to_thread(talk, url)

    def talk(url):
        with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            models = [one.id for one in client.models.list()]
            return models, client.chat.completions.create(model="tiny", messages=[USER]).choices[0].message.content

    assert asyncio.run(run()) == (["tiny"], "ok")


@pytest.mark.parametrize("include_usage", [True, False])
async def test_a_stream_adds_up_to_the_plain_answer(serve, says, include_usage):
    said = {"role": "assistant", "content": "I look at it. " * 10 + "é中", "tool_calls": [CALL, CALL]}
    async with serve(ScriptedEngine(says(said))) as (_, _, url), client_of(url) as client:
        plain = (await ask(client, tools=TOOLS, logprobs=True)).choices[0]
        options = {"stream_options": {"include_usage": True}} if include_usage else {}
        stream = await ask(client, tools=TOOLS, stream=True, logprobs=True, **options)
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == plain.message.content
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    for index, call in enumerate(plain.message.tool_calls):
        mine = [one for one in calls if one.index == index]
        assert mine[0].function.name == call.function.name
        assert "".join(one.function.arguments or "" for one in mine) == call.function.arguments
    ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert ends == ["tool_calls"] and chunks[-1].usage.completion_tokens > 0 and len(deltas) > 8
    assert bool(chunks[-1].choices) == (not include_usage)
    logprobs = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices and chunk.choices[0].logprobs]
    assert [one.logprob for one in logprobs[0].content] == [one.logprob for one in plain.logprobs.content]


async def test_a_slow_stream_sends_heartbeats(serve, says):
    engine = ScriptedEngine(says("slow"), token_delay_s=0.05)
    async with (
        serve(engine, heartbeat_s=0.02) as (_, _, url),
        aiohttp.ClientSession() as http,
        http.post(f"{url}/chat/completions", json=body(stream=True)) as response,
    ):
        text = await response.text()
    assert '"slow"' in text and text.endswith("data: [DONE]\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[:2] == [{"role": "assistant", "content": ""}, {}]  # no comment: an event of its own
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert response.content_type == "text/event-stream"


async def test_an_error_after_a_heartbeat_is_an_event(serve, says):
    engine = ScriptedEngine(says("slow"), token_delay_s=30)
    async with serve(engine, heartbeat_s=0.02) as (gateway, _, _), aiohttp.ClientSession() as http:
        gateway.open_session("s", PINNED)
        async with http.post(f"{gateway.session_url('s')}/chat/completions", json=body(stream=True)) as response:
            await response.content.readline()
            await gateway.close_session("s")
            text = await response.text()
    assert '"session_closed"' in text and text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("error", [TraceStoreError("disk full"), LookupError("of ours")])
async def test_so_is_one_of_the_store_or_of_ours(serve, says, monkeypatch, error):
    async def fails(trace):
        raise error

    async with serve(ScriptedEngine(says("slow"), token_delay_s=0.05), heartbeat_s=0.02) as (_, store, url):
        monkeypatch.setattr(store, "append_async", fails)
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http,
            http.post(f"{url}/chat/completions", json=body(stream=True)) as response,
        ):
            text = await response.text()
    said = "disk full" if isinstance(error, TraceStoreError) else "The gateway failed: LookupError."
    assert said in text and text.endswith("data: [DONE]\n\n") and "HTTP/1.1" not in text


async def test_tool_calls_over_two_turns_are_one_chain(serve, renderer):
    replies = [
        renderer.reply({"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]}),
        renderer.reply({"role": "assistant", "content": "Done."}),
    ]
    engine = ScriptedEngine(lambda prompt: replies[len(engine.requests) - 1])
    async with serve(engine) as (gateway, store, _):
        gateway.open_session("s/1", replace(PINNED, max_turn_tokens=300))
        messages = [USER]
        async with client_of(gateway.session_url("s/1")) as client:
            first = (await ask(client, messages, tools=TOOLS)).choices[0]
            assert (first.finish_reason, first.message.content) == ("tool_calls", "I look.")
            messages.append(first.message)
            for call in first.message.tool_calls:
                assert json.loads(call.function.arguments) == {"command": "ls"}
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "core.py"})
            second = await ask(client, messages, tools=TOOLS)
        assert second.choices[0].message.content == "Done."
        summary = await gateway.close_session("s/1")
        one, two = store.traces("s/1")
    assert (two.base_turn, two.base_tokens) == (one.turn, one.tokens)
    assert (two.turn, two.chain, two.break_kind) == (1, 0, None)
    assert (summary.num_calls, summary.breaks) == (2, {})
    assert summary.sampled_tokens == sum(map(len, replies)) and set(summary.times_s) == {"queue", "prefill", "decode"}


async def test_reasoning_is_answered_apart(serve, says):
    said = {"role": "assistant", "content": "ls", "reasoning_content": "why"}
    async with serve(ScriptedEngine(says(said))) as (_, _, url):
        message = (await post(url, body()))[2]["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("ls", "why")


async def test_an_opened_session_pins_its_parameters(serve, says):
    engine = ScriptedEngine(says("ok"))
    async with serve(engine) as (gateway, _, url):
        gateway.open_session("s", PINNED)
        greedy = {"temperature": 0, "top_p": 0.1, "top_k": 1, "max_tokens": 300, "seed": 1}
        reply = (await post(gateway.session_url("s"), body(**greedy)))[2]["choices"][0]["message"]
        await post(gateway.session_url("s"), body(messages=[USER, reply, USER], max_tokens=4))
        await post(url, body(**greedy))
    pinned, second, own = (params for _, _, params in engine.requests)
    assert (pinned.temperature, pinned.top_p, pinned.top_k, pinned.max_tokens) == (0.7, 0.9, 5, 32)
    assert (pinned.min_p, own.min_p) == (0.1, 0.0)
    assert (pinned.seed, second.seed, second.max_tokens) == (turn_seed(3, 0), turn_seed(3, 1), 4)
    assert (own.temperature, own.top_p, own.top_k, own.max_tokens, own.seed) == (0, 0.1, 1, 300, 1)


async def test_who_a_call_belongs_to(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, store, url):
        header = {"headers": {"X-Program-Id": "header"}}
        await post(url, body(), **header)
        await post(url, body(program_id="body"), **header)
        await post(gateway.session_url("url"), body(program_id="body"), **header)
        await post(url, body())
        assert sorted(name.split("-")[0] for name in store.sessions()) == ["anonymous", "body", "header", "url"]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": 3}, "messages"),
        ({"guided_json": {"type": "object"}}, "structured_outputs"),
        ({"n": 2}, "n"),
        ({"stop": ["x"]}, "stop"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"program_id": 3}, "program_id"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(serve, says, wrong, param):
    engine = ScriptedEngine(says("ok"))
    async with serve(engine) as (_, store, url):
        status, _, answer = await post(url, body(**wrong))
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert answer["error"]["param"] in (param, param.split(".")[0]) and set(answer["error"]) == {
            "message", "type", "param", "code"
        }  # fmt: skip
        assert engine.requests == [] and store.sessions() == []


async def test_errors_of_the_official_client(serve, says):
    engine = ScriptedEngine(says("ok"))
    async with serve(engine) as (gateway, _, url), client_of(url) as client:
        with pytest.raises(NotFoundError, match="does not exist"):
            await client.chat.completions.create(model="gpt", messages=[USER])
        with pytest.raises(BadRequestError) as overflow:
            await ask(client, [{"role": "user", "content": "a b " * 3000}])
        assert overflow.value.code == "context_length_exceeded"
        died = [EngineError("out of memory")] * 3  # as often as a call is given to an engine
        engine.fail_next(ContextOverflowError("no room"), *died, ZeroDivisionError("bug"))
        with pytest.raises(BadRequestError) as overflow:
            await ask(client)
        assert overflow.value.code == "context_length_exceeded"
        for status in (502, 500):
            with pytest.raises(APIStatusError) as failed:
                await ask(client)
            assert (failed.value.status_code, failed.value.type) == (status, "engine_error")
        gateway._sessions.num_calls = 10**6
        with pytest.raises(APIStatusError) as refused:
            await ask(client)
        assert refused.value.status_code == 503 and refused.value.response.headers["Retry-After"] == "1"
        gateway._sessions.num_calls = 0
        assert (await ask(client)).choices[0].message.content == "ok"


async def test_what_a_dying_engine_left_another_one_does(serve, says):
    """Two engines, the first of which fails: one turn, stored once, with the same seed wherever it is sampled."""
    first, second = ScriptedEngine(says("ok"), name="first"), ScriptedEngine(says("ok"), name="second")
    async with serve(first, second) as (gateway, store, url):
        first.fail_next(EngineError("killed"))
        status, _, answer = await post(url, body())
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "ok")
        asked = [(session, params.seed) for session, _, params in [*first.requests, *second.requests] if session]
        assert len(asked) == 2 and len(set(asked)) == 1  # a probe of the first is of no session
        [session] = store.sessions()
        assert len(store.traces(session)) == 1
        assert gateway.router_state()["router"] == "default"


async def test_malformed_bodies_and_paths(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (_, _, url), aiohttp.ClientSession() as http:
        for data in (b"", b"{", b"[]", b'{"messages": "\xff', b"[" * 5000):
            async with http.post(f"{url}/chat/completions", data=data) as response:
                assert response.status == 400 and "message" in (await response.json())["error"]
        # How deep JSON can be written depends on the Python; never is it a fault of the gateway.
        for levels, statuses in ((100, (200,)), (1000, (200, 400))):
            function = b'{"name": "x", "arguments": %s1%s}' % (b'{"a":' * levels, b"}" * levels)
            message = b'{"role": "assistant", "tool_calls": [{"function": %s}]}' % function
            async with http.post(f"{url}/chat/completions", data=b'{"messages": [%s]}' % message) as response:
                assert response.status in statuses
        assert (await post(url, body(messages=[{**USER, "content": "x" * 2**20}])))[0] == 413
        async with http.get(f"{url}/nothing") as response:
            assert response.status == 404 and (await response.json())["error"]["code"] == "not_found"
        async with http.get(f"{url}/chat/completions") as response:
            assert response.status == 405


async def running(engine):
    """Returns once the engine has a request in flight."""
    for _ in range(1000):
        if engine.stats().running:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("no request reached the engine")


async def test_a_fault_of_the_gateway_is_a_500_in_openais_shape(serve, says, renderer, monkeypatch):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, url):
        monkeypatch.setattr(renderer, "decode", lambda ids: 1 / 0)
        status, _, answer = await post(url, body())
    assert (status, answer["error"]["type"]) == (500, "server_error")


async def test_a_long_prompt_is_rendered_off_the_loop(serve, says, renderer):
    async with serve(ScriptedEngine(says("ok"), max_model_len=10**6), max_model_len=10**6) as (gateway, store, _):
        gateway.open_session("s", replace(PINNED, max_trajectory_tokens=10**6))
        long = [{**USER, "content": "a b " * 20000}]
        for _ in range(3):
            answer = (await post(gateway.session_url("s"), body(messages=long)))[2]
            long += [answer["choices"][0]["message"], USER]
        assert (await gateway.close_session("s")).breaks == {}
        assert store.traces("s")[0].delta_ids.tolist() == renderer.start(long[:1])


async def test_a_full_trajectory_is_a_context_overflow(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, store, _):
        gateway.open_session("s", SessionSettings(max_turn_tokens=32, max_trajectory_tokens=20))
        status, _, answer = await post(gateway.session_url("s"), body(messages=[{**USER, "content": "a b " * 50}]))
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "rollout.max_trajectory_tokens" in answer["error"]["message"]
        assert (await gateway.close_session("s")).num_calls == 0 and store.sessions() == []


async def test_a_first_prompt_beyond_its_limit_is_a_context_overflow(serve, says, renderer):
    """Later turns have `max_trajectory_tokens`; another conversation of the same agent is no first prompt."""
    long = {**USER, "content": "a b " * 50}
    limit = len(renderer.start([USER]))
    async with serve(ScriptedEngine(says("ok"))) as (gateway, store, _):
        gateway.open_session("s", replace(PINNED, max_prompt_tokens=limit))
        status, _, answer = await post(gateway.session_url("s"), body(messages=[long]))
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert f"context length is {limit} tokens." in answer["error"]["message"]
        assert "rollout.max_prompt_tokens" in answer["error"]["message"]
        status, _, answer = await post(gateway.session_url("s"), body(messages=[USER]))
        assert status == 200
        later = [USER, answer["choices"][0]["message"], long]
        assert (await post(gateway.session_url("s"), body(messages=later)))[0] == 200
        assert (await post(gateway.session_url("s"), body(messages=[long])))[0] == 200
        assert (await gateway.close_session("s")).num_calls == 3


async def test_a_session_has_as_many_replies_as_it_may(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, store, _):
        gateway.open_session("s", replace(PINNED, max_calls=2))
        for number in range(2):
            assert (await post(gateway.session_url("s"), body(messages=[{**USER, "content": str(number)}])))[0] == 200
        status, _, answer = await post(gateway.session_url("s"), body(messages=[USER]))
        assert (status, answer["error"]["code"]) == (400, "call_limit_reached")
        assert "2 replies (rollout.max_turns)" in answer["error"]["message"]
        summary = await gateway.close_session("s")
        assert summary.had_all_calls and not summary.overflowed and summary.num_calls == len(store.traces("s")) == 2


async def test_after_a_restart_no_prompt_is_the_first(serve, says, renderer):
    long = {**USER, "content": "a b " * 50}
    async with serve(ScriptedEngine(says("ok"))) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        assert (await post(gateway.session_url("s"), body(messages=[USER])))[0] == 200
        await gateway.close_session("s")
        gateway.open_session("s", replace(PINNED, max_prompt_tokens=len(renderer.start([USER]))))
        assert (await post(gateway.session_url("s"), body(messages=[long])))[0] == 200


async def test_a_trajectory_never_passes_its_limit(serve):
    engine = ScriptedEngine(lambda prompt: [300] * 1000)
    async with serve(engine) as (gateway, store, _):
        gateway.open_session("s", SessionSettings(max_turn_tokens=1000, max_trajectory_tokens=64))
        answer = (await post(gateway.session_url("s"), body()))[2]
        await gateway.close_session("s")
        (trace,) = store.traces("s")
    assert trace.tokens == 64 == answer["usage"]["total_tokens"]
    assert trace.finish_reason == "length" == answer["choices"][0]["finish_reason"]


async def test_a_client_that_goes_away_aborts_its_request(serve, says):
    engine = ScriptedEngine(says("never"), token_delay_s=30)
    async with serve(engine) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        for stream in (False, True):
            with pytest.raises(asyncio.TimeoutError):
                await post(gateway.session_url("s"), body(stream=stream), timeout=aiohttp.ClientTimeout(total=0.2))
            for _ in range(100):
                if len(engine.cancelled) == 1 + stream:
                    break
                await asyncio.sleep(0.01)
            assert len(engine.cancelled) == 1 + stream
        engine.token_delay_s = 0
        assert (await post(gateway.session_url("s"), body()))[0] == 200
        summary = await gateway.close_session("s")
        assert (summary.num_calls, summary.breaks, len(store.traces("s"))) == (1, {}, 1)


async def test_a_client_retry_is_a_duplicate(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        for _ in range(2):
            await post(gateway.session_url("s"), body())
        summary = await gateway.close_session("s")
        assert summary.breaks == {Break.duplicate: 1}
        assert (summary.superseded_replies, summary.superseded_tokens) == (1, summary.sampled_tokens // 2)
        assert [(one.chain, one.break_kind) for one in store.traces("s")] == [(0, None), (1, Break.duplicate)]


async def test_replies_that_a_limit_cut_are_counted_and_the_last_is_known(serve, says):
    async with serve(ScriptedEngine(says("a reply of many words"))) as (gateway, _, _):
        for name, limits, expected in (
            ("a", (2, 32), (1, False)),
            ("b", (32, 2, 2), (2, True)),
            ("c", (32,), (0, False)),
        ):
            gateway.open_session(name, PINNED)
            for place, limit in enumerate(limits):
                await post(
                    gateway.session_url(name), body(messages=[{**USER, "content": str(place)}], max_tokens=limit)
                )
            summary = await gateway.close_session(name)
            assert (summary.cut_replies, summary.cut_last) == expected


async def test_calls_at_the_same_time(serve, says):
    engine = ScriptedEngine(says("ok"), token_delay_s=0.001)
    async with serve(engine) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        asked = [body(messages=[{**USER, "content": f"{i % 4}"}]) for i in range(12)]
        answers = await asyncio.gather(*(post(gateway.session_url("s"), one) for one in asked))
        assert [status for status, _, _ in answers] == [200] * 12
        summary = await gateway.close_session("s")
        traces = store.traces("s")
    assert [one.turn for one in traces] == list(range(12)) == sorted(one.chain for one in traces)
    assert sum(summary.breaks.values()) == 11 and len({ids.tobytes() for ids in whole_prompts(traces)}) == 4


async def test_an_aborted_request_may_be_sent_again(serve, says):
    engine = ScriptedEngine(says("ok"), token_delay_s=30)
    async with serve(engine) as (_, store, url):
        call = asyncio.create_task(post(url, body(program_id="s")))
        await running(engine)
        await engine.close()
        status, headers, _ = await call
        assert (status, headers["Retry-After"], store.sessions()) == (503, "1", [])


@pytest.mark.parametrize("logprobs", [(), (float("nan"),), (float("-inf"),)])
async def test_what_is_no_completion_is_an_engine_error(serve, says, logprobs):
    class Broken(ScriptedEngine):
        async def generate(self, *args, **kwargs):
            return Completion((5,), logprobs, "stop", 0)

    async with serve(Broken(says(""))) as (_, store, url):
        assert (await post(url, body()))[0] == 502 and store.sessions() == []


async def test_a_closed_session_is_over(serve, says):
    engine = ScriptedEngine(says("ok"), token_delay_s=30)
    async with serve(engine) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        with pytest.raises(GatewayError, match="already open"):
            gateway.open_session("s", PINNED)
        url = gateway.session_url("s")
        call = asyncio.create_task(post(url, body()))
        await running(engine)
        summary = await gateway.close_session("s")
        assert summary.num_calls == 0 and len(engine.cancelled) == 1
        assert (await call)[0] == 410 == (await post(url, body()))[0]
        with pytest.raises(GatewayError, match="not open"):
            await gateway.close_session("s")
        engine.token_delay_s = 0
        for turn in range(2):  # an id that is used again goes on counting
            gateway.open_session("s", PINNED)
            await post(gateway.session_url("s"), body())
            await gateway.close_session("s")
            assert [one.turn for one in store.traces("s")] == list(range(turn + 1))


async def test_a_session_stays_on_its_engine(serve, says):
    engines = [ScriptedEngine(says("ok"), name=f"e{i}") for i in range(2)]
    async with serve(*engines) as (gateway, _, _):
        for name in ("a", "b", "a", "b", "a"):
            assert (await post(gateway.session_url(name), body()))[0] == 200
    assert [{session for session, _, _ in engine.requests} for engine in engines] == [{"a"}, {"b"}]
    assert [len(engine.requests) for engine in engines] == [3, 2]


async def test_too_many_calls_are_turned_away(serve, says):
    engine = ScriptedEngine(says("ok"), token_delay_s=0.05)
    async with serve(engine, config=GatewayConfig(max_calls=1)) as (_, _, url):
        answers = await asyncio.gather(*(post(url, body()) for _ in range(3)))
        assert sorted(status for status, _, _ in answers) == [200, 503, 503]
        assert [headers.get("Retry-After") for status, headers, _ in answers if status == 503] == ["1", "1"]
        assert (await post(url, body()))[0] == 200  # the place is free again


async def test_metrics_and_health(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, store, url), aiohttp.ClientSession() as http:
        await post(url, body(program_id="s"))
        await post(url, body(program_id="s"))
        await post(url, body(n=2))
        await store.flush()
        root = url.removesuffix("/v1")
        async with http.get(f"{root}/metrics") as response:
            assert response.status == 200
            lines = dict(line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line[0] != "#")
        async with http.get(f"{root}/health") as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})
    assert float(lines['swe_rl_gateway_requests_total{status="200"}']) == 2
    assert float(lines['swe_rl_gateway_requests_total{status="400"}']) == 1
    assert float(lines['swe_rl_gateway_breaks_total{kind="duplicate"}']) == 1
    assert float(lines["swe_rl_gateway_sessions_open"]) == 1 and float(lines["swe_rl_gateway_calls_in_flight"]) == 0
    assert float(lines["swe_rl_store_traces_total"]) == 2
    assert float(lines['swe_rl_engine_kv_capacity_tokens{engine="scripted"}']) == 4096


async def test_a_token_is_asked_for(serve, says):
    async with serve(ScriptedEngine(says("ok")), token="secret") as (_, _, url), aiohttp.ClientSession() as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            assert (await post(url, body(), headers=headers))[0] == 401
        assert (await post(url, body(), headers={"Authorization": "Bearer secret"}))[0] == 200
        async with http.get(url.replace("/v1", "/metrics")) as response:
            assert response.status == 401
        async with http.get(url.replace("/v1", "/health")) as response:
            assert response.status == 200


async def test_beyond_loopback_a_token_is_required(serve, says):
    with pytest.raises(GatewayConfigError, match=r"gateway\.host=0\.0\.0\.0.*token"):
        async with serve(ScriptedEngine(says("ok")), config=GatewayConfig(host="0.0.0.0")):
            pass
    config = GatewayConfig(host="0.0.0.0")
    async with serve(ScriptedEngine(says("ok")), config=config, token="secret") as (_, _, url):
        assert socket.gethostname() in url


async def test_a_port_in_use_is_named(renderer, says, serve):
    engine = ScriptedEngine(says("ok"))
    async with serve(engine) as (_, store, url):
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        router = make_router(RouterConfig(), [engine])
        config = GatewayConfig(port=port)
        second = Gateway([engine], router, renderer, store, model_name="tiny", config=config, max_model_len=9)
        with pytest.raises(GatewayConfigError, match=rf"gateway\.port={port}: the port is in use"):
            await second.start()
        with pytest.raises(GatewayError, match="before it is started"):
            second.session_url("s")
        await second.close()


async def test_closing_ends_calls_in_flight_and_frees_the_port(serve, says):
    engine = ScriptedEngine(says("ok"), token_delay_s=30)
    async with serve(engine) as (gateway, _, url):
        call = asyncio.create_task(post(url, body()))
        await running(engine)
        await asyncio.wait_for(gateway.close(), 5)
        await asyncio.wait({call}, timeout=5)
        assert len(engine.cancelled) == 1
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(url, body())
        call.exception() or call.result()


async def test_a_store_that_failed_is_not_passed_over(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        await post(gateway.session_url("s"), body())
        await store.flush()
        (trace,) = store.traces("s")
        store.append(trace)  # the same turn again: the writer fails
        with pytest.raises(TraceStoreError):
            await store.flush()
        status, _, answer = await post(gateway.session_url("s"), body())
        assert (status, answer["error"]["type"]) == (500, "trace_store_error")
        with pytest.raises(TraceStoreError):
            await gateway.close_session("s")
        with pytest.raises(TraceStoreError):
            store.close()
