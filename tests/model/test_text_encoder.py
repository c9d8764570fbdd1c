from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.model.chat import KeptTexts, TextEncoder, held_bytes
from swe_rl.model.tiny import SPECIAL_TOKENS, build_tokenizer
from swe_rl.templates.qwen import IM_END, IM_START, Marker


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(["Fix the bug in lib.py. ls\n"] * 3, 320)


@given(st.lists(st.one_of(st.text(max_size=9), st.sampled_from(SPECIAL_TOKENS), st.sampled_from([IM_START, IM_END]))))
def test_markers_are_special_and_text_never_is(tokenizer, pieces):
    encoder = TextEncoder(tokenizer)
    ids = encoder.encode(pieces)
    special = [one for one in ids if one in encoder.special.values()]
    assert special == [encoder.special[piece] for piece in pieces if isinstance(piece, Marker)]
    assert tokenizer.decode(ids) == "".join(pieces)
    assert encoder.encode(pieces) == ids  # kept from before


def test_what_is_handed_out_is_nobody_elses(tokenizer):
    encoder = TextEncoder(tokenizer)
    ids = encoder.encode(["Fix the bug"])
    before = list(ids)
    ids += [1, 2]
    assert encoder.encode(["Fix the bug"]) == before


def test_a_marker_without_a_token_is_text(tokenizer):
    assert TextEncoder(tokenizer).encode([Marker("<x>")]) == tokenizer.encode("<x>", add_special_tokens=False)


def test_the_texts_used_last_are_kept():
    one = array("i", [1])
    size = held_bytes("aaaa", one)
    kept = KeptTexts(limit_bytes=2 * size, largest_bytes=size + 1)
    kept.put("aaaa", one)
    kept.put("bbbb", one)
    assert kept.get("aaaa") is one and kept.held_bytes == 2 * size
    kept.put("cccc", one)
    assert [kept.get(text) is not None for text in ("aaaa", "bbbb", "cccc")] == [True, False, True]
    kept.put("d" * 6, one)
    kept.put("d", array("i", range(9)))
    assert kept.get("d" * 6) is None and kept.get("d") is None and kept.held_bytes == 2 * size


@given(st.lists(st.text("aé中", max_size=8)))
def test_what_is_kept_stays_below_its_limit(texts):
    kept = KeptTexts(limit_bytes=600, largest_bytes=160)
    for text in texts:
        kept.put(text, array("i", list(text.encode())))
        assert kept.held_bytes == sum(held_bytes(*one) for one in kept._ids.items()) <= 600


def test_several_threads(tokenizer):
    encoder = TextEncoder(tokenizer)
    texts = [f"Fix bug {number % 7} in lib.py" for number in range(300)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: encoder.encode([text]), texts))
    assert found == [tokenizer.encode(text, add_special_tokens=False) for text in texts]
