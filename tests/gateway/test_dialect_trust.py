"""Whatever a client sends, in any dialect: it is refused in that dialect's form, or it becomes a prompt and a reply."""

import asyncio
import copy
import json
import time
from types import SimpleNamespace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.errors import ApiError
from swe_rl.gateway.reply import ChatAnswer
from swe_rl.gateway.request import Arrived
from swe_rl.gateway.routes import DIALECTS
from swe_rl.gateway.session import Session
from swe_rl.model.chat import ChatRenderer
from tests.gateway.test_gateway_completion import SETTINGS, Door

CALL = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"a": [1.5, null]}'}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "array"}}}
BODIES = {
    "/chat/completions": {
        "model": "m", "max_tokens": 9, "temperature": 0.5, "tool_choice": "auto", "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}],
        "messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "t"},
        ],
    },
    "/messages": {
        "model": "m", "max_tokens": 9, "temperature": 0.5, "top_k": 4, "tool_choice": {"type": "auto"}, "stream": True,
        "tools": [{"name": "bash", "description": "d", "input_schema": SCHEMA}],
        "system": [{"type": "text", "text": "s"}], "output_config": {"effort": "low"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "r", "signature": ""}, {"type": "text", "text": "x"},
                {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"a": [1.5, None]}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "t"}]},
            ]},
        ],
    },
    "/responses": {
        "model": "m", "max_output_tokens": 9, "temperature": 0.5, "tool_choice": "auto", "stream": True, "store": True,
        "instructions": "s", "text": {"format": {"type": "text"}}, "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "tools": [{"type": "function", "name": "bash", "parameters": SCHEMA, "strict": True}],
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
            {"type": "function_call", "call_id": "call_1", "name": "bash", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "t"},
        ],
    },
}  # fmt: skip
MESSAGE = {"role": "assistant", "content": "c", "reasoning_content": "r" * 60, "tool_calls": [CALL]}
USAGE = {
    "prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1},
}  # fmt: skip
ANSWER = ChatAnswer("s-0", 1, "m", MESSAGE, "tool_calls", USAGE, None)

