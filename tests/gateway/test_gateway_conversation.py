"""Requests that are read in parts are what they are when they are read whole."""

import gc
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.gateway import conversation as module
from swe_rl.gateway.conversation import KnownBodies, extend_hash, prefix_hashes
from swe_rl.gateway.dialects.chat import ChatCompletions
from swe_rl.gateway.errors import ApiError
from swe_rl.gateway.request import Arrived, program_named

TOOLS = [{"type": "function", "function": {"name": "bash"}}]


def said(text, *calls):
    functions = [{"function": {"name": "f", "arguments": json.dumps(call)}} for call in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": functions} if functions else {})}


def user(text):
    return {"role": "user", "content": text}


def ask(known, messages, tools=None, name="s", **more):
    """As the gateway does: read, then kept."""
    raw = orjson.dumps({"messages": messages, "model": "m", **({"tools": tools} if tools else {}), **more})
    request = ChatCompletions().parse(raw, Arrived("m", known, name))
    if request.sent is not None:
        known.keep(name, request.sent)
    return request.conversation


@pytest.fixture
def worked_out(monkeypatch):
    """The contents of the messages that were hashed."""
    contents = []

    def extend(prefix, message):
        contents.append(message["content"])
        return extend_hash(prefix, message)

    monkeypatch.setattr(module, "extend_hash", extend)
    return contents


def test_only_new_messages_are_parsed_and_worked_out(worked_out):
    known, messages = KnownBodies(), [user("0")]
    for turn in range(1, 6):
        conversation, new = ask(known, messages, TOOLS), list(worked_out)
        assert [message["content"] for message in conversation.new] == new
        assert new == [message["content"] for message in messages[-2:]]
        assert conversation.known == len(messages) - len(new)
        assert conversation.hashes == prefix_hashes(messages, TOOLS)
        assert conversation.whole() == conversation.since(0) == messages
        messages = [*messages, said(f"a{turn}"), user(f"{turn}")]
        worked_out.clear()
    assert len(known._sent["s"]) == 1


def test_conversations_that_take_turns_are_all_known(worked_out):
    known = KnownBodies()
    talks = [[user(f"{name} {i}") for i in range(20 + index)] for index, name in enumerate("abcd")]
    for _ in range(3):
        worked_out.clear()
        for talk in talks:
            ask(known, talk)
            talk += [said("x"), user("y")]
    assert len(worked_out) == 8
    assert len(known._sent["s"]) == 4


def test_a_mark_that_moves_to_the_newest_message_costs_the_last_messages_only(worked_out):
    """Clients put a mark for a cache on the last message, and take it from the one before."""
    known, messages = KnownBodies(), [user(f"{i}") for i in range(30)]
    for turn in range(4):
        worked_out.clear()
        marked = {**messages[-1], "content": [{"type": "text", "text": messages[-1]["content"], "cache": 1}]}
        conversation, new = ask(known, [*messages[:-1], marked]), len(worked_out)
        assert conversation.hashes == prefix_hashes(messages, None)
        messages = [*messages, said(f"a{turn}"), user(f"b{turn}")]
    assert new == 3
    assert len(known._sent["s"]) == 1


def test_what_stands_around_the_messages_may_change(worked_out):
    known, messages = KnownBodies(), [user("a"), said("b"), user("c")]
    ask(known, messages, temperature=1.0)
    worked_out.clear()
    raw = json.dumps({"max_tokens": 7, "model": "m", "messages": messages}, separators=(",", ":")).encode()
    request = ChatCompletions().parse(raw, Arrived("m", known, "s"))
    assert (request.max_tokens, request.conversation.known, worked_out) == (7, 3, [])


def test_other_tools_or_a_changed_message_are_another_conversation():
    known, messages = KnownBodies(), [user("a"), said("b"), user("c")]
    first = ask(known, messages)
    assert ask(known, messages, TOOLS).hashes == prefix_hashes(messages, TOOLS) != first.hashes
    assert ask(known, messages, TOOLS, tool_choice="none").hashes == prefix_hashes(messages, TOOLS)
    for index in range(3):
        changed = [*messages[:index], {**messages[index], "content": "z"}, *messages[index + 1 :], user("d")]
        assert ask(known, changed).hashes == prefix_hashes(changed, None)


def test_a_known_message_is_not_read_again_and_a_new_one_is():
    known, messages = KnownBodies(), [user("a"), said("b"), user("c")]
    ask(known, messages)
    conversation = ask(known, [*messages, "d"])
    assert (conversation.known, list(conversation.new)) == (3, [user("d")])


def test_memory_is_bounded_and_given_back():
    known = KnownBodies(limit_bytes=10_000)
    for number in range(50):
        ask(known, [user(f"{number}")])
    assert len(known._sent["s"]) == module._KEPT
    for number in range(50):
        ask(known, [user("x" * 900)], name=f"{number}")
        assert known.held_bytes == sum(len(sent.raw) for kept in known._sent.values() for sent in kept) <= 10_000
    assert 5 < len(known._sent) < 12 and "s" not in known._sent and "49" in known._sent
    for name in list(known._sent):
        known.forget(name)
    assert known.held_bytes == 0
    ask(known, [user("x" * 20_000)], name="large")
    assert known.held_bytes == 0


def test_what_is_long_and_new_is_not_scanned(monkeypatch):
    monkeypatch.setattr(module, "_LONGEST_BYTES", 100)
    known = KnownBodies()
    assert ask(known, [user("x" * 200)]).hashes == prefix_hashes([user("x" * 200)], None)
    assert not known._sent


def test_a_body_does_not_hold_those_before_it():
    """Each is a part of the next: together they would grow with the square of the turns."""
    known, messages = KnownBodies(), [user("held by nobody")]
    for turn in range(5):
        ask(known, messages)
        messages = [*messages, said(f"{turn}"), user(f"{turn}")]
    gc.collect()
    bodies = [held for held in gc.get_objects() if type(held) is module.SentBody and b"held by nobody" in held.raw]
    assert len(bodies) == 1


_DEEP: object = 1
for _ in range(400):
    _DEEP = {"a": _DEEP}


def test_what_is_nested_deeply_is_the_same_or_refused_the_same():
    messages = [user("a"), {"role": "assistant", "content": "b", "tool_calls": [{"function": {"name": "f"}}]}]
    messages[1]["tool_calls"][0]["function"]["arguments"] = _DEEP
    raw, known = json.dumps({"messages": messages}).encode(), KnownBodies()
    assert outcome(raw, known) == outcome(raw, None)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b'{"program_id":"p1","messages":[]}', "p1"),
        (b'{"messages":[' + b" " * 5000 + b'], "program_id" : "p2"}', "p2"),
        (b'{"program_id":7}', ""),
    ],
)
def test_a_program_is_found_at_either_end(raw, name):
    assert program_named(raw) == name


