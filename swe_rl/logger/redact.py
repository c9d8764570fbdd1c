"""Values of secret environment variables, kept out of everything that is written.

Invariants:
- A secret is the value of a variable whose name contains KEY, TOKEN, SECRET or PASSWORD.
- Left alone are values that cannot be secrets and would tear holes into every line: switches ('false'), short
  numbers and existing paths (TOKENIZERS_PARALLELISM=false, HF_TOKEN_PATH=/home/me/token).
- Keys of a record are never touched, only its strings. What an agent wrote is data, and is never touched: a variable
  SOME_TOKEN=return would be in every patch. No secret of ours is where agents are.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.logger.disk import decode_json, encode_json

MASK = "***"
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
_SWITCHES = frozenset({"true", "false", "none", "null", "auto", "default", "disabled", "enabled", "offline", "online"})
_MIN_CHARS = 4
_MIN_DIGITS = 8


class Redactor:
    """Replaces every secret by `***`."""

    def __init__(self, secrets: frozenset[str]) -> None:
        forms = secrets | {json.dumps(secret)[1:-1] for secret in secrets}
        alternatives = "|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form)))
        self._pattern = re.compile(alternatives) if alternatives else None
        self._bytes_pattern = re.compile(alternatives.encode()) if alternatives else None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "Redactor":
        variables = os.environ if environ is None else environ
        return cls(frozenset(value for name, value in variables.items() if _is_secret(name, value)))

    def text(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern else text

    def json(self, encoded: bytes, keys: frozenset[str] | None = None) -> bytes:
        """An encoded object in, an encoded object out; costs one scan when there is nothing to hide.

        `keys`: below which of its keys to look; None: all.
        """
        if self._bytes_pattern is None or not self._bytes_pattern.search(encoded):
            return encoded
        record = decode_json(encoded)
        if keys is None:
            return encode_json(self._value(record))
        return encode_json({key: self._value(value) if key in keys else value for key, value in record.items()})

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, dict):
            return {key: self._value(item) for key, item in value.items()}
        return value


def _is_secret(name: str, value: str) -> bool:
    if not _SECRET_NAME.search(name) or len(value) < _MIN_CHARS or value.lower() in _SWITCHES:
        return False
    if value.isdigit() and len(value) < _MIN_DIGITS:
        return False
    return not (value.startswith("/") and Path(value).exists())