anything = st.recursive(
    st.sampled_from(
        [None, True, False, 0, -1, 1.5, 2**62, "", "x", "user", "assistant", "text", "tool_use", "\U0001f600"]
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "name", "input", "output", "anyOf"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


def places(value, path=()):
    """The way to each value in a body."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*path, key))


def changed(body, path, other):
    """With another value there, or without it (`...`)."""
    body = copy.deepcopy(body)
    holder = body
    for key in path[:-1]:
        holder = holder[key]
    if other is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = other
    return body


def drawn(data, body, *others):
    """The body with one or two of its places left out, or with something else there."""
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([path for path in places(body) if path]))
        body = changed(body, path, data.draw(st.one_of(st.just(...), *others)))
    return body


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
def test_a_body_that_nobody_changed_is_taken(renderer, dialect):
    request = dialect.parse(orjson.dumps(BODIES[dialect.path]), Arrived("m"))
    assert request.stream and request.max_tokens == 9 and request.temperature == 0.5
    assert [message["role"] for message in request.conversation.whole()][:2] == ["system", "user"]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
@given(data=st.data())
def test_any_change_is_refused_or_answered(renderer, dialect, data):
    body = drawn(data, BODIES[dialect.path], anything)
    try:
        request = dialect.parse(orjson.dumps(body), Arrived("m"))
    except ApiError as error:
        assert 400 <= error.status < 500 and "\n" not in error.message and len(error.message) < 1000
        assert orjson.dumps(dialect.error(error))
        return
    session = Session(renderer)
    draft = session.draft(request.conversation)
    plan = session.plan(draft, draft.render(renderer))
    session.record(plan, (300, 2), MESSAGE)
    assert orjson.dumps(dialect.whole(request, ANSWER))
    assert b"".join(dialect.events(request, ANSWER)).endswith(b"\n\n")
    if request.kept is not None:
        assert orjson.dumps(list(request.kept.messages))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"3", b"\xff", b'{"model": "m"}', b'{"messages": 3, "input": 3}'])
def test_what_is_no_request_is_refused(dialect, raw):
    with pytest.raises(ApiError) as refused:
        dialect.parse(raw, Arrived("m"))
    assert refused.value.status == 400


ROOMY = {path: {**body, next(key for key in body if key.startswith("max_")): 900} for path, body in BODIES.items()}
SAID = "<tool_call>\n<function=bash>\n<parameter=a>\n[1]\n</parameter>\n</function>\n</tool_call><|im_end|>"
DEEP = {b'"@260"': b"[" * 260 + b"1" + b"]" * 260, b'"@990"': b'{"a":' * 990 + b"1" + b"}" * 990}


@pytest.fixture(scope="module")
def answered(tokenizer, tmp_path_factory):
    """Asks a session of its own with a raw body; None where it was refused before anything was sampled."""
    coder, ids = ChatRenderer(tokenizer, template="qwen_coder"), tokenizer.encode(SAID, add_special_tokens=False)
    engine = ScriptedEngine(lambda prompt: ids, max_model_len=10**6)
    door, numbers = (
        Door([engine], coder, tmp_path_factory.mktemp("trust") / "traces.db", "qwen3_coder"),
        iter(range(10**6)),
    )

    async def answer(dialect, raw):
        name, asked = f"s{next(numbers)}", len(engine.requests)
        door.sessions.open(name, SETTINGS)
        live = door.sessions.find(name, door.sessions.secret(name))
        try:
            request = dialect.parse(raw, Arrived("m"))
            answer = await door.completer.complete(live, request)
        except ApiError as error:
            assert 400 <= error.status < 500 and len(engine.requests) == asked and not live.failed
            return None
        assert live.num_calls == 1 and live.sampled_tokens and not live.failed
        whole = orjson.dumps(dialect.whole(request, answer))
        assert b"".join(dialect.events(request, answer)).endswith(b"\n\n")
        return SimpleNamespace(answer=answer, whole=whole)

    with asyncio.Runner() as runner:
        runner.run(started(door))
        yield lambda dialect, raw: runner.run(answer(dialect, raw))
    door.store.close()


async def started(door):
    door.placement.start()


def written(body):
    raw = orjson.dumps(body)
    for mark, deep in DEEP.items():
        raw = raw.replace(mark, deep)
    return raw


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
@given(data=st.data())
def test_what_was_sampled_is_recorded_and_answered(answered, dialect, data):
    answered(dialect, written(drawn(data, ROOMY[dialect.path], anything, st.sampled_from(["@260", "@990"]))))


@pytest.mark.parametrize("schema", [{"anyOf": 1}, {"oneOf": True}, {"type": 7}, {"anyOf": {"type": "array"}}, 3])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
def test_a_tool_may_have_any_schema(answered, dialect, schema):
    (way,) = (path for path in places(ROOMY[dialect.path]) if path[-2:] == ("properties", "a"))
    assert answered(dialect, written(changed(ROOMY[dialect.path], way, schema))).answer.calls


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
def test_a_large_schema_is_read_in_no_square_of_its_time(answered, dialect):
    (way,) = (path for path in places(ROOMY[dialect.path]) if path[-2:] == ("properties", "a"))
    schema, began_s = {"anyOf": [{"type": "array"}] * 20_000}, time.monotonic()
    assert answered(dialect, written(changed(ROOMY[dialect.path], way, schema))).answer.calls
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("mark", ["@260", "@990"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
def test_what_is_nested_deeply_anywhere_is_answered_or_refused(answered, dialect, mark):
    """`orjson` reads deeper than it writes."""
    body = ROOMY[dialect.path] | {"user": "u", "prompt_cache_key": "k", "safety_identifier": "i"}
    for path in places(body):
        if path:
            answered(dialect, written(changed(body, path, mark)))


@pytest.mark.parametrize("field", ["metadata", "reasoning", "user", "tools"])
def test_how_deep_an_echoed_field_may_be_is_known_before_anything_is_sampled(answered, field):
    """Each level around orjson's limit, with what the reply and the events of a stream put around it."""
    (dialect,) = (dialect for dialect in DIALECTS if dialect.path == "/responses")
    taken = []
    for levels in range(240, 258):
        deep = "1"
        for _ in range(levels):
            deep = {"a": deep}
        value = [{"type": "function", "name": "f", "parameters": deep}] if field == "tools" else deep
        # The limit is that of writing, so the body is written by hand.
        body = b'{"input": "x", "stream": true, "%s": %s}' % (field.encode(), json.dumps(value).encode())
        taken.append(answered(dialect, body) is not None)
    assert taken == sorted(taken, reverse=True) and taken[0] and not taken[-1]