_text = st.text(st.sampled_from('a" ,[]{}\\\0\n'), max_size=4)
_message = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "tool", "system"]), _text),
    st.builds(said, _text, st.dictionaries(_text, _text, max_size=1)),
    st.builds(said, _text),
)


def written(messages, tools, layout):
    """The same request as clients write it."""
    fields = {"messages": messages, "model": "m"}
    if tools:
        fields = {"tools": tools, **fields} if layout % 2 else {**fields, "tools": tools}
    if layout % 3 == 1:
        fields = {"max_tokens": layout + 1, **dict(reversed(fields.items()))}
    if layout % 5 == 1:
        return json.dumps(fields, indent=layout % 3).encode()
    return json.dumps(fields).encode() if layout % 7 == 1 else orjson.dumps(fields)


def outcome(raw, known, name="s"):
    """All that a request says, or how it is refused."""
    try:
        request = ChatCompletions().parse(raw, Arrived("m", known, name))
    except ApiError as error:
        return error.status, error.message, error.param
    if request.sent is not None:
        known.keep(name, request.sent)
    conversation = request.conversation
    messages = list(conversation.whole())
    assert list(conversation.since(conversation.known)) == list(conversation.new) == messages[conversation.known :]
    assert list(conversation.hashes) == prefix_hashes(messages, conversation.tools)
    assert list(conversation.assistant) == [message["role"] == "assistant" for message in messages]
    return messages, list(conversation.hashes), request.tools, request.max_tokens


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 6), st.lists(_message, max_size=3), st.integers(0, 20)),
        max_size=12,
    )
)
def test_requests_read_in_parts_are_those_read_whole(requests):
    known, asked = KnownBodies(), [[user("a")]]
    for pick, keep, new, layout in requests:
        messages = [*asked[pick % len(asked)][:keep], *new]
        raw = written(messages, TOOLS if pick % 5 == 0 else None, layout)
        assert outcome(raw, known) == outcome(raw, None)
        asked.append(messages)


