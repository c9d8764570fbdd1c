"""Calls as tags, as Qwen3-Coder writes them, from the engine's tokens to an OpenAI client and back."""

import json

import pytest

pytest.importorskip("openai")

from openai import AsyncOpenAI

from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.model.chat import ChatRenderer

USER = {"role": "user", "content": "Fix the bug."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "edit",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "line": {"type": "integer"},
                    "all": {"type": "boolean"},
                    "share": {"type": "number"},
                    "lines": {"type": "array"},
                    "text": {"type": "string"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}}}},
]
CALLS = (
    "I look at it.\n\n<tool_call>\n<function=edit>\n<parameter=path>\n12\n</parameter>\n"
    "<parameter=line>\n12\n</parameter>\n"
    "<parameter=all>\nTrue\n</parameter>\n<parameter=share>\n0.5\n</parameter>\n"
    '<parameter=lines>\n[1, "é"]\n</parameter>\n<parameter=text>\n  if a < b:\n\n\treturn "中"\n</parameter>\n'
    "</function>\n</tool_call>\n<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
)
ARGUMENTS = [
    {"path": "12", "line": 12, "all": True, "share": 0.5, "lines": [1, "é"], "text": '  if a < b:\n\n\treturn "中"'},
    {"command": "ls"},
]


@pytest.fixture(scope="module")
def renderer(tokenizer):
    return ChatRenderer(tokenizer, template="qwen_coder")


@pytest.fixture
def speaks(tokenizer):
    """An engine that answers with these texts, one a turn."""

    def make(*texts, **options):
        replies = iter([tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False) for text in texts])
        return ScriptedEngine(lambda prompt_ids: next(replies), **options)

    return make


def client_of(url):
    return AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


async def ask(client, messages, **options):
    return await client.chat.completions.create(model="tiny", messages=messages, **options)


async def test_arguments_have_the_types_of_the_tool(serve, speaks):
    async with serve(speaks(CALLS), tool_parser="qwen3_coder") as (_, _, url), client_of(url) as client:
        choice = (await ask(client, [USER], tools=TOOLS)).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look at it.")
    assert [call.function.name for call in choice.message.tool_calls] == ["edit", "bash"]
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == ARGUMENTS
    assert [type(value) for value in json.loads(choice.message.tool_calls[0].function.arguments).values()] == [
        str, int, bool, float, list, str,
    ]  # fmt: skip


async def test_streamed_they_are_the_same(serve, speaks):
    async with serve(speaks(CALLS), tool_parser="qwen3_coder") as (_, _, url), client_of(url) as client:
        stream = await ask(client, [USER], tools=TOOLS, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    names = [call.function.name for call in calls if call.function.name]
    written = ["".join(call.function.arguments or "" for call in calls if call.index == index) for index in (0, 1)]
    assert names == ["edit", "bash"] and [json.loads(one) for one in written] == ARGUMENTS
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "I look at it."
    assert chunks[-1].finish_reason == "tool_calls"


async def test_the_conversation_goes_on_from_the_sampled_ids(serve, speaks, renderer):
    """The client hands back typed arguments as JSON; nothing of the reply is encoded again."""
    async with (
        serve(speaks(CALLS.replace("True", " true"), "Done."), tool_parser="qwen3_coder") as (_, store, url),
        client_of(url) as client,
    ):
        program = {"extra_body": {"program_id": "p"}, "tools": TOOLS}
        said = (await ask(client, [USER], **program)).choices[0].message
        heard = [{"role": "tool", "tool_call_id": call.id, "content": "ok\n"} for call in said.tool_calls]
        end = (await ask(client, [USER, said.model_dump(), *heard], **program)).choices[0]
        await store.flush()
        first, second = store.traces("p")
    assert (end.finish_reason, end.message.content) == ("stop", "Done.")
    assert first.delta_ids.tolist() == renderer.start([USER], TOOLS)
    assert (second.base_turn, second.base_tokens, second.chain, second.break_kind) == (0, first.tokens, 0, None)
    answers = "\n<|im_start|>user\n<tool_response>\nok\n\n</tool_response>\n<tool_response>\nok\n\n</tool_response>\n"
    assert renderer.decode(second.delta_ids) == f"{answers}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("parser", "tools", "calls"),
    [("qwen3_coder", [], 0), ("none", TOOLS, 0), ("hermes", TOOLS, 0), ("qwen3_coder", TOOLS, 2)],
)
async def test_what_is_no_call_is_text(serve, speaks, parser, tools, calls):
    async with serve(speaks(CALLS), tool_parser=parser) as (_, _, url), client_of(url) as client:
        message = (await ask(client, [USER], **({"tools": tools} if tools else {}))).choices[0].message
    assert len(message.tool_calls or ()) == calls
    assert calls or message.content == CALLS


async def test_a_long_reply_is_parsed_too(serve, speaks):
    """Beside the event loop: it has thousands of tokens."""
    text = "x = 'é'\n" * 1500
    said = f"<tool_call>\n<function=bash>\n<parameter=command>\n{text}\n</parameter>\n</function>\n</tool_call>"
    engine = speaks(said, max_model_len=10**5)
    async with serve(engine, tool_parser="qwen3_coder", max_model_len=10**5) as (_, _, url), client_of(url) as client:
        (call,) = (await ask(client, [USER], tools=TOOLS)).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"command": text}
