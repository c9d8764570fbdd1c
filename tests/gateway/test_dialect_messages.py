"""Anthropic's dialect, by its own client, against a gateway with a scripted engine."""

import asyncio
import json

import aiohttp
import pytest

from swe_rl.engine.engine import EngineError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.trace import Break

USER = {"role": "user", "content": "Fix the bug."}
TOOLS = [{"name": "bash", "description": "Runs it.", "input_schema": {"type": "object", "properties": {}}}]
CALL = {"function": {"name": "bash", "arguments": {"command": "ls \u00e9", "n": 1.0}}}
SAID = {
    "role": "assistant",
    "content": "I look at it.",
    "reasoning_content": "It is\nhard. " * 9,
    "tool_calls": [CALL] * 2,
}
PINNED = SessionSettings(max_turn_tokens=400, max_trajectory_tokens=3000)


@pytest.fixture(scope="module", autouse=True)
def client_library():
    """The import takes seconds, so it is done by the process that runs these tests, and by none that collects them."""
    pytest.importorskip("anthropic")


def client_of(url, **options):
    import anthropic

    return anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0, **options)


async def ask(client, messages=(USER,), **options):
    return await client.messages.create(**{"model": "tiny", "max_tokens": 300, "messages": list(messages)} | options)


def echoed(reply):
    return {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}


def results(reply, *more):
    calls = [block for block in reply.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "a.py\n"} for call in calls]
    return {"role": "user", "content": [*results, *more]}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_with_thoughts_and_calls(serve, says, renderer, stream):
    async with serve(ScriptedEngine(says(SAID))) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s")) as client:
            options = {
                "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}]
            }
            options |= {"tools": TOOLS, "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {}}
            if stream:
                async with client.messages.stream(model="tiny", max_tokens=300, messages=[USER], **options) as streamed:
                    events = [event.type async for event in streamed]
                    reply = await streamed.get_final_message()
                assert events[0] == "message_start" and events[-1] == "message_stop" and events.count("thinking") > 1
            else:
                reply = await ask(client, **options)
        await store.flush()
        (trace,) = store.traces("s")
    thought, text, *calls = reply.content
    assert (thought.type, thought.thinking) == ("thinking", SAID["reasoning_content"])
    assert thought.signature  # else some clients take it for words of another service, and rewrite it
    assert (text.type, text.text) == ("text", "I look at it.")
    assert [(call.type, call.name, call.input) for call in calls] == [
        ("tool_use", "bash", CALL["function"]["arguments"])
    ] * 2
    assert len({call.id for call in calls}) == 2
    assert (reply.stop_reason, reply.role, reply.model) == ("tool_use", "assistant", "tiny")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (trace.prompt_tokens, len(trace.sampled_ids))
    function = {"name": "bash", "description": "Runs it.", "parameters": TOOLS[0]["input_schema"]}
    system = {"role": "system", "content": "You are an agent."}
    assert trace.delta_ids.tolist() == renderer.start([system, USER], [{"type": "function", "function": function}])


async def test_a_conversation_stays_in_its_chain(serve, says):
    """Whatever of thoughts, ids and numbers a client leaves out or writes in its own way."""
    async with serve(ScriptedEngine(says(SAID))) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s")) as client:
            messages = [USER]
            for turn in range(3):
                reply = await ask(client, messages, tools=TOOLS)
                said = echoed(reply)
                if turn == 1:
                    said["content"] = [block for block in said["content"] if block["type"] != "thinking"]
                    said["content"][-1] = {
                        **said["content"][-1],
                        "id": "other",
                        "input": {"n": 1, "command": "ls \u00e9"},
                    }
                messages += [said, results(reply, {"type": "text", "text": "Go on."})]
        summary = await gateway.close_session("s")
        traces = store.traces("s")
    assert (summary.num_calls, summary.breaks) == (3, {})
    assert [(trace.chain, trace.base_turn) for trace in traces] == [(0, None), (0, 0), (0, 1)]


async def test_the_system_may_speak_between_messages(serve, says, renderer):
    """As Claude Code has it. What it said stays in its place, and so in the chain."""
    told = {"role": "system", "content": [{"type": "text", "text": "Be quick.", "cache_control": {}}]}
    async with serve(ScriptedEngine(says(SAID))) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s")) as client:
            reply = await ask(client, [USER, told], tools=TOOLS)
            later = {"role": "system", "content": "Be quicker."}
            await ask(client, [USER, told, echoed(reply), results(reply), later], tools=TOOLS)
        assert (await gateway.close_session("s")).breaks == {}
        first, second = store.traces("s")
    assert "Be quick." in renderer.decode(first.delta_ids) and "Be quicker." in renderer.decode(second.delta_ids)


async def test_what_a_client_rewrote_is_a_named_break(serve, says):
    async with serve(ScriptedEngine(says(SAID))) as (gateway, _, _):
        gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s")) as client:
            reply = await ask(client, tools=TOOLS)
            said = echoed(reply)
            said["content"][1]["text"] = "Something else."
            await ask(client, [USER, said, results(reply)], tools=TOOLS)
            await ask(client, [USER, echoed(reply), results(reply)], tools=TOOLS, system="Another task.")
        breaks = (await gateway.close_session("s")).breaks
    assert breaks == {Break.prefix_changed: 2}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"stop_sequences": ["x"]}, "stop_sequences"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "bash"}}, "tool_choice"),
        ({"tools": {"name": "bash"}}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": 5}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config"),
    ],
)  # fmt: skip
async def test_what_cannot_be_honoured_is_refused_in_its_own_form(serve, says, more, param):
    import anthropic

    async with serve(ScriptedEngine(says("ok"))) as (_, store, url), client_of(url) as client:
        with pytest.raises(anthropic.BadRequestError) as refused:
            await ask(client, extra_body=more)
        assert store.sessions() == []
    error = refused.value.body
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert param in error["error"]["message"] and set(error["error"]) == {"type", "message"}


