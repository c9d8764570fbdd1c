"""What is said of a text before it is tokenized is never too much, and long texts get the ids of short ones."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from swe_rl.model import chat
from swe_rl.model.chat import ChatRenderer, PromptTooLongError, TextEncoder
from swe_rl.model.long_text import TokenBound, places_of, tokenize_text
from swe_rl.model.tiny import build_tokenizer

TEXTS = st.text(st.sampled_from("ab e\n\t<|im_end>éK\u0301\u0345\u1f82\u212b😀"), max_size=60)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(["Fix the bug in lib.py. ls\n    return a + b\n"] * 3, 400)


def byte_level(normalizer=None, split=None):
    made = Tokenizer(models.BPE())
    before = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, before]) if split else before
    made.decoder = decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["a e\u0301 b aaaa eeee"] * 5, trainer)
    return made


@given(TEXTS, st.sampled_from([None, normalizers.NFC()]))
def test_no_text_has_fewer_tokens_than_said(text, normalizer):
    made = byte_level(normalizer)
    assert TokenBound(made, []).fewest_tokens(text) <= len(made.encode(text, add_special_tokens=False))


def test_long_texts_are_said_to_be_long():
    made = byte_level(normalizers.NFC())
    assert TokenBound(made, []).fewest_tokens("a" * 1000) > 100


@pytest.mark.parametrize(
    "made",
    [
        byte_level(normalizers.Strip()),
        byte_level(None, pre_tokenizers.Split(" ", "removed")),
        byte_level(None, pre_tokenizers.Whitespace()),
        Tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True)),
        Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")),
    ],
)
def test_nothing_is_said_where_nothing_is_proven(made):
    assert TokenBound(made, []).fewest_tokens("a" * 10**6) == 0


@given(text=TEXTS)
def test_a_batch_of_one_gives_the_same_ids(tokenizer, text):
    backend = tokenizer.backend_tokenizer
    assert tokenize_text(backend, text).ids == backend.encode(text, add_special_tokens=False).ids


@given(TEXTS, st.integers(1, 9))
def test_places_are_found_slice_by_slice(text, slice_chars):
    pattern = re.compile(r"(?=(<\|im_end|<\|))")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swe_rl.model.long_text._SLICE_CHARS", slice_chars)
        assert places_of(pattern, text, 8) == [match.start() for match in pattern.finditer(text)]


@given(pieces=st.lists(TEXTS, max_size=4), long_chars=st.integers(0, 20))
def test_length_changes_no_ids_and_limits_hold(tokenizer, pieces, long_chars):
    ids = TextEncoder(tokenizer).encode(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat, "_LONG_CHARS", long_chars)
        encoder = TextEncoder(tokenizer)
        assert encoder.count(pieces) == len(ids)
        assert encoder.encode(pieces, len(ids)) == ids
        if ids:
            with pytest.raises(PromptTooLongError) as refused:
                TextEncoder(tokenizer).encode(pieces, len(ids) - 1)
            assert refused.value.tokens <= len(ids)


def test_a_conversation_is_counted_and_limited_as_it_is_rendered(tokenizer):
    renderer = ChatRenderer(tokenizer, template="qwen_plain")
    user, said = {"role": "user", "content": "Fix the bug."}, {"role": "assistant", "content": "ls"}
    messages = [{"role": "system", "content": "s"}, user, said, user, said, user]
    ids = renderer.start(messages)
    assert renderer.count_start(messages) == len(ids) and renderer.start(messages, None, len(ids)) == ids
    more = renderer.extend([5], [user])
    assert renderer.count_extend([5], [user]) == len(more) and renderer.extend([5], [user], len(more)) == more
    for limited in (lambda: renderer.start(messages, None, len(ids) - 1), lambda: renderer.extend([5], [user], 3)):
        with pytest.raises(PromptTooLongError):
            limited()
