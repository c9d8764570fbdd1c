"""Writes values as JSON so that no text of a large request keeps the interpreter lock for long.

Invariants:
- What is written is what `json.dumps` writes, character for character.
- One call of C writes at most _SLICE_CHARS characters of a text, and what is small as a whole at once.
"""

import json
from collections.abc import Iterator
from typing import Any

# The slowest characters, those that are no ASCII, take 2 ms for so many.
_SLICE_CHARS = 2**18
# Beside its characters, a number, a list or a name costs about as much as so many of them.
_CHARS_OF_A_VALUE = 16


def dump_json(value: Any, *, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
    """Returns `json.dumps(value, ensure_ascii=..., sort_keys=...)`. Raises what that raises."""
    if _is_small(value):
        return json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
    return "".join(_write_pieces(value, ensure_ascii, sort_keys))


def _is_small(value: Any) -> bool:
    """Tells whether a value is written fast. It looks no further than until it is large."""
    left = _SLICE_CHARS
    waiting = [value]
    while waiting and left >= 0:
        item = waiting.pop()
        left -= _CHARS_OF_A_VALUE
        if isinstance(item, str):
            left -= len(item)
        elif isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return left >= 0


def _write_pieces(value: Any, ensure_ascii: bool, sort_keys: bool) -> Iterator[str]:
    if isinstance(value, str):
        yield '"'
        for begin in range(0, len(value), _SLICE_CHARS):
            yield json.dumps(value[begin : begin + _SLICE_CHARS], ensure_ascii=ensure_ascii)[1:-1]
        yield '"'
    elif isinstance(value, dict) and value and all(isinstance(name, str) for name in value):
        before = "{"
        for name in sorted(value) if sort_keys else value:
            yield before
            yield from _write_pieces(name, ensure_ascii, sort_keys)
            yield ": "
            yield from _write_pieces(value[name], ensure_ascii, sort_keys)
            before = ", "
        yield "}"
    elif isinstance(value, list | tuple) and value:
        before = "["
        for item in value:
            yield before
            yield from _write_pieces(item, ensure_ascii, sort_keys)
            before = ", "
        yield "]"
    else:
        yield json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
