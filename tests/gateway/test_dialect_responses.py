"""OpenAI's Responses, by its own client, against a gateway with a scripted engine."""

import json

import aiohttp
import pytest

pytest.importorskip("openai")

from openai import APIError, AsyncOpenAI, BadRequestError, NotFoundError

from swe_rl.engine.engine import EngineError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.dialects.history import Histories
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.trace import Break

TOOLS = [{"type": "function", "name": "bash", "parameters": {"type": "object"}, "strict": True}]
CALL = {"function": {"name": "bash", "arguments": {"command": "ls"}}}
SAID = {"role": "assistant", "content": "I look at it.", "reasoning_content": "Hard. " * 20, "tool_calls": [CALL] * 2}
PINNED = SessionSettings(max_turn_tokens=400, max_trajectory_tokens=3000)


def client_of(url):
    return AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


async def ask(client, items="Fix the bug.", **options):
    return await client.responses.create(model="tiny", input=items, **options)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_with_reasoning_and_calls(serve, says, renderer, stream):
    async with serve(ScriptedEngine(says(SAID))) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s")) as client:
            options = {"tools": TOOLS, "instructions": "You are an agent.", "include": ["reasoning.encrypted_content"]}
            if stream:
                async with client.responses.stream(model="tiny", input="Fix the bug.", **options) as streamed:
                    events = [event async for event in streamed]
                    reply = await streamed.get_final_response()
                assert [event.sequence_number for event in events] == list(range(len(events)))
                kinds = [event.type for event in events]
                assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
                assert kinds.count("response.reasoning_text.delta") > 1
                assert kinds.count("response.output_item.done") == 4
            else:
                reply = await ask(client, **options)
        await store.flush()
        (trace,) = store.traces("s")
    reasoning, text, *calls = reply.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", SAID["reasoning_content"])
    assert reply.output_text == text.content[0].text == "I look at it."
    assert [(call.type, call.name, call.arguments) for call in calls] == [
        ("function_call", "bash", '{"command": "ls"}')
    ] * 2
    assert len({call.call_id for call in calls}) == 2
    assert (reply.status, reply.instructions, reply.model) == ("completed", "You are an agent.", "tiny")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (trace.prompt_tokens, len(trace.sampled_ids))
    messages = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Fix the bug."}]
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
    assert trace.delta_ids.tolist() == renderer.start(messages, [tool])


@pytest.mark.parametrize("opened", [True, False], ids=["in a session", "in none"])
async def test_a_client_may_name_items_instead_of_sending_them(serve, says, opened):
    """As the AI SDK does: each item of a reply by its id."""
    answers = iter([SAID, "Done."])
    engine = ScriptedEngine(lambda prompt_ids: says(next(answers))(prompt_ids))
    async with serve(engine) as (gateway, store, url):
        if opened:
            gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s") if opened else url) as client:
            reply = await ask(client, tools=TOOLS)
            items = [{"role": "user", "content": "Fix the bug."}]
            items += [{"type": "item_reference", "id": item.id} for item in reply.output]
            called = [item for item in reply.output if item.type == "function_call"]
            assert len(items) == 5 and len({item.id for item in reply.output}) == 4
            items += [{"type": "function_call_output", "call_id": call.call_id, "output": "a.py"} for call in called]
            assert (await ask(client, items, tools=TOOLS)).output_text == "Done."
            await client.responses.delete(reply.id)
            with pytest.raises(BadRequestError, match=r"Item with id .* not found") as refused:
                await ask(client, items, tools=TOOLS)
            assert (refused.value.code, refused.value.param) == ("item_not_found", "input[1]")
        (session,) = store.sessions() if not opened else ["s"]
        await store.flush()
        assert [(trace.chain, trace.break_kind) for trace in store.traces(session)] == [(0, None), (0, None)]


async def test_outputs_may_stand_between_the_calls_of_a_reply(serve, says):
    """As some clients write their history. A call of another reply begins a reply of its own."""
    answers = iter([SAID, {"role": "assistant", "content": "", "tool_calls": [CALL]}, "Done."])
    engine = ScriptedEngine(lambda prompt_ids: says(next(answers))(prompt_ids))
    async with serve(engine) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        items = [{"role": "user", "content": "Fix the bug."}]
        async with client_of(gateway.session_url("s")) as client:
            for _ in range(2):
                reply = await ask(client, items, tools=TOOLS)
                for item in reply.output:
                    items.append(item.model_dump(exclude_none=True))
                    if item.type == "function_call":
                        items.append({"type": "function_call_output", "call_id": item.call_id, "output": "a.py"})
            assert (await ask(client, items, tools=TOOLS)).output_text == "Done."
        assert (await gateway.close_session("s")).breaks == {}
        assert [trace.chain for trace in store.traces("s")] == [0, 0, 0]


