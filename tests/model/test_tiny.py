"""The tiny model and its tokenizer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.compose import compose
from swe_rl.model.tiny import SPECIAL_TOKENS, build_model, build_tokenizer

TEXTS = ["def clamp(value, low, high):\n    return max(low, min(value, high))\n", "Fix the bug, please.\n"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(TEXTS, 320)


@pytest.fixture(scope="module")
def config():
    return compose(["model=tiny"]).config.model


def encode(tokenizer, text):
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def test_between_one_and_five_million_parameters(config):
    model = build_model(config, 0)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert 1_000_000 <= count <= 5_000_000
    assert count / 1e9 == pytest.approx(config.params_b, rel=0.1)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_seed_decides_the_weights(config):
    one, same, other = (build_model(config, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


@given(st.text())
def test_any_text_round_trips(tokenizer, text):
    if not any(token in text for token in SPECIAL_TOKENS):
        assert tokenizer.backend_tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == text


@given(st.lists(st.sampled_from(["def", " f(", "\n    ", "x", "_", "1", "<=", "é", "\t", "日本"]), max_size=12))
def test_code_round_trips(tokenizer, parts):
    text = "".join(parts)
    assert tokenizer.backend_tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == text


def test_the_same_texts_give_the_same_tokenizer(tokenizer):
    again, other = build_tokenizer(TEXTS, 320), build_tokenizer([*TEXTS, "entirely other words words words"], 320)
    assert again.get_vocab() == tokenizer.get_vocab() != other.get_vocab()
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_special_tokens_come_first_and_are_one_token_each(tokenizer):
    assert [encode(tokenizer, token) for token in SPECIAL_TOKENS] == [[index] for index in range(len(SPECIAL_TOKENS))]
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|endoftext|>"


def test_a_name_is_the_same_tokens_behind_a_bracket_as_behind_a_space(tokenizer):
    behind_bracket, behind_equals = encode(tokenizer, "(low"), encode(tokenizer, "=low")
    assert behind_bracket[1:] == behind_equals[1:] and len(behind_bracket) > 1
