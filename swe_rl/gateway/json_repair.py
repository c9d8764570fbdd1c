"""This module reads JSON that is not quite JSON, as clients write it: half characters, other encodings, NaN.

Clients cut texts at 16-bit units, and Python writes `NaN`, `Infinity` and integers of any length.

Invariants:
- A body that is sound costs nothing and stays as it is.
- What is mended becomes the same text each time, so that a conversation stays the same one.
"""

import codecs
import json
import math
import re
from typing import Any

import orjson

from swe_rl.gateway import json_slices

# Matches all up to a surrogate escape that has no other half, and that escape. An escaped backslash does not begin an
# escape.
_TO_LONE_SURROGATE = re.compile(
    rb"((?:[^\\]++|\\[^u]|\\u(?:[^dD]|[dD][0-7])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+)"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\Z)",
    re.DOTALL,
)
# A text without it has no half character to replace.
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_REPLACEMENT = rb"\ufffd"
# Python's own reader keeps the interpreter lock, for 50 ms with so many bytes.
_LONGEST_BYTES = 2**20
# Python refuses to read a longer integer, as the time grows with the square of its digits.
_MOST_DIGITS = 4300


def repair_json(raw: bytes) -> tuple[bytes, frozenset[str]] | None:
    """Mends a text that `orjson` does not read.

    Returns the text that `orjson` reads and the kinds of what was mended (`surrogates`, `json`), or None if it is not
    JSON at all.
    """
    encoded = _as_utf8(raw)
    whole = replace_lone_surrogates(encoded)
    sound = _as_orjson_reads_it(whole)
    if sound is None:
        return None
    if whole != encoded:
        kinds = {"surrogates"}
    else:
        kinds = set()
    if sound != whole or encoded != raw:
        kinds.add("json")
    return sound, frozenset(kinds)


def replace_lone_surrogates(raw: bytes) -> bytes:
    """Returns a JSON text with U+FFFD where a character was cut in half, or where bytes are not UTF-8."""
    raw = _recoded(raw, "utf-8")
    if _ESCAPED_SURROGATE.search(raw) is None:
        return raw
    return b"".join(
        _TO_LONE_SURROGATE.sub(lambda part: part[1] + (_REPLACEMENT if part[2] else b""), part)
        for part in json_slices.text_slices(raw, 0, len(raw))
    )


def read_json(raw: bytes) -> Any:
    """Parses a text as `orjson.loads` does, and mends it if it has to. Raises orjson.JSONDecodeError."""
    try:
        return json_slices.loads(raw)
    except orjson.JSONDecodeError:
        repaired = repair_json(raw)
        if repaired is None:
            raise
        return json_slices.loads(repaired[0])


def _as_utf8(raw: bytes) -> bytes:
    """Returns the JSON text in plain UTF-8, whichever encoding of Unicode it has, and without a byte order mark."""
    encoding = json.detect_encoding(raw)
    if encoding == "utf-8":
        return raw
    return _recoded(raw, encoding)


def _recoded(raw: bytes, encoding: str) -> bytes:
    """Returns a text of this encoding in UTF-8, with U+FFFD for what the encoding does not have. It works in slices."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    parts = []
    for begin in range(0, len(raw), json_slices.SLICE_BYTES):
        part = raw[begin : begin + json_slices.SLICE_BYTES]
        parts.append(decoder.decode(part).encode())
    parts.append(decoder.decode(b"", True).encode())
    return b"".join(parts)


def _as_orjson_reads_it(raw: bytes) -> bytes | None:
    """Escapes control characters within strings, and writes null for numbers that no double holds. Returns None for a
    text that is not JSON."""
    try:
        json_slices.loads(raw)
    except orjson.JSONDecodeError:
        if len(raw) > _LONGEST_BYTES:
            return None
    else:
        return raw
    try:
        value = json.loads(
            raw, strict=False, parse_constant=lambda name: None, parse_float=_double_or_none, parse_int=_int_or_none
        )
        return orjson.dumps(value)
    except (ValueError, RecursionError, orjson.JSONEncodeError):
        return None


def _double_or_none(digits: str) -> float | None:
    value = float(digits)
    if math.isfinite(value):
        return value
    return None


def _int_or_none(digits: str) -> int | float | None:
    if len(digits) > _MOST_DIGITS:
        return None
    value = int(digits)
    if -(2**63) <= value < 2**64:
        return value
    return _double_or_none(digits)
