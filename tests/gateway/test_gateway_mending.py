"""What clients send in their own way, in each dialect: it is answered, the same text stands for it each time, and it is
counted."""

import asyncio
import gzip
import json
import zlib

import aiohttp
import orjson
import pytest

from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.errors import ApiError
from swe_rl.gateway.mending import KINDS, Mender
from swe_rl.gateway.request import Arrived
from swe_rl.gateway.routes import DIALECTS
from swe_rl.gateway.session import SessionSettings

CHAT, MESSAGES, RESPONSES = (dialect.path for dialect in DIALECTS)
PINNED = SessionSettings(max_turn_tokens=400, max_trajectory_tokens=40_000)
USER = {"role": "user", "content": "Fix the bug."}
HALF = "\ud83d"  # of an emoji
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "bash", "input": {}}]}


def result(content):
    return [
        USER,
        CALLED,
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": content}]},
    ]


def chat_call(**function):
    return [USER, {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "bash", **function}}]}, USER]


def chat_tool(content):
    return [*chat_call(arguments="{}")[:2], {"role": "tool", "tool_call_id": "c", "content": content}]


def output(value):
    call = {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"}
    return [{"role": "user", "content": "x"}, call, {"type": "function_call_output", "call_id": "c", "output": value}]


CASES = [
    (
        CHAT,
        {"messages": chat_tool([{"type": "image_url", "image_url": {"url": "data:"}}])},
        {"image"},
        "[image_url left out",
    ),
    (
        CHAT,
        {"messages": chat_tool([{"type": "file", "file": {}}, {"type": "text", "text": "A"}])},
        {"document"},
        "only]A",
    ),
    (CHAT, {"messages": chat_tool([{"type": "hologram"}])}, {"part"}, "[hologram left out"),
    (CHAT, {"messages": chat_tool([{"type": "text", "text": None}])}, {"content"}, ""),
    (CHAT, {"messages": chat_tool(["A", 3])}, {"part"}, "A3"),
    (CHAT, {"messages": chat_tool(None)}, {"content"}, ""),
    (CHAT, {"messages": chat_tool({"a": 1})}, {"content"}, '{"a":1}'),
    (CHAT, {"messages": chat_call(arguments=None)}, {"arguments"}, '"arguments": {}'),
    (CHAT, {"messages": chat_call()}, {"arguments"}, '"arguments": {}'),
    (CHAT, {"messages": chat_call(arguments=[1])}, {"arguments"}, '"arguments": [1]'),
    (CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": [3]}, USER]}, {"arguments"}, ""),
    (CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": "x"}, USER]}, {"arguments"}, ""),
    (CHAT, {"messages": [{"role": "robot", "content": "A"}]}, {"role"}, "<|im_start|>user\nA"),
    (CHAT, {"messages": [USER, {"role": "assistant", "content": None, "refusal": "No."}, USER]}, set(), "No."),
    (CHAT, {"tools": [{"type": "function"}, {"type": "web_search"}]}, {"tool"}, ""),
    (
        CHAT,
        {"logit_bias": {"5": -100}, "presence_penalty": 1.5, "min_tokens": 4},
        {"logit_bias", "presence_penalty", "min_tokens"},
        "",
    ),
    (CHAT, {"chat_template_kwargs": {"a": 1}, "stop_token_ids": [7]}, {"chat_template_kwargs", "stop_token_ids"}, ""),
    (CHAT, {"presence_penalty": 0, "parallel_tool_calls": True, "repetition_penalty": 1.0}, set(), ""),
    (CHAT, {"nobody_knows": 1}, {"unknown_field"}, ""),
    (MESSAGES, {"messages": result([{"type": "image", "source": PNG}])}, {"image"}, "[image (image/png) left out"),
    (
        MESSAGES,
        {"messages": result([{"type": "tool_reference", "tool_name": "Grep"}])},
        {"tool_reference"},
        "(Grep) left out",
    ),
    (MESSAGES, {"messages": result([{"type": "document", "source": {"type": "text", "data": "A"}}])}, set(), "A"),
    (MESSAGES, {"messages": result([{"type": "document", "source": PNG}])}, {"document"}, "[document"),
    (
        MESSAGES,
        {
            "messages": result(
                [{"type": "search_result", "source": "u", "title": "T", "content": [{"type": "text", "text": "A"}]}]
            )
        },
        set(),
        "T\nu\nA",
    ),
    (MESSAGES, {"messages": result(None)}, set(), ""),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image", "source": PNG}]}]}, {"image"}, "image/png"),
    (
        MESSAGES,
        {"messages": [USER, {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s"}]}, USER]},
        {"part"},
        "server_tool_use",
    ),
    (
        MESSAGES,
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "tool_use", "name": "b", "input": None}]},
                USER,
            ]
        },
        {"arguments"},
        "{}",
    ),
    (MESSAGES, {"messages": [USER, {"role": "assistant", "content": "It is"}]}, {"prefill"}, "It is"),
    (MESSAGES, {"system": [{"type": "image", "source": PNG}]}, {"image"}, "[image"),
    (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, {"tool"}, ""),
    (
        MESSAGES,
        {"mcp_servers": [{"url": "x"}], "context_management": {"edits": [1]}},
        {"mcp_servers", "context_management"},
        "",
    ),
    (RESPONSES, {"input": output([{"type": "input_image", "image_url": "data:"}])}, {"image"}, "[input_image left out"),
    (RESPONSES, {"input": output(None)}, set(), ""),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}]}, set(), "No."),
    (RESPONSES, {"input": [USER, {"type": "web_search_call", "id": "w"}, USER]}, {"item"}, ""),
    (
        RESPONSES,
        {"input": [USER, {"type": "compaction", "encrypted_content": "x"}]},
        {"item", "part"},
        "[compaction left out",
    ),
    (RESPONSES, {"input": [USER, {"type": "local_shell_call_output", "output": "A"}]}, set(), "A"),
    (
        RESPONSES,
        {"input": [USER, {"type": "function_call", "name": "b", "arguments": None}, USER]},
        {"arguments"},
        "{}",
    ),
    (RESPONSES, {"input": ["A"]}, set(), "A"),
    (RESPONSES, {"tools": [{"type": "web_search"}, {"type": "function", "name": "f"}]}, {"tool"}, '"name": "f"'),
    (
        RESPONSES,
        {"tools": [{"type": "namespace", "name": "x", "tools": [3, {"type": "function", "name": "f"}]}]},
        {"tool"},
        "x.f",
    ),
    (RESPONSES, {"instructions": ["A"]}, set(), "A"),
    # Messages and items that are none, or one alone; contents that are a part and no list; words in unknown parts.
    (CHAT, {"messages": ["A", None, USER]}, {"role", "part"}, "<|im_start|>user\nA"),
    (CHAT, {"messages": {"role": "user", "content": "A"}}, {"content"}, "<|im_start|>user\nA"),
    (CHAT, {"messages": "A"}, {"content", "role"}, "<|im_start|>user\nA"),
    (
        CHAT,
        {"messages": [{"content": {"type": "image_url", "image_url": "data:AAAA"}}]},
        {"content", "image", "role"},
        "[image_url left out",
    ),
    (
        CHAT,
        {"messages": chat_tool([{"text": "A"}, {"type": "hologram", "content": [{"type": "text", "text": "B"}]}])},
        {"part"},
        "AB",
    ),
    (CHAT, {"messages": chat_tool([[{"type": "text", "text": "A"}], "B"])}, set(), "AB"),
    (
        CHAT,
        {
            "messages": [
                USER,
                {"role": "assistant", "function_call": {"name": "b", "arguments": '{"x": 1}'}},
                {"role": "function", "content": "A"},
            ]
        },
        {"role"},
        '"name": "b", "arguments": {"x": 1}',
    ),
    (CHAT, {"tools": {"f": 1}, "program_id": 5, "model": None}, {"tool", "program_id", "model"}, ""),
    (MESSAGES, {"messages": [None, "A"]}, {"role", "part"}, "<|im_start|>user\nA"),
    (
        MESSAGES,
        {"messages": [USER, CALLED, {"role": "user", "content": ["B", {"type": "tool_result", "content": "A"}]}]},
        set(),
        "<tool_response>\nA",
    ),
    (
        MESSAGES,
        {"messages": result({"type": "image", "source": PNG})},
        {"content", "image"},
        "[image (image/png) left out",
    ),
    (MESSAGES, {"messages": [], "system": "A"}, set(), "A"),
    (RESPONSES, {"input": {"role": "user", "content": "A"}}, {"content"}, "A"),
    (RESPONSES, {"input": [None, 3, USER]}, {"role", "part"}, "<|im_start|>user\n3"),
    (RESPONSES, {"input": None, "instructions": "A"}, set(), "A"),
]