async def test_deeply_nested_input_is_refused(serve, says):
    deep = '{"a":' * 200 + "1" + "}" * 200
    block = '{"type": "tool_use", "id": "c", "name": "n", "input": %s}'
    messages = (
        '[{"role": "user", "content": "x"}, {"role": "assistant", "content": [%s]}, {"role": "user", "content": ""}]'
    )
    async with serve(ScriptedEngine(says("ok"))) as (_, _, url), aiohttp.ClientSession() as http:
        for nested, status in (
            (deep, 200),
            (deep.replace('{"a":' * 200, '{"a":' * 990).replace("}" * 200, "}" * 990), 400),
        ):
            raw = '{"messages": %s}' % (messages % (block % nested))
            async with http.post(f"{url}/messages", data=raw) as response:
                assert response.status == status, await response.text()
                assert status == 200 or (await response.json())["type"] == "error"


async def test_errors_have_their_status_and_kind(serve, says):
    import anthropic

    engine = ScriptedEngine(says("ok"))
    async with serve(engine, token="key", max_model_len=64) as (gateway, _, url):
        async with client_of(url) as client:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await ask(client)
            assert refused.value.body["error"]["type"] == "authentication_error"
        for key in ({"api_key": "key"}, {"api_key": None, "auth_token": "key"}):
            async with anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), max_retries=0, **key) as client:
                assert (await ask(client)).content[0].text == "ok"
        async with anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), max_retries=0, api_key="key") as client:
            with pytest.raises(anthropic.NotFoundError) as refused:
                await ask(client, model="other")
            assert refused.value.body["error"]["type"] == "not_found_error"
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
                await ask(client, [{"role": "user", "content": "a b c d " * 100}])
            with pytest.raises(anthropic.RequestTooLargeError) as refused:
                await ask(client, [{"role": "user", "content": "a" * (2 << 20)}])
            assert refused.value.body["error"]["type"] == "request_too_large"
            engine.fail_next(*[EngineError("gone")] * 3)
            with pytest.raises(anthropic.APIStatusError) as failed:
                await ask(client)
            assert (failed.value.status_code, failed.value.body["error"]["type"]) == (502, "api_error")
            gateway._sessions.num_calls = 10**6
            with pytest.raises(anthropic.APIStatusError) as failed:
                await ask(client)
            assert (failed.value.status_code, failed.value.body["error"]["type"]) == (503, "overloaded_error")
            assert failed.value.response.headers["Retry-After"] == "1"


