"""This module says what a secret is, and keeps secrets out of texts and records.

Invariants:
- A secret is the value of a variable whose name contains one of the words of `is_secret_variable`. Left alone are
  values that cannot be secrets and would tear holes into every line: switches ('false'), short numbers and existing
  paths.
- The user and the password of an address are secrets in our own words. In data they stay: code has such addresses.
- Keys of a record are never touched, only its strings. What an agent wrote is data, and is never touched: a variable
  SOME_TOKEN=return would be in every patch. No secret of ours is where agents are.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from swe_rl.files.json_text import decode_json, encode_json

MASK = "***"
# A key or a token ends a word, so TOKENIZER and KEYBOARD are none.
_SECRET_NAME = re.compile(
    r"KEYS?(?![A-Z])|TOKENS?(?![A-Z])|[Kk]eys?(?![a-z])|[Tt]okens?(?![a-z])|(?i:secret|password|passwd|credential)"
)
_SWITCHES = frozenset({"true", "false", "none", "null", "auto", "default", "disabled", "enabled", "offline", "online"})
# Shorter values are in too many words to be hidden: each line would have holes.
_MIN_CHARS = 4
# A number of fewer digits is a port or a count rather than a secret.
_MIN_DIGITS = 8
_USER_INFO = re.compile(r"://[^/\s@]+@")
_USER_INFO_BYTES = re.compile(_USER_INFO.pattern.encode())


@cache
def is_secret_variable(name: str) -> bool:
    """Tells whether a variable of this name holds a secret, as `WANDB_API_KEY` does."""
    return bool(_SECRET_NAME.search(name))


def could_be_secret(value: str) -> bool:
    """Tells whether a value may be one at all: no switch, no short word or number, and no file of this machine."""
    if len(value) < _MIN_CHARS or value.lower() in _SWITCHES:
        return False
    if value.isdigit() and len(value) < _MIN_DIGITS:
        return False
    return not (value.startswith("/") and Path(value).exists())


def mask_addresses(text: str) -> str:
    """Returns the text with `***` in place of the user and the password of each address."""
    return _USER_INFO.sub(f"://{MASK}@", text)


class Redactor:
    """Replaces every secret by `***`."""

    def __init__(self, secrets: frozenset[str]) -> None:
        # Other writers' JSON escapes all but ASCII, and ours does not.
        in_json = {json.dumps(secret)[1:-1] for secret in secrets}
        in_our_json = {encode_json(secret)[1:-1].decode() for secret in secrets}
        forms = secrets | in_json | in_our_json
        alternatives = "|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form)))
        self._pattern: re.Pattern[str] | None = None
        self._bytes_pattern: re.Pattern[bytes] | None = None
        if alternatives:
            self._pattern = re.compile(alternatives)
            self._bytes_pattern = re.compile(alternatives.encode())

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "Redactor":
        if environ is None:
            environ = os.environ
        return cls(
            frozenset(value for name, value in environ.items() if is_secret_variable(name) and could_be_secret(value))
        )

    def text(self, text: str) -> str:
        """Returns words of ours without secrets and without users and passwords of addresses."""
        return mask_addresses(self.data(text))

    def data(self, text: str) -> str:
        """Returns a text of others without secrets. Its addresses stay as they are."""
        if self._pattern:
            return self._pattern.sub(MASK, text)
        return text

    def record_json(self, encoded: bytes, ours: frozenset[str] | None = None) -> bytes:
        """Returns an encoded record of ours without secrets; it costs one scan when there is nothing to hide.

        `ours` are the keys below which the words are ours, where the rest is data and stays as it is; None: all are.
        """
        if not self._is_found_in(encoded) and not _USER_INFO_BYTES.search(encoded):
            return encoded
        record = decode_json(encoded)
        if ours is None:
            return encode_json(_map_strings(record, self.text))
        return encode_json(
            {key: _map_strings(value, self.text) if key in ours else value for key, value in record.items()}
        )

    def data_json(self, encoded: bytes) -> bytes:
        """Returns encoded data without secrets; it costs one scan when there is nothing to hide."""
        if not self._is_found_in(encoded):
            return encoded
        return encode_json(_map_strings(decode_json(encoded), self.data))

    def _is_found_in(self, encoded: bytes) -> bool:
        return self._bytes_pattern is not None and self._bytes_pattern.search(encoded) is not None


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _map_strings(item, change) for key, item in value.items()}
    return value
