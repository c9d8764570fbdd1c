"""This module says what can be said of a long text before it is tokenized, and tokenizes one without stopping other
threads.

Invariants:
- `fewest_tokens` never says more than there are: what is refused for it would not have fitted. If a tokenizer's kind
  does not prove that, it says 0.
- `tokenize_text` gives the ids that the tokenizer's own `encode` gives. `encode` keeps Python's interpreter lock until
  it is done, 28 s for 8 MB; a batch of one text lets go of it.
"""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

# NFC keeps at least one of so many bytes of a text that is not ASCII alone: 3 by characters that stand for others (the
# sign for Kelvin becomes K), times 3 by those that are put together (alpha with three marks).
_REWRITTEN_BYTES = 9
# These steps before the merges only divide a text.
_KEEPING = ("Split", "ByteLevel", "Digits")
# A search, and an encoding, keeps the interpreter lock until it is done, so it gets this many characters at a time.
_SLICE_CHARS = 2**18


class TokenBound:
    """Bounds the tokens of a text for one tokenizer; `special` are its added tokens, as text."""

    def __init__(self, tokenizer: Any, special: list[str]) -> None:
        self._bytes_per_token = _most_bytes_per_token(tokenizer, special)
        self._normalizes = tokenizer.normalizer is not None

    def fewest_tokens(self, text: str) -> int:
        """Returns a lower bound of the tokens, which also holds if the tokenizer knows special tokens in the text."""
        if not self._bytes_per_token:
            return 0
        if text.isascii():
            num_bytes = len(text)
        else:
            num_bytes = sum(map(len, utf8_slices(text)))
            num_bytes //= _REWRITTEN_BYTES if self._normalizes else 1
        return -(-num_bytes // self._bytes_per_token)


def _most_bytes_per_token(tokenizer: Any, special: list[str]) -> int:
    """Returns how many bytes one token can stand for at most, or 0 if no limit is proven.

    It is proven for byte-level merges that know all bytes: each byte of the text, once it is normalized, is in one
    token.
    """
    from tokenizers import models, pre_tokenizers

    model = tokenizer.model
    if not isinstance(model, models.BPE) or model.unk_token is not None or model.end_of_word_suffix is not None:
        return 0
    if tokenizer.truncation is not None or any(
        token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values()
    ):
        return 0
    normalizer = _describe_part(tokenizer.normalizer)
    if normalizer and normalizer["type"] != "NFC":
        return 0
    before = _describe_part(tokenizer.pre_tokenizer)
    if before:
        steps = before.get("pretokenizers", [before])
    else:
        steps = []
    kinds = [step["type"] for step in steps]
    divides = all(kind in _KEEPING for kind in kinds) and all(step.get("behavior") != "Removed" for step in steps)
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if "ByteLevel" not in kinds or not divides or not set(pre_tokenizers.ByteLevel.alphabet()) <= vocabulary.keys():
        return 0
    return max(map(len, [*vocabulary, *(token.encode() for token in special)]))


def _describe_part(part: Any) -> dict[str, Any]:
    """Returns a tokenizer's part as its file has it; empty if there is none."""
    if part is None:
        return {}
    return dict(json.loads(part.__getstate__()))


def utf8_slices(text: str) -> Iterator[bytes]:
    """Encodes a text in slices, each of which keeps the interpreter lock for a moment only."""
    for begin in range(0, len(text), _SLICE_CHARS):
        yield text[begin : begin + _SLICE_CHARS].encode("utf-8", "surrogatepass")


def tokenize_text(tokenizer: Any, text: str) -> Any:
    """Returns an Encoding, whose length costs nothing and whose ids become a list when they are asked for."""
    # Of one text nothing can be done side by side, and a pool of threads would be lost to processes that are forked.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]


def places_of(pattern: "re.Pattern[str]", text: str, longest: int) -> list[int]:
    """Returns where matches begin, for a pattern that looks at so many characters at most and takes none of them."""
    places: list[int] = []
    for begin in range(0, len(text), _SLICE_CHARS):
        end = begin + _SLICE_CHARS
        matches = pattern.finditer(text, begin, min(len(text), end + longest))
        places += [match.start() for match in matches if match.start() < end]
    return places
