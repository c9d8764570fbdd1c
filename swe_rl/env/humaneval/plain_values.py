"""Turns plain values into text and back. The checks of a problem and the tested function share nothing else.

This source is copied into test files, which the Python of a sandbox runs; so it imports nothing of swe_rl.

Invariants:
- What is read is made of None, booleans, numbers, texts, lists, tuples, sets and dictionaries, of exactly these types:
  an object that equals everything cannot come through.
"""

import json
from typing import Any


def _to_text(value: Any) -> str:
    """Returns a value as one line of text. Raises TypeError for what is no plain value."""
    return json.dumps(_packed(value))


def _from_text(text: str) -> Any:
    """Returns the value of a line. Raises ValueError for what is none."""
    return _unpacked(json.loads(text))


def _packed(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, list):
        return {"list": [_packed(item) for item in value]}
    if isinstance(value, tuple):
        return {"tuple": [_packed(item) for item in value]}
    if isinstance(value, set):
        return {"set": [_packed(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_packed(key), _packed(item)] for key, item in value.items()]}
    raise TypeError(f"{type(value).__name__} is no plain value")


def _unpacked(content: Any) -> Any:
    if content is None or isinstance(content, bool | int | str):
        return content
    if not isinstance(content, dict) or len(content) != 1:
        raise ValueError("the line is no plain value")
    ((kind, inner),) = content.items()
    if kind == "float":
        return float.fromhex(inner)
    if kind == "dict":
        return {_unpacked(key): _unpacked(item) for key, item in inner}
    kinds = {"list": list, "tuple": tuple, "set": set}
    if kind not in kinds:
        raise ValueError(f"{kind} is no kind of plain value")
    return kinds[kind](_unpacked(item) for item in inner)
