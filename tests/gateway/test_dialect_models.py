"""Every reply, event and error, strictly by the models of the client's own package: no field is wrong, none is missing.

The clients themselves build their models without a check, so a wrong type would only show in an agent.
"""

import importlib.util
import json
from typing import Any

import aiohttp
import pytest

pytest.importorskip("openai")

from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from swe_rl.config.schema import GatewayConfig
from swe_rl.engine.engine import EngineError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.routes import DIALECTS

# Its import takes a second of a core, which each process that collects this file would spend.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("anthropic") is None, reason="without `anthropic`")
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = {
    "/chat/completions": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}],
    "/messages": [{"name": "bash", "input_schema": SCHEMA}],
    "/responses": [
        {"type": "function", "name": "bash", "parameters": SCHEMA},
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "more", "description": "More.", "tools": [{"type": "function", "name": "look"}]},
    ],
}
ASKED = {
    "/chat/completions": {"messages": [{"role": "user", "content": "Fix it."}]},
    "/messages": {"messages": [{"role": "user", "content": "Fix it."}], "max_tokens": 900},
    "/responses": {"input": "Fix it.", "reasoning": {"effort": "low"}},
}
# What the packages' models do not have, and programs read.
EXTRA = {
    "ChatCompletionMessage.reasoning_content",
    "ChoiceDelta.reasoning_content",
    "Response.frequency_penalty",
    "Response.presence_penalty",
    "Response.store",
    "ResponseCustomToolCall.status",
}
# Of what their services have and a model of ours has not; every other field is there, null or not.
LEFT_OUT = {
    "ChatCompletion": {"moderation", "service_tier", "system_fingerprint"},
    "ChatCompletionMessage": {"audio", "function_call", "tool_calls"},
    "CompletionUsage": {"completion_tokens_details", "moderation"},
    "Message": {"diagnostics"},
    "Usage": {"speed"},
    "ToolUseBlock": {"toolset_name"},
    "Response": {"conversation", "moderation", "prompt", "prompt_cache_options", "prompt_cache_retention"},
    "FunctionTool": {"allowed_callers", "defer_loading", "output_schema"},
    "Reasoning": {"context", "generate_summary", "mode"},
}
CALLS = [
    {"function": {"name": name, "arguments": arguments}}
    for name, arguments in (("bash", {"command": "ls"}), ("patch", {"input": "*"}), ("more.look", {"at": 1}))
]
SAID = {"role": "assistant", "content": "I look at it. " * 9, "reasoning_content": "Hm. " * 30, "tool_calls": CALLS}


def models() -> dict[str, tuple[Any, Any]]:
    """The client's models of a reply and of an event, by the path."""
    from anthropic.types import Message, RawMessageStreamEvent

    return {
        "/chat/completions": (ChatCompletion, ChatCompletionChunk),
        "/messages": (Message, RawMessageStreamEvent),
        "/responses": (Response, ResponseStreamEvent),
    }


def check(model: Any, sent: str | bytes) -> Any:
    """What was sent, once it is sound: types as they are declared, nothing unknown, nothing left out."""
    read = TypeAdapter(model).validate_json(sent, strict=True)
    look_into(read)
    return read


def look_into(value: Any) -> None:
    if isinstance(value, list | tuple):
        for inner in value:
            look_into(inner)
    if not isinstance(value, BaseModel):
        return
    name = type(value).__name__
    unknown = {f"{name}.{field}" for field in value.model_extra or ()} - EXTRA
    assert not unknown
    if name in LEFT_OUT:
        missing = type(value).model_fields.keys() - value.model_fields_set
        assert missing <= LEFT_OUT[name], (name, missing - LEFT_OUT[name])
    for field in value.model_fields_set:
        look_into(getattr(value, field))


def events_of(stream: str) -> list[str]:
    """The data of each event; those that have a name have the name of their type."""
    sent = []
    for block in stream.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in lines:
            assert json.loads(lines["data"])["type"] == lines["event"]
        if lines.get("data", "[DONE]") != "[DONE]":
            sent.append(lines["data"])
    return sent