def body_of(path, more):
    return {"model": "tiny", **({"input": "x"} if path == RESPONSES else {"messages": [USER]}), **more}


@pytest.mark.parametrize(("path", "more", "kinds", "text"), CASES, ids=range(len(CASES)))
def test_it_becomes_a_prompt_and_is_named(renderer, path, more, kinds, text):
    (dialect,) = (dialect for dialect in DIALECTS if dialect.path == path)
    request = dialect.parse(orjson.dumps(body_of(path, more)), Arrived("tiny", pinned=True))
    assert request.notes == kinds <= KINDS
    prompt = renderer.decode(renderer.start(request.conversation.whole(), request.tools))
    assert text in prompt
    again = dialect.parse(orjson.dumps(body_of(path, more)), Arrived("tiny", pinned=True))
    assert again.conversation.hashes == request.conversation.hashes


FORMS = [
    (CHAT, {"stop": ["x"], "response_format": {"type": "json_object"}}, {"stop", "response_format"}),
    (CHAT, {"tool_choice": "required", "n": 2, "temperature": 9}, {"tool_choice", "n", "temperature"}),
    (
        CHAT,
        {"max_tokens": -1, "top_p": 0, "stream": "no", "guided_json": {"a": 1}},
        {"max_tokens", "top_p", "stream", "structured_outputs"},
    ),
    (
        MESSAGES,
        {"stop_sequences": ["x"], "tool_choice": {"type": "any"}, "max_tokens": 0},
        {"stop_sequences", "tool_choice", "max_tokens"},
    ),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema"}}}, {"output_config"}),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_schema"}}, "truncation": "auto", "store": "yes"},
        {"text", "truncation", "store"},
    ),
]