@given(
    st.lists(_message, min_size=1, max_size=4),
    st.lists(_message, max_size=2),
    st.integers(0, 20),
    st.integers(0, 10_000),
    st.integers(0, 12),
    st.sampled_from(
        [
            b"",
            b",",
            b"]",
            b"[",
            b"}",
            b"{",
            b'"',
            b"\\",
            b"0",
            b" ",
            b'"messages":[]',
            b',"messages":[]',
            b"[],",
            b"\xff",
        ]
    ),
)
def test_a_damaged_request_is_refused_or_understood_as_when_read_whole(before, new, layout, at, cut, put):
    """Whatever bytes come after a sound request of the same session."""
    known = KnownBodies()
    outcome(written(before, None, layout), known)
    raw = written([*before, *new], None, layout)
    at %= len(raw) + 1
    damaged = raw[:at] + put + raw[at + cut :]
    assert outcome(damaged, known) == outcome(damaged, None)
    assert outcome(raw, known) == outcome(raw, None)


@pytest.mark.parametrize("new", [b"", b'{"role":"user","content":"b"}'])
@pytest.mark.parametrize(
    "glue", [b"", b",", b" , ", b"0", b"{", b'"', b",,", b" ", b"]", b"}", b",null,", b'"",', b"],[", b":"]
)
def test_what_follows_a_known_message(glue, new):
    known, first = KnownBodies(), b'{"messages":[{"role":"user","content":"a"}'
    outcome(first + b"]}", known)
    raw = first + glue + new + b"]}"
    assert outcome(raw, known) == outcome(raw, None)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"m\\u0065ssages":[{"role":"user","content":"b"}]}',
        b'{"metadata":{"messages":[{"role":"user","content":"a"}]},"messages":[{"role":"user","content":"b"}]}',
        b'{"metadata":"\\"messages\\":[1]","messages":[{"role":"user","content":"b"}]}',
        b'{"x\\"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}',
        b'{"messages":[1,{"role":"user","content":"b"}]}',
        b'{"messages":[{"role":"user","content":"b"},null]}',
        b'{"messages":[[{"role":"user","content":"b"}]]}',
        b'{"messages":[]}',
        b'{"messages":[{"role":"user","content":"b"},]}',
        b'[{"messages":[{"role":"user","content":"b"}]}]',
    ],
)
def test_odd_requests(raw):
    known = KnownBodies()
    for _ in range(2):
        assert outcome(raw, known) == outcome(raw, None)


@given(_message, _message)
def test_messages_that_differ_to_the_model_have_other_hashes(first, second):
    def meant(message):
        if message["role"] != "assistant":
            return message
        calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", [])]
        return {"role": "assistant", "content": message["content"].strip(), "calls": calls}

    assert (extend_hash(b"p" * 16, first) == extend_hash(b"p" * 16, second)) == (meant(first) == meant(second))
