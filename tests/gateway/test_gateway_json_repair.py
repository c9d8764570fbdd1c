"""Bodies that are not quite JSON: what is read of them, and what is not."""

import orjson
import pytest

from swe_rl.gateway.json_repair import read_json, repair_json, replace_lone_surrogates


@pytest.mark.parametrize(
    ("raw", "mended"),
    [
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\uDE00a"', "\ufffda"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\ud83d\ud83d\ude00\ude00"', "\ufffd\U0001f600\ufffd"),
        (rb'"\\ud83d \\\ud83d\\"', "\\ud83d \\\ufffd\\"),
        (rb'"\ud83d\n\u00e9\"\ud83d\\ude00"', '\ufffd\n\u00e9"\ufffd\\ude00'),
        (b'"\xff\xed\xa0\xbd\xc3\xa9"', "\ufffd\ufffd\ufffd\ufffd\u00e9"),
    ],
)
def test_half_characters_are_replaced_and_nothing_else(raw, mended):
    assert read_json(raw) == mended
    assert replace_lone_surrogates(orjson.dumps(mended)) == orjson.dumps(mended)


@pytest.mark.parametrize(
    ("raw", "mended", "kinds"),
    [
        (b'{"a": NaN, "b": [-Infinity, 1e999]}', {"a": None, "b": [None, None]}, {"json"}),
        (b'{"a": NaN, "b": "NaN\\n"}', {"a": None, "b": "NaN\n"}, {"json"}),
        (b'{"a": 1%s, "b": 7}' % (b"0" * 400), {"a": None, "b": 7}, {"json"}),
        (b'{"a": 1%s}' % (b"0" * 5000), {"a": None}, {"json"}),
        (b'{"a": [NaN, 100000000000000000000]}', {"a": [None, 1e20]}, {"json"}),
        (b'{"a": "x\ty\nz"}', {"a": "x\ty\nz"}, {"json"}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}, {"json"}),
        ('{"a": "\u00e9"}'.encode("utf-16"), {"a": "\u00e9"}, {"json"}),
        (b'{"a": NaN, "b": "\\ud83d"}', {"a": None, "b": "\ufffd"}, {"json", "surrogates"}),
        (b'{"a": "\\ud83d"}', {"a": "\ufffd"}, {"surrogates"}),
    ],
)
def test_what_is_almost_json_is_read(raw, mended, kinds):
    assert read_json(raw) == mended
    body, found = repair_json(raw)
    assert (orjson.loads(body), found) == (mended, kinds)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a": 1,}', b"{} x", b'{"a": NaN' + b"," * 9, b"[" * 9000 + b"]" * 9000])
def test_what_is_no_json_is_none(raw):
    assert repair_json(raw) is None
    with pytest.raises(orjson.JSONDecodeError):
        read_json(raw)


def test_a_large_body_that_only_python_reads_is_none():
    """It would keep the interpreter lock for too long."""
    assert repair_json(b"[NaN" + b", 1" * 2**19 + b"]") is None


def test_a_large_body_with_half_characters_takes_no_square_of_its_time():
    raw = b'"' + rb"\\ \u00e9 \ud83d " * 100_000 + b'"'
    assert read_json(raw).count("\ufffd") == 100_000
