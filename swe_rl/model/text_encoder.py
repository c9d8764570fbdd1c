"""Pieces of a chat format to ids: the format's markers as special tokens, text never.

Invariants:
- Special tokens are out of reach of text: one that is spelled out in it is encoded as the letters that it has.
- The same text gives the same ids, kept from before or not.
- What is kept stays below `_KEPT_BYTES`, texts and ids together, whatever comes; safe for several threads.
"""

import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from swe_rl.model.templates.qwen import Marker, Piece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_KEPT_BYTES = 32 * 2**20  # system prompts, tools and tasks come again with each trajectory of a group
_LARGEST_KEPT_BYTES = 2**20


class TextEncoder:
    """`special`: ids by the text of each special token."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        self.special = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        self._tokenizer: Any = tokenizer.backend_tokenizer
        # A look-ahead finds overlapping occurrences too; cutting after the first character breaks each of them.
        tokens = sorted((re.escape(token) for token in self.special if len(token) > 1), key=len, reverse=True)
        self._reserved = re.compile(f"(?=({'|'.join(tokens)}))")
        self._kept = KeptTexts()

    def encode(self, pieces: Sequence[Piece]) -> list[int]:
        """Text is encoded up to a special token at once, whatever number of pieces it has."""
        ids: list[int] = []
        text: list[str] = []
        for piece in pieces:
            if isinstance(piece, Marker) and piece in self.special:
                ids += self._encode_text("".join(text))
                ids.append(self.special[piece])
                text = []
            else:
                text.append(piece)
        ids += self._encode_text("".join(text))
        return ids

    def _encode_text(self, text: str) -> "array[int]":
        kept = self._kept.get(text)
        if kept is not None:
            return kept
        ids = self._encode_anew(text)
        self._kept.put(text, ids)
        return ids

    def _encode_anew(self, text: str) -> "array[int]":
        cuts = [0, *(match.start() + 1 for match in self._reserved.finditer(text)), len(text)]
        ids = array("i")
        for start, end in zip(cuts, cuts[1:], strict=False):
            if end > start:
                ids.extend(self._tokenizer.encode(text[start:end], add_special_tokens=False).ids)
        return ids


class KeptTexts:
    """The texts used last, with their ids."""

    def __init__(self, limit_bytes: int = _KEPT_BYTES, largest_bytes: int = _LARGEST_KEPT_BYTES) -> None:
        self.held_bytes = 0
        self._limit_bytes, self._largest_bytes = limit_bytes, largest_bytes
        self._ids: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, text: str) -> "array[int] | None":
        with self._lock:
            ids = self._ids.get(text)
            if ids is not None:
                self._ids.move_to_end(text)
            return ids

    def put(self, text: str, ids: "array[int]") -> None:
        size_bytes = held_bytes(text, ids)
        if size_bytes > self._largest_bytes:
            return
        with self._lock:
            if text in self._ids:
                return
            self._ids[text] = ids
            self.held_bytes += size_bytes
            while self.held_bytes > self._limit_bytes:
                self.held_bytes -= held_bytes(*self._ids.popitem(last=False))


def held_bytes(text: str, ids: "array[int]") -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids)
