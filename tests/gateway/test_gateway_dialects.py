"""One conversation in each dialect, by its own client: the same rows, id for id."""

import asyncio
import importlib.util
import json
import time

import aiohttp
import numpy as np
import pytest

pytest.importorskip("openai")

from openai import AsyncOpenAI

from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.routes import DIALECTS
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.trace import Break
from swe_rl.model.chat import ChatRenderer
from swe_rl.rollout.rows import traced_rows
from swe_rl.rollout.trajectory import Status, Trajectory

# Its import takes a second of a core, which each process that collects this file would spend.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("anthropic") is None, reason="without `anthropic`")
PINNED = SessionSettings(max_turn_tokens=1000, max_trajectory_tokens=20_000)
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}, "limit": {"type": "number"}}}
SYSTEM = "You are an agent."
TASK = ("user", "Fix the bug in lib/core.py.")


def call(command, **more):
    return {"function": {"name": "bash", "arguments": {"command": command, **more}}}


def said(text, *calls, reasoning=None):
    message = {"role": "assistant", "content": text}
    message |= {"reasoning_content": reasoning} if reasoning else {}
    return message | ({"tool_calls": list(calls)} if calls else {})


REPLIES = (
    said("I look at it.\n", call("ls -la \u00e9", limit=2.0), reasoning="What is\nthere?"),
    said("", call("cat lib/core.py"), call("cat a.py")),
    said("It is fixed.", reasoning="Done."),
)


class Chat:
    def __init__(self, url):
        self._client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)

    def tools(self):
        return [{"type": "function", "function": {"name": "bash", "description": "Runs.", "parameters": SCHEMA}}]

    async def ask(self, system, entries, **options):
        """The reply of a conversation: ("user", text), ("reply", an earlier one), ("results", its outputs)."""
        messages = [{"role": "system", "content": system}]
        for kind, content in entries:
            if kind == "user":
                messages.append({"role": "user", "content": content})
            elif kind == "reply":
                messages.append(content.model_dump(exclude_none=True))
            else:
                calls = messages[-1]["tool_calls"]
                outputs = [{"role": "tool", "tool_call_id": call["id"]} for call in calls]
                messages += [{**output, "content": text} for output, text in zip(outputs, content, strict=True)]
        reply = await self._client.chat.completions.create(
            model="tiny", messages=messages, tools=self.tools(), max_completion_tokens=900, **options
        )
        return reply.choices[0].message

    async def close(self):
        await self._client.close()


class Messages:
    def __init__(self, url):
        from anthropic import AsyncAnthropic

        self._client = AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)
        self.stream = False

    async def ask(self, system, entries):
        messages = []
        for kind, content in entries:
            if kind == "reply":
                blocks = [block.model_dump(exclude_none=True) for block in content.content]
                messages.append({"role": "assistant", "content": blocks})
                continue
            if kind == "user":
                blocks = [{"type": "text", "text": content}]
            else:
                ids = [block["id"] for block in messages[-1]["content"] if block["type"] == "tool_use"]
                blocks = [
                    {"type": "tool_result", "tool_use_id": one, "content": text}
                    for one, text in zip(ids, content, strict=True)
                ]
            if messages and messages[-1]["role"] == "user":  # as its clients do
                messages[-1]["content"] += blocks
            else:
                messages.append({"role": "user", "content": blocks})
        tools = [{"name": "bash", "description": "Runs.", "input_schema": SCHEMA}]
        options = {"model": "tiny", "max_tokens": 900, "system": system, "messages": messages, "tools": tools}
        if not self.stream:
            return await self._client.messages.create(**options)
        async with self._client.messages.stream(**options) as stream:
            return await stream.get_final_message()

    async def close(self):
        await self._client.close()


class StreamedMessages(Messages):
    def __init__(self, url):
        super().__init__(url)
        self.stream = True


