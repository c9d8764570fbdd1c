"""A gateway that forwards to an endpoint: any dialect before it, any behind it, and a session's limits hold."""

import asyncio
from functools import partial

import aiohttp
import orjson
import pytest

from swe_rl.config.choices import EndpointDialect
from swe_rl.config.schema import EngineConfig
from swe_rl.engine.endpoint.engine import EndpointEngine
from swe_rl.engine.endpoint.question import EndpointReply, Usage
from swe_rl.engine.endpoint.spending import Prices, Spending
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.dialects.chat import ChatCompletions
from swe_rl.gateway.forwarding.completer import ForwardingCompleter
from swe_rl.gateway.live import LiveSession
from swe_rl.gateway.metrics import GatewayMetrics
from swe_rl.gateway.request import Arrived
from swe_rl.gateway.session import Session, SessionSettings
from swe_rl.model.tool_parser import ParsedReply
from swe_rl.sandbox.sandbox import ends_within
from tests.support.endpoints import speak
from tests.support.fake_chat_server import FakeChatServer, FakeReply

LS = {"role": "assistant", "content": "I look.", "tool_calls": [
    {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
]}  # fmt: skip
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}


@pytest.fixture
async def endpoint(tmp_path):
    """Makes endpoints, not greeted, and closes them."""
    made = []

    async def make(url, dialect="chat", model="tiny"):
        config = EngineConfig(url=url, model=model, dialect=EndpointDialect(dialect))
        spending = Spending(tmp_path / f"calls{len(made)}.jsonl", Prices())
        engine = EndpointEngine(config, spending, lambda words: None, sleep=None)
        await speak(engine, config.dialect)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        await engine.close()


def asked(dialect, result=None):
    """A request with a tool, and after a call of it its result."""
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    if dialect == "messages":
        body = {"max_tokens": 64, "system": "S", "messages": [{"role": "user", "content": "Fix it."}]}
        tool = {"name": "bash", "input_schema": schema}
    else:
        turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "Fix it."}]
        body = {"input" if dialect == "responses" else "messages": turns}
        tool = {"type": "function", "name": "bash", "parameters": schema}
        tool = (
            tool if dialect == "responses" else {"type": "function", "function": {"name": "bash", "parameters": schema}}
        )
    return {"model": "tiny", "tools": [tool], **body}


def follow(dialect, body, answer):
    """The next request: the reply, and what its call gave."""
    if dialect == "chat":
        message = answer["choices"][0]["message"]
        call_id = message["tool_calls"][0]["id"]
        new = [message, {"role": "tool", "tool_call_id": call_id, "content": "a.py"}]
        return {**body, "messages": [*body["messages"], *new]}
    if dialect == "responses":
        call_id = next(item["call_id"] for item in answer["output"] if item["type"] == "function_call")
        new = [*answer["output"], {"type": "function_call_output", "call_id": call_id, "output": "a.py"}]
        return {**body, "input": [*body["input"], *new]}
    call_id = next(block["id"] for block in answer["content"] if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call_id, "content": "a.py"}
    new = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": [result]}]
    return {**body, "messages": [*body["messages"], *new]}


def text_in(dialect, answer):
    if dialect == "chat":
        return answer["choices"][0]["message"]["content"]
    parts = answer["content"] if dialect == "messages" else answer["output"][0]["content"]
    return parts[0]["text"]


@pytest.mark.parametrize("behind", PATHS)
@pytest.mark.parametrize("before", PATHS)
async def test_a_conversation_with_a_tool_goes_through_any_pair_of_dialects(serve, renderer, endpoint, before, behind):
    """Behind is our own gateway, as job=serve has it, with a scripted model."""
    prompts = []

    def reply(prompt_ids):
        prompts.append(renderer.decode(prompt_ids))
        said = {"role": "assistant", "content": "Done."} if "a.py" in prompts[-1] else LS
        return renderer.reply(said)

    async with (
        serve(ScriptedEngine(reply, max_model_len=2048)) as (_, _, url),
        serve(await endpoint(url, behind)) as (_, _, front),
        aiohttp.ClientSession() as client,
    ):
        body = asked(before)
        async with client.post(front + PATHS[before], json=body) as answer:
            first = await answer.json()
        async with client.post(front + PATHS[before], json=follow(before, body, first)) as answer:
            second = await answer.json()
    assert text_in(before, first) == "I look."
    assert text_in(before, second) == "Done."
    assert len(prompts) == 2
    direct = []
    async with (
        serve(ScriptedEngine(lambda ids: direct.append(renderer.decode(ids)) or reply(ids), max_model_len=2048)) as (
            _, _, url,
        ),
        aiohttp.ClientSession() as client,
    ):  # fmt: skip
        async with client.post(url + PATHS[before], json=body) as answer:
            again = await answer.json()
        await client.post(url + PATHS[before], json=follow(before, body, again))
    assert prompts[:2] == direct, "the model reads the same as without a gateway between"