@pytest.mark.parametrize(("path", "more", "kinds"), FORMS, ids=range(len(FORMS)))
async def test_a_form_of_the_reply_ends_no_attempt_and_is_refused_where_a_client_began(serve, says, path, more, kinds):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, url), aiohttp.ClientSession() as http:
        gateway.open_session("s", PINNED)
        async with http.post(f"{gateway.session_url('s')}{path}", json=body_of(path, more)) as response:
            assert response.status == 200
            assert set(response.headers["X-SWE-RL-Notes"].split(", ")) == kinds <= KINDS
        async with http.post(f"{url}{path}", json=body_of(path, more)) as response:
            assert response.status == 400
        async with http.get(url.replace("/v1", "/metrics")) as response:
            metrics = await response.text()
        assert (await gateway.close_session("s")).notes == dict.fromkeys(kinds, 1)
    for kind in kinds:
        assert f'swe_rl_gateway_notes_total{{kind="{kind}"}} 1.0' in metrics


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_a_conversation_with_numbers_that_json_has_not_stays_in_its_chain(serve, says, path):
    """As Python's own writer sends them."""
    field = "input" if path == RESPONSES else "messages"
    said = [{"role": "user", "content": {"loss": float("nan"), "steps": 10**400}}]
    async with serve(ScriptedEngine(says("ok"))) as (gateway, store, _), aiohttp.ClientSession() as http:
        gateway.open_session("s", PINNED)
        for _ in range(3):
            raw = json.dumps({"model": "tiny", field: said}).encode()
            async with http.post(f"{gateway.session_url('s')}{path}", data=raw) as response:
                assert response.status == 200, await response.text()
            said = [*said, {"role": "assistant", "content": "ok"}, USER]
        summary = await gateway.close_session("s")
        assert (summary.breaks, summary.notes) == ({}, {"json": 3, "content": 3})
        assert [trace.chain for trace in store.traces("s")] == [0, 0, 0]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_values_that_a_client_wrote_in_another_way_mean_the_same(path):
    (dialect,) = (dialect for dialect in DIALECTS if dialect.path == path)
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    more = {limit: "40", "temperature": "0.5", "top_p": 1, "stream": "true"}
    request = dialect.parse(orjson.dumps(body_of(path, more)), Arrived("tiny"))
    assert (request.max_tokens, request.temperature, request.stream, request.notes) == (40, 0.5, True, frozenset())
    assert dialect.parse(orjson.dumps(body_of(path, {limit: 40.0})), Arrived("tiny")).max_tokens == 40
    for choice, calls in (({"type": "auto"}, True), ({"type": "none"}, False), ("none", False), ({}, True)):
        raw = orjson.dumps(body_of(path, {"tool_choice": choice}))
        assert dialect.parse(raw, Arrived("tiny")).calls == calls
    for wrong in ({limit: "many"}, {limit: 1.5}, {"temperature": "hot"}, {"tool_choice": {"type": "tool"}}):
        with pytest.raises(ApiError):
            dialect.parse(orjson.dumps(body_of(path, wrong)), Arrived("tiny"))


