import json

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.gateway import session as fingerprint
from swe_rl.gateway.session import KnownPrefixes, extend_hash, prefix_hashes

TOOLS = [{"type": "function", "function": {"name": "bash"}}]


def said(text, *calls):
    functions = [{"function": {"name": "f", "arguments": json.dumps(one)}} for one in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": functions} if functions else {})}


def user(text):
    return {"role": "user", "content": text}


def counting(monkeypatch):
    """The messages whose hash was worked out."""
    worked_out = []

    def extend(prefix, message):
        worked_out.append(message["content"])
        return extend_hash(prefix, message)

    monkeypatch.setattr(fingerprint, "extend_hash", extend)
    return worked_out


def test_only_new_messages_are_worked_out(monkeypatch):
    worked_out, known, messages = counting(monkeypatch), KnownPrefixes(), [user("0")]
    for turn in range(1, 6):
        hashes, new = known.hashes(messages, TOOLS), list(worked_out)
        assert hashes == tuple(prefix_hashes(messages, TOOLS))
        assert new == [message["content"] for message in messages[-2:]][-len(new) :]
        assert len(new) == min(2, len(messages))
        messages = [*orjson.loads(orjson.dumps(messages)), said(f"a{turn}"), user(f"{turn}")]
        worked_out.clear()


def test_conversations_that_take_turns_are_all_known(monkeypatch):
    worked_out, known = counting(monkeypatch), KnownPrefixes()
    talks = [[user(f"{name} {i}") for i in range(20 + index)] for index, name in enumerate("abcd")]
    for _ in range(3):
        worked_out.clear()
        for talk in talks:
            known.hashes(talk, None)
            talk += [said("x"), user("y")]
    assert len(worked_out) == 8
    assert len(known._hashes) == 4


def test_other_tools_or_a_changed_message_are_another_conversation():
    known, messages = KnownPrefixes(), [user("a"), said("b"), user("c")]
    first = known.hashes(messages, None)
    assert known.hashes(messages, TOOLS) == tuple(prefix_hashes(messages, TOOLS)) != first
    for index in range(3):
        changed = [*messages[:index], {**messages[index], "content": "z"}, *messages[index + 1 :], user("d")]
        assert known.hashes(changed, None) == tuple(prefix_hashes(changed, None))


def test_what_orjson_cannot_write_is_hashed_all_the_same():
    deep: object = 1
    for _ in range(400):
        deep = {"a": deep}
    messages = [user("a"), said("b", deep)]
    messages[1]["tool_calls"][0]["function"]["arguments"] = deep
    known = KnownPrefixes()
    assert known.hashes(messages, None) == tuple(prefix_hashes(messages, None)) == known.hashes(messages, None)


def test_memory_is_bounded():
    known = KnownPrefixes()
    for number in range(50):
        known.hashes([user(f"{number}")], None)
    assert len(known._hashes) == fingerprint._KEPT


_text = st.text(st.sampled_from('a" ,[]{}\0\n'), max_size=4)
_message = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "tool", "system"]), _text),
    st.builds(said, _text, st.dictionaries(_text, _text, max_size=1)),
    st.builds(said, _text),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6), st.lists(_message, max_size=3)), max_size=12))
def test_hashes_are_always_those_of_the_prefixes(requests):
    known, asked = KnownPrefixes(), [[user("a")]]
    for pick, keep, new in requests:
        messages = [*asked[pick % len(asked)][:keep], *new]
        tools = TOOLS if pick % 5 == 0 else None
        assert known.hashes(messages, tools) == tuple(prefix_hashes(messages, tools))
        asked.append(messages)


@settings(max_examples=300, deadline=None)
@given(_message, _message)
def test_messages_that_differ_to_the_model_have_other_hashes(one, other):
    def meant(message):
        if message["role"] != "assistant":
            return message
        calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", [])]
        return {"role": "assistant", "content": message["content"].strip(), "calls": calls}

    assert (extend_hash(b"p" * 16, one) == extend_hash(b"p" * 16, other)) == (meant(one) == meant(other))