SETTINGS = SessionSettings(max_turn_tokens=9, max_trajectory_tokens=30, temperature=0.5, max_calls=2)


async def test_the_sessions_settings_hold_and_its_replies_are_counted(serve, endpoint):
    async with (
        FakeChatServer(lambda messages: FakeReply("four words are said", finish_reason="length")) as server,
        serve(await endpoint(server.base_url), clients_begin=False) as (gateway, store, _),
        aiohttp.ClientSession() as client,
    ):
        gateway.open_session("s", SETTINGS)
        url = f"{gateway.session_url('s')}/chat/completions"
        said = {"model": "tiny", "temperature": 2.0, "messages": [{"role": "user", "content": "word " * 5}]}
        statuses = []
        for _ in range(3):
            async with client.post(url, json=said) as answer:
                statuses.append((answer.status, (await answer.json()).get("error", {}).get("code")))
        summary = await gateway.close_session("s")
        assert store.sessions() == [], "there are no tokens"
    assert statuses == [(200, None), (200, None), (400, "call_limit_reached")]
    assert (server.requests[0]["temperature"], server.requests[0]["max_tokens"]) == (0.5, 9)
    assert (summary.num_calls, summary.sampled_tokens, summary.cut_replies) == (2, 8, 2)
    assert summary.had_all_calls and summary.breaks == {}


async def test_what_the_endpoint_counted_limits_the_trajectory(serve, endpoint):
    async with (
        FakeChatServer(lambda messages: "word " * 25) as server,
        serve(await endpoint(server.base_url), clients_begin=False) as (gateway, _, _),
        aiohttp.ClientSession() as client,
    ):
        gateway.open_session("s", SETTINGS)
        url = f"{gateway.session_url('s')}/chat/completions"
        body = {"model": "tiny", "messages": [{"role": "user", "content": "word " * 5}]}
        async with client.post(url, json=body) as answer:
            message = (await answer.json())["choices"][0]["message"]
        more = [*body["messages"], message, {"role": "user", "content": "On."}]
        async with client.post(url, json={**body, "messages": more}) as answer:
            refusal = await answer.json()
        summary = await gateway.close_session("s")
    assert refusal["error"]["code"] == "context_length_exceeded" and summary.overflowed
    assert len(server.requests) == 1, "nothing is paid for a call without room"


@pytest.mark.parametrize(
    ("reply", "overflowed"),
    [(FakeReply("no such field", status=400), False), (FakeReply("maximum context length is 9", status=400), True)],
)
async def test_the_endpoints_errors_are_failures_of_infrastructure(serve, endpoint, reply, overflowed):
    async with (
        FakeChatServer(lambda messages: reply) as server,
        serve(await endpoint(server.base_url), clients_begin=False) as (gateway, _, _),
        aiohttp.ClientSession() as client,
    ):
        gateway.open_session("s", SETTINGS)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
        async with client.post(f"{gateway.session_url('s')}/chat/completions", json=body) as answer:
            status = answer.status
        summary = await gateway.close_session("s")
    assert (status, summary.overflowed) == ((400, True) if overflowed else (502, False))
    assert bool(summary.failed) is not overflowed and not summary.refused


async def test_the_endpoints_time_is_no_time_of_the_agents(serve, endpoint):
    """The agent may have less time than one call takes: how much of it is a queue or a hang, nobody can tell."""
    async with (
        FakeChatServer(lambda messages: FakeReply("late", delay_s=1.0)) as server,
        serve(await endpoint(server.base_url), clients_begin=False) as (gateway, _, _),
        aiohttp.ClientSession() as client,
    ):
        gateway.open_session("s", SETTINGS)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
        url = f"{gateway.session_url('s')}/chat/completions"
        asking = asyncio.ensure_future(client.post(url, json=body))
        in_time = await ends_within(asking, 0.5, partial(gateway.waited_s, "s"))
        asking.cancel()
        await asyncio.wait({asking})
        assert in_time and gateway.waited_s("s") >= 1.0


