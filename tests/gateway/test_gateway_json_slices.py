"""A large body is parsed as `orjson` parses it, and the parser never gets more than a slice of it."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.gateway import json_repair, json_slices
from swe_rl.gateway.conversation import KnownBodies
from swe_rl.gateway.dialects.chat import ChatCompletions
from swe_rl.gateway.errors import ApiError
from swe_rl.gateway.request import Arrived
from swe_rl.model import long_text

TEXTS = st.text('ab"\\{}[],:/é😀\n\x00', max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=40,
)


def outcome(read, raw):
    try:
        return read(raw)
    except orjson.JSONDecodeError:
        return "it is not JSON"


@given(VALUES, st.integers(16, 64), st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]))
def test_a_sound_body_has_the_same_value(value, parser_bytes, scan_bytes, escaped, indent):
    raw = json.dumps(value, ensure_ascii=escaped, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_slices, "SLICE_BYTES", parser_bytes)
        patch.setattr(json_slices, "_SCANNED_BYTES", scan_bytes)
        assert json_slices.loads(raw) == orjson.loads(raw)


@given(
    VALUES,
    st.integers(0, 10**6),
    st.sampled_from(
        [b"", b",", b"]", b"[", b'"', b"{", b"}", b":", b"\\", b" ", b"\\ud83d", b"\\u12", b"\xe9", b"1 1"]
    ),
    st.integers(0, 3),
    st.integers(16, 64),
)
def test_a_damaged_body_is_refused_where_orjson_refuses_it(value, place, put_in, removed, parser_bytes):
    raw = json.dumps(value).encode()
    place %= len(raw) + 1
    raw = raw[:place] + put_in + raw[place + removed :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_slices, "SLICE_BYTES", parser_bytes)
        patch.setattr(json_slices, "_SCANNED_BYTES", 20)
        assert outcome(json_slices.loads, raw) == outcome(orjson.loads, raw)


ESCAPES = st.lists(
    st.sampled_from(["a", "\\\\", "\\n", "\\u00e9", "\\ud83d", "\\ude00", "\\ud83d\\ude00", "é", "😀"]), max_size=60
)


@given(ESCAPES, st.integers(16, 40))
def test_half_characters_are_replaced_as_in_one_piece(parts, parser_bytes):
    raw = "".join(parts).encode()
    whole = json_repair.replace_lone_surrogates(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_slices, "SLICE_BYTES", parser_bytes)
        assert json_repair.replace_lone_surrogates(raw) == whole


def asked(content, **more):
    return {"messages": [{"role": "user", "content": content}], **more}


BODIES = {
    "text": json.dumps(asked("ab\n" * 1_000_000)).encode(),
    "characters of four bytes": json.dumps(asked("é😀" * 500_000), ensure_ascii=False).encode(),
    "messages": json.dumps({"messages": asked("a")["messages"] * 20_000}).encode(),
    "tools": json.dumps(asked("a", tools=[{"function": {"name": "f", "description": "d" * 400}}] * 5_000)).encode(),
    "half characters": b'{"messages":[{"role":"user","content":"%s"}]}' % (b"\\ud83d a" * 200_000),
    "no UTF-8": b'{"messages":[{"role":"user","content":"%s"}]}' % (b"\xe9ab " * 500_000),
    "a member of another name": json.dumps(asked("a", metadata={"x" * 300_000: ["y" * 300_000]})).encode(),
}


@pytest.mark.parametrize("name", BODIES)
def test_the_parser_gets_slices(monkeypatch, name):
    """What is parsed, searched or encoded in one piece keeps the interpreter lock for that long."""
    parsed_bytes = []
    encoded_bytes = []
    parse = orjson.loads

    def loads(raw):
        parsed_bytes.append(len(raw))
        return parse(raw)

    class Orjson:
        JSONDecodeError = orjson.JSONDecodeError

    Orjson.loads = staticmethod(loads)
    monkeypatch.setattr(json_slices, "orjson", Orjson)
    slices = long_text.utf8_slices

    def utf8_slices(text):
        for part in slices(text):
            encoded_bytes.append(len(part))
            yield part

    monkeypatch.setattr("swe_rl.gateway.conversation.utf8_slices", utf8_slices)
    body = BODIES[name]
    assert not json_slices.has_too_many_values(body)
    request = ChatCompletions().parse(body, Arrived("tiny", KnownBodies(), "a session"))
    assert len(request.conversation.hashes) > 1
    assert len(parsed_bytes) >= len(body) // (json_slices.SLICE_BYTES + 2)
    assert max(parsed_bytes) <= json_slices.SLICE_BYTES + 2
    assert max(encoded_bytes) <= 4 * long_text._SLICE_CHARS


def test_a_large_value_below_too_many_others_is_refused():
    depth = 2 * json_slices._DEEPEST
    with pytest.raises(RecursionError):
        json_slices.loads(b"[" * depth + b'"' + b"a" * 2**17 + b'"' + b"]" * depth)
    with pytest.raises(ApiError, match="nested too deeply"):
        body = b'{"messages":%s}' % (b"[" * depth + b'"' + b"a" * 2**17 + b'"' + b"]" * depth)
        ChatCompletions().parse(body, Arrived("tiny"))