FREE = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"type": "text"}}
NAMED = {"type": "namespace", "name": "agents", "tools": [{**TOOLS[0], "name": "spawn"}, FREE]}


@pytest.mark.parametrize("stream", [False, True])
async def test_free_text_and_namespaces_are_functions_to_the_model_and_themselves_to_the_client(serve, says, stream):
    """As Codex offers its tools; what it sends back extends the chain."""
    called = [("apply_patch", {"input": "*** é\n"}), ("agents.spawn", {"a": 1}), ("agents.apply_patch", {"input": "x"})]
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in called]
    answers = iter([{"role": "assistant", "content": "", "tool_calls": calls}, "Done."])
    engine = ScriptedEngine(lambda prompt_ids: says(next(answers))(prompt_ids))
    async with serve(engine) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        items = [{"role": "user", "content": "Fix the bug."}]
        async with client_of(gateway.session_url("s")) as client:
            reply = await ask(client, items, tools=[FREE, NAMED], stream=stream)
            if stream:
                events = [event async for event in reply]
                kinds = [event.type for event in events]
                assert kinds.count("response.custom_tool_call_input.done") == 2
                assert kinds.count("response.function_call_arguments.done") == 1
                assert "".join(event.delta for event in events if "input.delta" in event.type) == "*** é\nx"
                reply = events[-1].response
            assert [(call.type, getattr(call, "namespace", None), call.name) for call in reply.output] == [
                ("custom_tool_call", None, "apply_patch"),
                ("function_call", "agents", "spawn"),
                ("custom_tool_call", "agents", "apply_patch"),
            ]
            assert (reply.output[0].input, reply.output[1].arguments) == ("*** é\n", '{"a": 1}')
            for item in reply.output:
                items.append(item.model_dump(exclude_none=True))
                kind = "custom_tool_call_output" if "custom" in item.type else "function_call_output"
                items.append({"type": kind, "call_id": item.call_id, "output": "ok"})
            assert (await ask(client, items, tools=[FREE, NAMED])).output_text == "Done."
        assert (await gateway.close_session("s")).breaks == {}
        assert [trace.chain for trace in store.traces("s")] == [0, 0]


@pytest.mark.parametrize(("written", "shown"), [({"input": 3}, '{"input": 3}'), ({"a": "b"}, '{"a": "b"}')])
async def test_a_call_that_is_no_free_text_is_shown_as_it_was_written(serve, says, written, shown):
    call = {"function": {"name": "apply_patch", "arguments": written}}
    engine = ScriptedEngine(says({"role": "assistant", "content": "", "tool_calls": [call]}))
    async with serve(engine) as (_, _, url), client_of(url) as client:
        assert (await ask(client, tools=[FREE])).output[0].input == shown