async def test_a_request_that_goes_on_from_a_reply_may_bring_nothing_new(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, _), aiohttp.ClientSession() as http:
        gateway.open_session("s", PINNED)
        url = f"{gateway.session_url('s')}{RESPONSES}"
        async with http.post(url, json={"input": "x"}) as response:
            first = await response.json()
        for more in ({}, {"input": []}):
            async with http.post(url, json={"previous_response_id": first["id"], **more}) as response:
                assert response.status == 200
        reference = {"id": first["output"][0]["id"]}  # its type may be left out
        async with http.post(url, json={"input": ["x", reference, "y"]}) as response:
            assert response.status == 200
        async with http.post(url, json={"input": [reference | {"id": "msg_unknown"}]}) as response:
            assert response.status == 400
        await gateway.close_session("s")


async def test_a_count_ends_at_no_form_and_a_call_of_nothing_is_told_to_its_session(serve, says):
    forms = {"stop_sequences": ["x"], "tool_choice": {"type": "any"}, "max_tokens": 0, "temperature": 9}
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, _), aiohttp.ClientSession() as http:
        gateway.open_session("s", PINNED)
        gateway.open_session("answered", PINNED)
        url = gateway.session_url("s")
        async with http.post(f"{url}{MESSAGES}/count_tokens", json=body_of(MESSAGES, forms)) as response:
            assert (response.status, list(await response.json())) == (200, ["input_tokens"])
        for name in ("s", "answered"):
            async with http.post(f"{gateway.session_url(name)}{RESPONSES}/compact", json={}) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")
        assert await ask(http, gateway.session_url("answered"), GOOD) == 200
        summary, answered = [await gateway.close_session(name) for name in ("s", "answered")]
    assert "/responses/compact" in summary.refused and "s/" not in summary.refused.split("sessions/")[1][:2]
    assert not answered.refused


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_a_stream_begins_long_before_its_reply(serve, says, path):
    """Its first event comes after a second, and not with the first sign of life, ten seconds later."""

    class Held(ScriptedEngine):
        async def generate(self, *prompt, **options):
            await begun.wait()
            return await super().generate(*prompt, **options)

    begun = asyncio.Event()
    async with (
        serve(Held(says("ok"))) as (_, _, url),
        aiohttp.ClientSession() as http,
        asyncio.timeout(8),
        http.post(f"{url}{path}", json=body_of(path, {"stream": True})) as response,
    ):
        first = await response.content.readuntil(b"\n\n")
        begun.set()
        rest = await response.text()
    assert {CHAT: b"assistant", MESSAGES: b"message_start", RESPONSES: b"response.created"}[path] in first
    assert "ok" in rest


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_a_conversation_with_half_characters_stays_in_its_chain(serve, says, path):
    """In a result, a key, a description: anywhere. And the model's own, which no client can send back as it was."""
    said = {"tool_calls": [{"function": {"name": "bash", "arguments": '{"command": "echo \\ud83d"}'}}]}
    async with serve(ScriptedEngine(says({"role": "assistant", "content": "", **said}))) as (gateway, store, _):
        gateway.open_session("s", PINNED)
        tool = {"name": "bash", "description": HALF, "parameters": {"type": "object"}}
        asked = {
            CHAT: {"messages": [USER], "tools": [{"type": "function", "function": tool}]},
            MESSAGES: {"messages": [USER], "tools": [{"name": "bash", "input_schema": {HALF: 1}}]},
            RESPONSES: {"input": [USER], "tools": [{"type": "function", **tool}]},
        }[path]
        async with aiohttp.ClientSession() as http:
            for _ in range(3):
                raw = json.dumps({"model": "tiny", **asked}).encode()
                async with http.post(f"{gateway.session_url('s')}{path}", data=raw) as response:
                    assert response.status == 200, await response.text()
                    assert response.headers["X-SWE-RL-Notes"] == "surrogates"
                    reply = json.loads(await response.read())
                asked = told(path, asked, reply)
        summary = await gateway.close_session("s")
        assert (summary.breaks, summary.notes) == ({}, {"surrogates": 3})
        assert [trace.chain for trace in store.traces("s")] == [0, 0, 0]


