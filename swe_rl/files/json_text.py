"""This module writes and reads JSON as it is on disk: strict, so that any reader takes it.

NaN and infinities become null, and lone surrogates become '?'.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import orjson

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def encode_json(obj: Any, *, indent: bool = False) -> bytes:
    """Returns strict JSON of plain values, dataclasses, enums, paths and numpy scalars."""
    option = _OPTIONS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        return orjson.dumps(obj, default=_plain_value, option=option)
    # These are lone surrogates, or integers beyond 64 bits.
    except TypeError:
        return json.dumps(_clean_value(obj), indent=2 if indent else None, ensure_ascii=False).encode()


def decode_json(data: bytes | str) -> Any:
    """Returns a value; also reads the NaN and Infinity that other writers leave. Raises ValueError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except RecursionError as error:
            raise ValueError("it is nested too deep") from error


def _plain_value(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)


def _clean_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode()
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(_clean_value(key)): _clean_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_value(item) for item in value]
    return _clean_value(_plain_value(value))
