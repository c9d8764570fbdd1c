"""This module says which bytes of a text a single token stands for.

Invariants:
- The bytes of a reply's tokens, one behind the other, are the reply's text: half a character is half of its bytes, and
  a blank before a word is there.
"""

import json
import re
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_BLANK = "\N{LOWER ONE EIGHTH BLOCK}"
# Byte-level vocabularies write these bytes as the characters of their numbers, and all others as those from 256 on.
_SHOWN_BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]


def _byte_of_character() -> dict[str, int]:
    hidden = (byte for byte in range(256) if byte not in _SHOWN_BYTES)
    numbers = {chr(256 + index): byte for index, byte in enumerate(hidden)}
    return {chr(byte): byte for byte in _SHOWN_BYTES} | numbers


class TokenBytes:
    """Knows how one tokenizer's vocabulary writes bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {index: token.content for index, token in tokenizer.get_added_tokens_decoder().items()}
        state: dict[str, Any] = {}
        if tokenizer.decoder is not None:
            state = json.loads(tokenizer.decoder.__getstate__())
        kinds = {str(step.get("type")) for step in state.get("decoders", [state])}
        self._byte_of: dict[str, int] = {}
        if "ByteLevel" in kinds:
            self._byte_of = _byte_of_character()
        self._has_byte_tokens = "ByteFallback" in kinds
        self._has_blanks = self._has_byte_tokens or "Metaspace" in kinds

    def of(self, token_id: int) -> bytes:
        """Returns the token's bytes; none for an id without a token."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_of.keys() >= set(token) and self._byte_of:
            return bytes(self._byte_of[character] for character in token)
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte and self._has_byte_tokens:
            return bytes([int(byte[1], 16)])
        if self._has_blanks:
            return str(token).replace(_BLANK, " ").encode()
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False)).encode()
