"""What a template and a hash write as JSON is json.dumps's text; a long text is written in slices."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.templates import qwen
from swe_rl.templates.qwen import dump_json

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES, st.booleans(), st.booleans(), st.sampled_from([1, 3, 20, 2**18]))
def test_it_is_what_json_writes(value, ensure_ascii, sort_keys, slice_chars):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qwen, "_SLICE_CHARS", slice_chars)
        written = dump_json(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
    assert written == json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)


def test_keys_that_are_no_text_and_values_that_json_does_not_have(monkeypatch):
    monkeypatch.setattr(qwen, "_SLICE_CHARS", 1)
    assert dump_json({"a": {1: [(), {}]}, "b": (1, "é")}) == json.dumps(
        {"a": {1: [(), {}]}, "b": (1, "é")}, ensure_ascii=False
    )
    with pytest.raises(TypeError):
        dump_json(["long enough", {1, 2}])


@pytest.mark.parametrize(
    "value", ["é\n" * 2**20, {"é" * 2**20: 1}, {"tool": [{"description": "a" * 999}] * 2000}, [[1, 2, 3]] * 2**17]
)
def test_no_call_of_c_writes_all_of_a_large_value(value, monkeypatch):
    written = []
    write = json.dumps
    monkeypatch.setattr(
        qwen.json, "dumps", lambda part, **options: written.append(write(part, **options)) or written[-1]
    )
    assert len(dump_json(value)) > 2**20
    assert max(map(len, written)) <= 2 * 2**18 + 2 and len(written) > 1