def told(path, asked, reply):
    """The next request: with the result of the call."""
    if path == CHAT:
        message = reply["choices"][0]["message"]
        tool = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": f"a{HALF}"}
        return {**asked, "messages": [*asked["messages"], message, tool]}
    if path == MESSAGES:
        content = [{"type": "tool_result", "tool_use_id": reply["content"][-1]["id"], "content": f"a{HALF}"}]
        said = [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": content}]
        return {**asked, "messages": [*asked["messages"], *said]}
    item = {"type": "function_call_output", "call_id": reply["output"][-1]["call_id"], "output": f"a{HALF}"}
    return {**asked, "input": [*asked["input"], *reply["output"], item]}


async def test_a_known_message_is_counted_with_each_call_that_sends_it(serve, says):
    """Also where it is not read again."""
    messages = chat_tool([{"type": "image_url"}])
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, _), aiohttp.ClientSession() as http:
        gateway.open_session("s", PINNED)
        for _ in range(3):
            async with http.post(f"{gateway.session_url('s')}{CHAT}", json={"messages": messages}) as response:
                messages = [*messages, (await response.json())["choices"][0]["message"], USER]
        summary = await gateway.close_session("s")
    assert (summary.notes, summary.breaks) == ({"image": 3}, {})


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_no_tool_choice_keeps_the_prompt_and_gives_no_calls(serve, says, path):
    said = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "bash", "arguments": {}}}]}
    tool = {"name": "bash", "parameters": {"type": "object"}}
    tools = {
        CHAT: [{"type": "function", "function": tool}],
        MESSAGES: [{"name": "bash", "input_schema": {"type": "object"}}],
        RESPONSES: [{"type": "function", **tool}],
    }[path]
    none = {"type": "none"} if path == MESSAGES else "none"
    async with serve(ScriptedEngine(says(said))) as (gateway, store, _), aiohttp.ClientSession() as http:
        gateway.open_session("s", PINNED)
        for choice in ({}, {"tool_choice": none}):
            async with http.post(
                f"{gateway.session_url('s')}{path}", json=body_of(path, {"tools": tools, **choice})
            ) as response:
                text = await response.text()
        await gateway.close_session("s")
        first, second = store.traces("s")
    assert second.delta_ids.tolist() == first.delta_ids.tolist()  # sent again, with the same prompt
    assert "tool_call>" in text and "call_" not in text


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_a_body_may_be_packed_and_what_cannot_be_unpacked_is_refused_in_its_form(serve, says, path):
    raw = orjson.dumps(body_of(path, {}))
    bare = zlib.compressobj(wbits=-15)
    packed = [
        ("gzip", gzip.compress(raw), 200),
        ("deflate", zlib.compress(raw), 200),
        ("deflate", bare.compress(raw) + bare.flush(), 200),
        ("identity", raw, 200),
        ("zstd", raw, 415),
        ("gzip", raw, 400),
        ("gzip", gzip.compress(raw)[:-9], 400),
        ("gzip", gzip.compress(b" " * 2**21), 413),
    ]
    async with serve(ScriptedEngine(says("ok"))) as (_, _, url), aiohttp.ClientSession() as http:
        for encoding, data, status in packed:
            headers = {"Content-Encoding": encoding}
            async with http.post(f"{url}{path}", data=data, headers=headers, compress=None) as response:
                assert (response.status, response.content_type) == (status, "application/json"), encoding
                answer = await response.json()
            assert status == 200 or (answer["error"]["message"] and (path != MESSAGES or answer["type"] == "error"))