class Responses:
    def __init__(self, url):
        self._client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)

    def _items(self, entries):
        items = []
        for kind, content in entries:
            if kind == "user":
                items.append({"role": "user", "content": [{"type": "input_text", "text": content}]})
            elif kind == "reply":
                calls = [item.call_id for item in content.output if item.type == "function_call"]
                items += [item.model_dump(exclude_none=True) for item in content.output]
            else:
                outputs = zip(calls, content, strict=True)
                items += [{"type": "function_call_output", "call_id": one, "output": text} for one, text in outputs]
        return items

    async def ask(self, system, entries):
        return await self._reply(system, store=False, input=self._items(entries))

    async def _reply(self, system, **options):
        tools = [{"type": "function", "name": "bash", "description": "Runs.", "parameters": SCHEMA, "strict": False}]
        return await self._client.responses.create(
            model="tiny", instructions=system, tools=tools, max_output_tokens=900, **options
        )

    async def close(self):
        await self._client.close()


class StreamedResponses(Responses):
    async def _reply(self, system, **options):
        stream = await super()._reply(system, stream=True, **options)
        return [event async for event in stream][-1].response


class ContinuedResponses(Responses):
    """What was said before is not sent again where there is a reply to go on from."""

    async def ask(self, system, entries):
        at = max((index for index, (kind, _) in enumerate(entries) if kind == "reply"), default=None)
        if at is None:
            return await self._reply(system, input=self._items(entries))
        reply = entries[at][1]
        new = self._items(entries[at:])[len(reply.output) :]
        return await self._reply(system, input=new, previous_response_id=reply.id)


SPEAKERS = (Chat, Messages, StreamedMessages, Responses, StreamedResponses, ContinuedResponses)


@pytest.fixture
def renderer(tokenizer, request):
    return ChatRenderer(tokenizer, template=getattr(request, "param", "qwen"), thinking=True)


every_template = pytest.mark.parametrize("renderer", ["qwen_plain", "qwen", "qwen_coder"], indirect=True)


@pytest.fixture
def speaking(serve, renderer):
    """`async with speaking() as (gateway, speakers, end)`: who speaks, by name; `end` gives breaks and rows of each."""

    class Speaking:
        def __init__(self, replies=REPLIES, **options):
            ids = [renderer.reply(message) for message in replies]
            self.engine = ScriptedEngine(self._next, max_model_len=20_000, **options)
            self._asked, self._ids = {}, ids
            parser = "qwen3_coder" if renderer.template.count("<function=") else "hermes"
            self._serving = serve(self.engine, max_model_len=20_000, tool_parser=parser)

        def _next(self, prompt_ids):
            """Of each session its turns in order."""
            session = self.engine.requests[-1][0]
            turn = self._asked[session] = self._asked.get(session, -1) + 1
            return self._ids[turn % len(self._ids)]

        async def __aenter__(self):
            self.gateway, self.store, self.url = await self._serving.__aenter__()
            self.speakers = {}
            for make in SPEAKERS:
                self.gateway.open_session(make.__name__, PINNED)
                self.speakers[make.__name__] = make(self.gateway.session_url(make.__name__))
            return self

        async def __aexit__(self, *error):
            for speaker in self.speakers.values():
                await speaker.close()
            await self._serving.__aexit__(*error)

        async def same(self, leave_out=()):
            """The breaks and rows of all who spoke, which are equal."""
            of_each = {}
            for name in self.speakers.keys() - set(leave_out):
                breaks = (await self.gateway.close_session(name)).breaks
                owner = Trajectory("t", "i", "g", "train", 1, 0, 0, Status.resolved, 1.0, True, True)
                of_each[name] = breaks, traced_rows(owner, self.store.traces(name))
            expected = of_each["Chat"]
            for name, got in of_each.items():
                assert got[0] == expected[0], name
                assert len(got[1]) == len(expected[1]), name
                for row, other in zip(got[1], expected[1], strict=True):
                    assert row.token_ids.tolist() == other.token_ids.tolist(), name
                    assert row == other, name
            return expected

    return Speaking


async def converse(speaker, entries, outputs=(["a.py  lib\n"], ["x = 1\n", ""])):
    """Three turns; their whole conversation."""
    for texts in outputs:
        entries = [*entries, ("reply", await speaker.ask(SYSTEM, entries)), ("results", texts)]
    return [*entries, ("reply", await speaker.ask(SYSTEM, entries))]