@pytest.fixture
def asked(serve, says):
    """`await asked(path, replies, body)`: status and text of each."""

    async def ask(reply: Any, *requests: tuple[str, dict[str, Any]], **options: Any) -> list[tuple[int, str]]:
        engine = ScriptedEngine(says(reply) if isinstance(reply, dict | str) else reply)
        answers = []
        async with serve(engine, tool_parser="hermes", **options) as (_, _, url), aiohttp.ClientSession() as http:
            for path, body in requests:
                async with http.post(f"{url}{path}", json=body) as response:
                    answers.append((response.status, await response.text()))
        return answers

    return ask


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("limit", [None, 40], ids=["whole", "cut off"])
async def test_replies_and_streams(asked, path, limit):
    assert {dialect.path for dialect in DIALECTS} == models().keys() == ASKED.keys()
    named = {"/responses": "max_output_tokens"}.get(path, "max_tokens")
    body = ASKED[path] | {"model": "tiny", "tools": TOOLS[path]} | ({named: limit} if limit else {})
    options = {"/chat/completions": {"logprobs": True, "stream_options": {"include_usage": True}}}.get(path, {})
    plain, streamed = await asked(SAID, (path, body), (path, body | {"stream": True} | options))
    assert (plain[0], streamed[0]) == (200, 200), (plain, streamed)
    reply, event = models()[path]
    read = check(reply, plain[1])
    kinds = [type(check(event, sent)).__name__ for sent in events_of(streamed[1])]
    assert len(kinds) > 3
    if path == "/responses":
        assert (read.status, read.completed_at is None) == (("incomplete", True) if limit else ("completed", False))
        assert limit or [item.type for item in read.output][2:] == [
            "function_call", "custom_tool_call", "function_call"
        ]  # fmt: skip


async def test_what_is_asked_beside_replies(serve, says, asked):
    from anthropic.types import MessageTokensCount

    async with serve(ScriptedEngine(says("ok"))) as (_, _, url), aiohttp.ClientSession() as http:
        async with http.post(f"{url}/responses", json={"input": "Hello."}) as response:
            kept = check(Response, await response.read())
        async with http.get(f"{url}/responses/{kept.id}") as response:
            assert check(Response, await response.read()) == kept
        async with http.get(f"{url}/models") as response:
            (listed,) = (await response.json())["data"]
            TypeAdapter(Model).validate_python(listed, strict=True)
    ((status, counted),) = await asked("ok", ("/messages/count_tokens", ASKED["/messages"]))
    assert status == 200 and check(MessageTokensCount, counted).input_tokens > 0


@pytest.mark.parametrize("path", ASKED)
async def test_errors_before_and_within_a_stream(asked, path):
    from anthropic.types.shared import ErrorResponse

    def fails(prompt_ids: Any) -> Any:
        raise EngineError("it is gone")

    slow = {"config": GatewayConfig(max_body_mb=1)}
    ((status, refused), (broken, text)) = await asked(
        fails, (path, ASKED[path] | {"tools": 1}), (path, ASKED[path]), **slow
    )
    assert status == 400 and broken >= 500
    for sent in (refused, text):
        if path == "/messages":
            check(ErrorResponse, sent)
        else:
            error = json.loads(sent)["error"]
            assert error.keys() == {"message", "type", "param", "code"} and isinstance(error["message"], str)


async def test_there_is_nothing_at_addresses_of_other_verbs(serve, says):
    """A client that asks for what only OpenAI does learns that it is not there: it then does it by itself."""
    async with serve(ScriptedEngine(says("ok"))) as (_, _, url), aiohttp.ClientSession() as http:
        for verb in ("compact", "input_tokens"):
            async with http.post(f"{url}/responses/{verb}", json={"input": "Hello."}) as response:
                assert response.status == 404 and (await response.json())["error"]["code"] == "not_found"
