"""This module says which bytes of a text a single token stands for.

Invariants:
- The bytes of a reply's tokens, one behind the other, are the reply's text: half a character is half of its bytes, and
  a blank before a word is there.
"""

import re
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_BLANK = "\N{LOWER ONE EIGHTH BLOCK}"
# Byte-level vocabularies write these bytes as the characters of their numbers, and all others as those from 256 on.
_SHOWN_BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_ALL_BYTES = [*_SHOWN_BYTES, *sorted({*range(256)}.difference(_SHOWN_BYTES))]
_BYTE_OF = dict(zip(map(chr, [*_SHOWN_BYTES, *range(256, 512)]), _ALL_BYTES, strict=False))


class TokenBytes:
    """Knows how one tokenizer's vocabulary writes bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {index: token.content for index, token in tokenizer.get_added_tokens_decoder().items()}
        self._decoder = str(tokenizer.decoder and tokenizer.decoder.__getstate__())

    def of(self, token_id: int) -> bytes:
        """Returns the token's bytes; none for an id without a token."""
        token = self._tokenizer.id_to_token(token_id) or ""
        is_bytes = "ByteLevel" in self._decoder and token_id not in self._added
        if is_bytes and _BYTE_OF.keys() >= set(token):
            return bytes(_BYTE_OF[character] for character in token)
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte and "ByteFallback" in self._decoder:
            return bytes([int(byte[1], 16)])
        # A tokenizer leaves out the blank before the first word of what it decodes.
        if token_id not in self._added and _BLANK in token:
            return str(token).replace(_BLANK, " ").encode()
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False)).encode()