async def test_a_model_can_be_looked_up_by_its_name(serve, says):
    async with serve(ScriptedEngine(says("ok")), model_path="org/model") as (gateway, _, url):
        gateway.open_session("s", PINNED)
        async with aiohttp.ClientSession() as http:
            for root in (url, gateway.session_url("s")):
                for name in ("tiny", "org/model", "org%2Fmodel"):
                    async with http.get(f"{root}/models/{name}") as response:
                        assert (await response.json())["id"] == "tiny"
                async with http.get(f"{root}/models/other") as response:
                    assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")


def test_a_mender_that_is_not_pinned_refuses_values_and_forms():
    mender = Mender()
    with pytest.raises(ApiError, match="'stop'"):
        mender.refuse_forms({"stop": True})
    assert mender.kinds == set()


async def ask(http, url, raw, path=CHAT):
    async with http.post(f"{url}{path}", data=raw) as response:
        await response.read()
        return response.status


GOOD, BROKEN = orjson.dumps({"messages": [USER]}), b"{"
TOOLED = orjson.dumps({"messages": [USER], "tools": [{"type": "function", "function": {"name": "bash"}}]})


@pytest.mark.parametrize(
    ("bodies", "refused"),
    [
        ([BROKEN], True),
        ([GOOD, BROKEN], True),
        ([BROKEN, GOOD], False),
        ([GOOD, b'{"model": "small", "messages": []}'], False),  # asked beside its own conversation
        ([b'{"model": "small", "messages": []}'], True),
        ([TOOLED, BROKEN], False),  # its program has all that it wanted: anybody in the sandbox may have sent this
    ],
)
async def test_a_session_tells_whether_its_last_call_was_refused_for_its_form(serve, says, bodies, refused):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, _), aiohttp.ClientSession() as http:
        gateway.open_session("s", PINNED)
        for raw in bodies:
            await ask(http, gateway.session_url("s"), raw)
        summary = await gateway.close_session("s")
    assert bool(summary.refused) == refused and not summary.failed