async def test_a_stream_that_fails_late_ends_with_an_error(serve, says):
    import anthropic

    engine = ScriptedEngine(says("never"), token_delay_s=30)
    async with serve(engine, heartbeat_s=0.05) as (gateway, _, _):
        gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s")) as client:

            async def read():
                async with client.messages.stream(model="tiny", max_tokens=9, messages=[USER]) as stream:
                    async for _ in stream:
                        pass

            reading = asyncio.create_task(read())
            for _ in range(500):
                if engine.requests:
                    break
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # heartbeats were sent
            await gateway.close_session("s")
            with pytest.raises(anthropic.APIStatusError, match="closed"):
                await asyncio.wait_for(reading, 10)


async def test_tokens_are_counted_and_nothing_is_sampled(serve, says):
    import anthropic

    engine = ScriptedEngine(says(SAID))
    async with serve(engine, clients_begin=False) as (gateway, store, url):
        gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s")) as client:
            options = {"model": "tiny", "tools": TOOLS, "system": "You are an agent."}
            first = await client.messages.count_tokens(messages=[USER], **options)
            reply = await ask(client, **options)
            assert first.input_tokens == reply.usage.input_tokens
            messages = [USER, echoed(reply), results(reply)]
            counted = await client.messages.count_tokens(messages=messages, **options)
            assert len(engine.requests) == 1
            await ask(client, messages, **options)
        async with client_of(url) as client:
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.count_tokens(messages=messages, **options)
        summary = await gateway.close_session("s")
        traces = store.traces("s")
    assert (summary.num_calls, summary.breaks) == (2, {})
    assert counted.input_tokens == traces[1].prompt_tokens > traces[0].tokens


async def test_any_number_comes_through_as_it_was_written(serve, tokenizer):
    """Also one that no JSON library of ours holds; what is no number is no call."""
    written = ['{"n": 123456789012345678901234567890}', '{"n": 1e999}']
    text = "".join(f'<tool_call>\n{{"name": "bash", "arguments": {one}}}\n</tool_call>' for one in written)
    ids = tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
    async with serve(ScriptedEngine(lambda prompt_ids: ids)) as (_, _, url), aiohttp.ClientSession() as http:
        body = {"messages": [USER], "tools": TOOLS}
        async with http.post(f"{url}/messages", json=body) as response:
            said, call = json.loads(await response.read())["content"]
    assert call["input"] == json.loads(written[0]) and "1e999" in said["text"]


async def test_the_client_s_own_tool_loop_is_one_chain(serve, says):
    """It first asks that the service keeps the conversation. Once this is refused in the service's words, it sends the
    whole conversation."""
    tools = pytest.importorskip("anthropic", minversion="2.13").beta_async_tool

    @tools
    async def bash(command: str) -> str:
        """Runs it."""
        return f"ran {command}"

    call = {"function": {"name": "bash", "arguments": {"command": "ls"}}}
    answers = iter([{"role": "assistant", "content": "", "tool_calls": [call]}, "It is fixed."])
    async with serve(ScriptedEngine(lambda prompt_ids: says(next(answers))(prompt_ids))) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s")) as client:
            loop = client.beta.messages.tool_runner(model="tiny", max_tokens=300, tools=[bash], messages=[USER])
            said = [message.content[-1] async for message in loop]
        assert [block.type for block in said] == ["tool_use", "text"]
        assert (await gateway.close_session("s")).breaks == {}
        assert [trace.chain for trace in store.traces("s")] == [0, 0]