@every_template
async def test_every_dialect_gives_the_same_rows(speaking, renderer):
    async with speaking() as talk:
        await asyncio.gather(*(converse(speaker, [TASK]) for speaker in talk.speakers.values()))
        breaks, rows = await talk.same()
    assert breaks == {} and len(rows) == 1
    sampled = np.concatenate([renderer.reply(message) for message in REPLIES])
    assert rows[0].token_ids[rows[0].loss_mask].tolist() == sampled.tolist()


@every_template
async def test_compaction_branches_and_sub_agents_break_alike(speaking):
    """A tool's output is shortened later, an older reply is gone on from, another conversation is in between, and one
    is told anew as a whole: then its replies, reasoning included, are rendered from what the client sent."""
    async with speaking() as talk:

        async def act(speaker):
            entries = await converse(speaker, [TASK])
            sub = [("user", "Look at a.py.")]
            sub += [("reply", await speaker.ask("You are a sub-agent.", sub))]
            sub += [("results", ["x = 1\n"])]
            await speaker.ask("You are a sub-agent.", sub)
            await speaker.ask(SYSTEM, [*entries, ("user", "Test it, too.")])
            await speaker.ask(SYSTEM, [*entries[:3], ("user", "Another way.")])
            entries[2] = ("results", ["(left out)"])
            await speaker.ask(SYSTEM, entries[:5])
            await speaker.ask("You are an agent that has forgotten much.", [*entries, ("user", "Go on.")])

        speakers = [speaker for name, speaker in talk.speakers.items() if name != "ContinuedResponses"]
        await asyncio.gather(*map(act, speakers))
        breaks, rows = await talk.same(leave_out=["ContinuedResponses"])
    assert breaks == {Break.prefix_changed: 2, Break.branch: 2} and len(rows) == 5


async def test_requests_at_once_are_all_kept(speaking):
    async with speaking([said("ok")], token_delay_s=0.002) as talk:
        speakers = talk.speakers.values()
        await asyncio.gather(*(speaker.ask(SYSTEM, [TASK]) for speaker in speakers for _ in range(4)))
        summaries = [await talk.gateway.close_session(name) for name in talk.speakers]
    assert [summary.breaks for summary in summaries] == [{Break.branch: 3}] * len(summaries)


async def test_a_conversation_may_change_its_dialect(speaking):
    """The chain is the session's: who asks in another language goes on from the same ids."""
    async with speaking() as talk:
        url = talk.gateway.session_url("Chat")
        first = await talk.speakers["Chat"].ask(SYSTEM, [TASK])
        called = first.tool_calls[0]
        body = {
            "system": SYSTEM,
            "tools": [{"name": "bash", "description": "Runs.", "input_schema": SCHEMA}],
            "messages": [
                {"role": "user", "content": TASK[1]},
                {"role": "assistant", "content": [
                    {"type": "text", "text": first.content},
                    {"type": "tool_use", "id": "x", "name": "bash", "input": json.loads(called.function.arguments)},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "a.py"}]},
            ],
        }  # fmt: skip
        async with aiohttp.ClientSession() as http, http.post(f"{url}/messages", json=body) as response:
            assert response.status == 200
        assert (await talk.gateway.close_session("Chat")).breaks == {}
        assert [trace.chain for trace in talk.store.traces("Chat")] == [0, 0]


BODIES = {
    "/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/messages": {"messages": [{"role": "user", "content": "x"}]},
    "/responses": {"input": "x"},
}


async def test_the_first_byte_of_a_stream_comes_with_the_reply(speaking):
    """No heartbeat is waited for, and nothing else: it is there when a plain reply would be, in each dialect."""
    assert {dialect.path for dialect in DIALECTS} == set(BODIES)
    async with speaking([said("It is fixed.")], token_delay_s=0.002) as talk, aiohttp.ClientSession() as http:

        async def first_byte_s(path, body):
            started_s = time.perf_counter()
            async with http.post(f"{talk.url}{path}", json=body) as response:
                assert response.status == 200
                await response.content.readany()
                return time.perf_counter() - started_s

        for path, body in BODIES.items():
            taken = [
                [await first_byte_s(path, body | {"stream": stream}) for _ in range(3)] for stream in (True, False)
            ]
            assert min(taken[0]) < min(taken[1]) + 0.1, path
