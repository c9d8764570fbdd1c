"""The bytes of single tokens, against the text that the tokenizers decode all of them to."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from swe_rl.model.tiny import build_tokenizer
from swe_rl.model.token_bytes import TokenBytes

BYTE_LEVEL = build_tokenizer(["def größe():\n  日本\n"] * 3, 400).backend_tokenizer


def byte_fallback():
    """A vocabulary of a few words, in which any other character is its bytes."""
    words = {"<unk>": 0, "\u2581": 1, "h": 2, "\u2581h": 3}
    tokens = words | {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    made = Tokenizer(models.BPE(tokens, [("\u2581", "h")], unk_token="<unk>", byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made


@given(st.text())
def test_tokens_add_up_to_the_text_of_byte_level_merges(text):
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False).ids
    whole = b"".join(map(TokenBytes(BYTE_LEVEL).of, ids)).decode()
    assert whole == BYTE_LEVEL.decode(ids, skip_special_tokens=False)


def test_tokens_add_up_to_the_text_with_blanks_and_single_bytes():
    made = byte_fallback()
    ids = made.encode("h h😀 größe").ids
    known = TokenBytes(made)
    assert b"".join(map(known.of, ids)).decode() == f" {made.decode(ids)}"
    assert known.of(made.token_to_id("\u2581h")) == b" h"
    assert known.of(10**6) == b""


def test_an_added_token_is_its_own_text():
    index = BYTE_LEVEL.token_to_id("<|im_end|>")
    assert TokenBytes(BYTE_LEVEL).of(index) == b"<|im_end|>"
