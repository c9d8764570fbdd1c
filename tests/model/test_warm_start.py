"""Batches of demonstrations: reproducible, and only what the assistant says is learnt."""

import random

import pytest

from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tiny import build_tokenizer, draw_batch


def conversation(rng):
    """Every message has a marker that tells who said it."""
    messages = [{"role": "system", "content": "SYS rules"}, {"role": "user", "content": f"USR {rng.random()}"}]
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "assistant", "content": f"AST {rng.randint(0, 99)}"})
        messages.append({"role": "user", "content": f"USR saw {rng.randint(0, 99)}"})
    return [*messages, {"role": "assistant", "content": "AST submit"}]


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(build_tokenizer(["SYS USR AST rules saw submit"] * 4, 300), template="qwen_plain")


def take(renderer, count, seed=0, tokens=400):
    rng = random.Random(seed)
    return [draw_batch(conversation, renderer, rng, tokens) for _ in range(count)]


def test_the_same_seed_gives_the_same_rows_however_many_are_taken(renderer):
    assert take(renderer, 5)[:2] == take(renderer, 2)
    assert take(renderer, 1) != take(renderer, 1, seed=1)
    first, second = take(renderer, 2)
    assert first != second


def test_batches_hold_at_least_the_tokens_asked_for_and_no_row_too_many(renderer):
    for drawn in take(renderer, 4):
        lengths = [len(ids) for ids, _ in drawn]
        assert sum(lengths) >= 400 > sum(lengths) - max(lengths)
        assert lengths == sorted(lengths)


def test_the_mask_covers_exactly_what_the_assistant_says(renderer):
    for ids, mask in (row for drawn in take(renderer, 4) for row in drawn):
        assert len(ids) == len(mask) and set(mask) == {0, 1} and not mask[0]
        learnt, read = [], []
        for at, (token, masked) in enumerate(zip(ids, mask, strict=True)):
            target = learnt if masked else read
            if at == 0 or mask[at - 1] != masked:
                target.append([])
            target[-1].append(token)
        said = [renderer.decode(span) for span in learnt]
        assert said[-1] == "AST submit" and all(one.startswith("AST") for one in said)
        assert all(span[-1] in renderer.stop_token_ids for span in learnt)
        assert not any("AST" in renderer.decode(span) for span in read)