async def test_a_refused_form_takes_the_place_of_no_other_end(serve, says):
    """Else a policy could turn an end that is trained into one that is not."""
    engine = ScriptedEngine(says("ok"))
    async with serve(engine) as (gateway, _, _), aiohttp.ClientSession() as http:
        gateway.open_session("calls", SessionSettings(max_turn_tokens=9, max_trajectory_tokens=900, max_calls=1))
        gateway.open_session("full", SessionSettings(max_turn_tokens=9, max_trajectory_tokens=3))
        gateway.open_session("large", PINNED)
        for session in ("calls", "full"):
            for raw in (GOOD, GOOD, BROKEN):
                await ask(http, gateway.session_url(session), raw)
        assert await ask(http, gateway.session_url("large"), b"x" * (2 << 20)) == 413
        calls, full, large = [await gateway.close_session(name) for name in ("calls", "full", "large")]
    assert calls.had_all_calls and full.overflowed and not calls.refused and not full.refused
    assert large.overflowed and not large.refused  # a body beyond all bounds is a full context


async def test_who_does_not_know_the_secret_refuses_no_call_of_a_session(serve, says):
    async with serve(ScriptedEngine(says("ok"))) as (gateway, _, url), aiohttp.ClientSession() as http:
        gateway.open_session("s", PINNED)
        root = url.removesuffix("/v1")
        for address in (f"{root}/sessions/s/v1", f"{root}/sessions/s/guessed/v1"):
            await ask(http, address, BROKEN)
        assert not (await gateway.close_session("s")).refused


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_a_slow_reply_is_told_of_by_events_and_adds_up(serve, says, path):
    engine = ScriptedEngine(says("slow and sure"), token_delay_s=0.03)
    asked = body_of(path, {"stream": True, "max_tokens": 90} if path != RESPONSES else {"stream": True})
    async with (
        serve(engine, heartbeat_s=0.03) as (_, _, url),
        aiohttp.ClientSession() as http,
        http.post(f"{url}{path}", json=asked) as response,
    ):
        text = await response.text()
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    assert not any(line.startswith(":") for line in text.split("\n"))
    kinds = [event.get("type") or tuple(event["choices"][0]["delta"]) for event in events]
    begun, alive = {
        CHAT: (("role", "content"), ()),
        MESSAGES: ("message_start", "ping"),
        RESPONSES: ("response.created", "response.in_progress"),
    }[path]
    assert kinds[0] == begun and kinds.count(alive) > 3
    if path == RESPONSES:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}
    said = {CHAT: "content", MESSAGES: "text", RESPONSES: "delta"}[path]
    places = [event["choices"][0]["delta"] if path == CHAT else event.get("delta", event) for event in events]
    places = events if path == RESPONSES else places
    assert "".join(str(place.get(said) or "") for place in places) == "slow and sure"


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_what_is_known_before_a_reply_is_sampled_is_an_http_error(serve, says, path, monkeypatch):
    """Also where reading and rendering took longer than a heartbeat."""
    render = asyncio.to_thread

    async def slowly(*call):
        await asyncio.sleep(0.2)
        return await render(*call)

    monkeypatch.setattr(asyncio, "to_thread", slowly)
    more = {"stream": True, "input" if path == RESPONSES else "messages": [{**USER, "content": "a b " * 3000}]}
    async with (
        serve(ScriptedEngine(says("ok")), heartbeat_s=0.02) as (_, _, url),
        aiohttp.ClientSession() as http,
        http.post(f"{url}{path}", json=body_of(path, more)) as response,
    ):
        assert (response.status, response.content_type) == (400, "application/json")
        error = (await response.json())["error"]
    words = "prompt is too long: " if path == MESSAGES else "This model's maximum context length is 2048 tokens."
    assert error["message"].startswith(words) and error.get("code") in (None, "context_length_exceeded")