async def test_token_ids_are_refused_and_counts_are_estimates(serve, endpoint):
    async with (
        FakeChatServer(lambda messages: "x") as server,
        serve(await endpoint(server.base_url)) as (_, _, url),
        aiohttp.ClientSession() as client,
    ):
        ids = {"model": "tiny", "prompt": [1, 2], "max_tokens": 1}
        ids |= {"return_token_ids": True, "logprobs": 1, "return_tokens_as_token_ids": True}
        async with client.post(f"{url}/completions", json=ids) as answer:
            assert answer.status == 400, await answer.text()
        body = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "x" * 400}]}
        async with client.post(f"{url}/messages/count_tokens", json=body) as answer:
            assert 100 <= (await answer.json())["input_tokens"] < 130
    assert server.requests == []


async def test_calls_at_once_reserve_what_an_endpoint_may_say(serve, endpoint):
    async with (
        FakeChatServer(lambda messages: FakeReply("word " * 9, delay_s=0.2)) as server,
        serve(await endpoint(server.base_url), clients_begin=False) as (gateway, _, _),
        aiohttp.ClientSession() as client,
    ):
        gateway.open_session("s", SessionSettings(max_turn_tokens=9, max_trajectory_tokens=30, max_total_tokens=20))
        url = f"{gateway.session_url('s')}/chat/completions"

        async def ask(number):
            body = {"model": "tiny", "messages": [{"role": "user", "content": f"task{number}"}]}
            async with client.post(url, json=body) as answer:
                return answer.status

        statuses = await asyncio.gather(*map(ask, range(6)))
        limits = [request["max_tokens"] for request in server.requests]
    # What is left beside the first two is less than a reply. They use it with their prompts, so nobody else has any.
    assert sorted(statuses) == [200] * 2 + [400] * 4 and limits == [9, 9]


async def total_of(forwarding, live, calls):
    """Sends calls one after the other, and returns what each added to the session's total."""
    added = []
    for messages, segment in calls:
        before = live.total_tokens
        body = {"model": "tiny", "messages": messages, "segment": segment}
        await forwarding.complete(live, ChatCompletions().parse(orjson.dumps(body), Arrived("tiny", pinned=True)))
        added.append(live.total_tokens - before)
    return added


class CountingEndpoint:
    """Counts as endpoints do: a token a word, and for each reply 100 tokens of reasoning, which it reads again or
    drops."""

    def __init__(self, *, drops):
        self.drops = drops

    async def ask(self, question, session_id):
        kept = 0 if self.drops else 100 * sum(message["role"] == "assistant" for message in question.messages)
        prompt = kept + sum(len(message["content"].split()) for message in question.messages)
        usage = Usage(prompt, 102, reasoning_tokens=100)
        return EndpointReply(ParsedReply("two words"), usage), usage


@pytest.mark.parametrize("drops", [False, True])
async def test_the_total_of_a_session_has_each_token_once(renderer, drops):
    """Also where the endpoint drops former reasoning, where an answer got lost, and after a compaction."""
    task = [{"role": "user", "content": "word " * 10}]
    said = {"role": "assistant", "content": "two words"}
    out = {"role": "user", "content": "out " * 20}
    second = [*task, said, out]
    begun = [{"role": "user", "content": "word " * 10}, said, out]
    compacted = {"role": "compacted", "number": 1}
    again = {**compacted, "number": 2}
    calls = [(task, None), (task, None), (second, None), (begun, compacted), (begun, compacted), (begun, again)]
    forwarding = ForwardingCompleter(
        CountingEndpoint(drops=drops), GatewayMetrics([], None, None, None), model_name="tiny",
        max_model_len=10**4,
    )  # fmt: skip
    settings = SessionSettings(
        max_turn_tokens=200, max_trajectory_tokens=10**4, max_total_tokens=10**4, has_segments=True
    )
    live = LiveSession("s", Session(renderer), settings)
    whole = 32 + 100 * (not drops)
    assert await total_of(forwarding, live, calls) == [112, 0, 122, 102 + whole, 0, 102 + whole]


def test_what_is_new_in_a_prompt_is_never_more_than_what_grew():
    assert Usage(50, 9).count_new_prompt(Usage()) == 50
    assert Usage(150, 9).count_new_prompt(Usage(20, 110, reasoning_tokens=100)) == 20
    assert Usage(50, 9).count_new_prompt(Usage(20, 110, reasoning_tokens=100)) == 20
    assert Usage(50, 9).count_new_prompt(Usage(20, 110)) == 0