async def test_a_reply_that_is_cut_off_is_incomplete(serve, says):
    async with serve(ScriptedEngine(says("a b c d"))) as (_, _, url), client_of(url) as client:
        reply = await ask(client, max_output_tokens=2)
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_a_client_without_a_name_goes_on_from_a_reply(serve, says):
    """Its session is that of the reply; without `store` there is nothing to go on from."""
    engine = ScriptedEngine(says("ok"))
    async with serve(engine) as (gateway, store, url), client_of(url) as client:
        engine.fail_next(*[EngineError("gone")] * 3)
        with pytest.raises(APIError):
            await ask(client)
        assert gateway.num_sessions == 0
        first = await ask(client, instructions="You are an agent.")
        second = await ask(client, "more", instructions="You are an agent.", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        await ask(client, "another way", instructions="You are an agent.", previous_response_id=first.id)
        await ask(client, "other instructions", previous_response_id=second.id)
        await store.flush()
        (session,) = store.sessions()
        kinds = [(trace.chain, trace.break_kind) for trace in store.traces(session)]
        lost = await ask(client, store=False)
        for previous in (lost.id, "resp_none-0", "x", f"{first.id}9"):
            with pytest.raises(BadRequestError, match="not found") as refused:
                await ask(client, "more", previous_response_id=previous)
            assert refused.value.code == "previous_response_not_found"
        assert gateway.num_sessions == 1
    assert kinds == [(0, None), (0, None), (1, Break.branch), (2, Break.prefix_changed)]


async def test_a_reply_is_had_again_and_removed(serve, says):
    async with serve(ScriptedEngine(says(SAID))) as (gateway, _, url):
        gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s")) as client, client_of(url) as other:
            first = await ask(client, tools=TOOLS)
            second = await ask(client, "more", tools=TOOLS, previous_response_id=first.id)
            assert await client.responses.retrieve(first.id) == first
            with pytest.raises(NotFoundError):
                await other.responses.retrieve(first.id)
            await client.responses.delete(first.id)
            for asked in (client.responses.retrieve, client.responses.delete):
                with pytest.raises(NotFoundError, match="not found"):
                    await asked(first.id)
            with pytest.raises(BadRequestError, match="not found"):
                await ask(client, "on", previous_response_id=second.id)
            assert await client.responses.retrieve(second.id) == second
            unkept = await ask(other, store=False)
            with pytest.raises(NotFoundError):
                await other.responses.retrieve(unkept.id)
            alone = await ask(other)
            assert await other.responses.retrieve(alone.id) == alone, "by the session that its id names"
        await gateway.close_session("s")


async def test_a_reply_of_an_opened_session_is_its_own(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, url):
        gateway.open_session("s", PINNED)
        async with client_of(gateway.session_url("s")) as client, client_of(url) as other:
            first = await ask(client)
            with pytest.raises(BadRequestError, match="not found"):
                await ask(other, "more", previous_response_id=first.id)
            await ask(client, "more", previous_response_id=first.id)
        assert (await gateway.close_session("s")).breaks == {}
        assert gateway._sessions.histories.held_bytes == 0


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "bash"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
        ({"tools": 3}, "tools"),
        ({"previous_response_id": 3}, "previous_response_id"),
        ({"store": "yes"}, "store"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"model": "other"}, "model"),
    ],
)  # fmt: skip
async def test_what_cannot_be_honoured_is_refused_by_name(serve, says, more, param):
    async with serve(ScriptedEngine(says("ok"))) as (_, store, url), aiohttp.ClientSession() as http:
        async with http.post(f"{url}/responses", json={"model": "tiny", "input": "x"} | more) as response:
            assert response.status == (404 if param == "model" else 400)
            error = (await response.json())["error"]
        assert store.sessions() == []
    assert error["param"] == param and error["type"] == "invalid_request_error"


def events_of(text):
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: ")]


async def test_a_stream_that_fails_late_ends_with_an_error(serve, says):
    engine = ScriptedEngine(says("never"), token_delay_s=30)
    async with serve(engine, heartbeat_s=0.05) as (gateway, _, _):
        gateway.open_session("s", PINNED)
        url = f"{gateway.session_url('s')}/responses"
        async with aiohttp.ClientSession() as http, http.post(url, json={"input": "x", "stream": True}) as response:
            assert await response.content.readline() == b"event: response.created\n"
            await gateway.close_session("s")
            *_, error, failed = events_of(await response.text())
    assert (error["type"], error["code"]) == ("error", "session_closed")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "session_closed"
    assert failed["sequence_number"] == error["sequence_number"] + 1


async def test_an_error_is_the_clients_own(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, url), client_of(url) as client:
        gateway._sessions.num_calls = 10**6
        with pytest.raises(APIError) as failed:
            await ask(client)
        assert failed.value.code == "overloaded"


def test_histories_are_bounded():
    """Of one session the replies that were used least lately go, of all the sessions that were."""
    histories, text = Histories(limit_bytes=2000, session_bytes=1000), [{"role": "user", "content": "x" * 200}]
    for number in range(3):
        histories.keep("a", f"r{number}", f"r{number - 1}" if number else None, text)
    assert len(histories.up_to("a", "r2")) == 3
    histories.keep("a", "other", None, text)
    histories.keep("a", "more", None, text)
    assert histories.up_to("a", "other") == text and histories.up_to("a", "r2") is None
    histories.keep("b", "r", None, text)
    for number in range(4):
        histories.keep("c", f"r{number}", None, text)
    assert histories.up_to("a", "other") is None and histories.up_to("b", "r") == text
    for name in "abc":
        histories.forget(name)
    assert histories.held_bytes == 0 and histories.up_to("b", "r") is None
