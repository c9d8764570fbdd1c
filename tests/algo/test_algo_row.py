"""Rows by age: what is too old is not trained, nothing else changes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.row import Row, age_steps, without_old

VERSIONS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=8)


def row(oldest, more=0):
    return Row("t", "g", (1, 2, 3), (0, 1, 1), None, 1.0, (oldest + more, oldest))


PLAIN = Row("t", "g", (1, 2), (0, 1), (0.0, -0.5), 1.0, (5,))


@pytest.mark.parametrize(
    "change",
    [
        {"trajectory_id": "u"}, {"token_ids": (1, 3)}, {"token_ids": (1,)}, {"loss_mask": (1, 1)},
        {"rollout_logprobs": (0.0, -0.25)}, {"rollout_logprobs": None}, {"advantage": 2.0},
        {"weight_versions": (6,)}, {"trained": False},
    ],
)  # fmt: skip
def test_rows_are_equal_where_all_their_entries_are(change):
    assert replace(PLAIN) == PLAIN and replace(PLAIN, token_ids=PLAIN.token_ids.copy()) == PLAIN
    assert replace(PLAIN, **change) != PLAIN and PLAIN != "row"
    with pytest.raises(TypeError, match="unhashable"):
        hash(PLAIN)


def test_what_is_given_becomes_arrays_and_arrays_are_not_copied():
    types = [PLAIN.token_ids, PLAIN.loss_mask, PLAIN.rollout_logprobs, PLAIN.weight_versions]
    assert [str(values.dtype) for values in types] == ["int32", "bool", "float32", "int32"]
    assert replace(PLAIN, trained=False).token_ids is PLAIN.token_ids


def test_a_row_without_a_sampled_token_has_no_age():
    assert age_steps(Row("t", "g", (1, 2), (0, 0), None, 1.0, ()), version=5) == 0


def test_the_oldest_token_counts():
    assert age_steps(row(3, more=2), version=5) == 2
    assert age_steps(row(5), version=5) == 0
    assert age_steps(row(7), version=5) == 0


def test_what_is_older_than_the_limit_is_not_trained():
    kept = without_old([row(5), row(4, more=1), row(3)], version=5, limit_steps=1)
    assert [one.trained for one in kept] == [True, True, False]
    assert kept[2].trained_tokens == 0 and kept[2].token_ids.tolist() == [1, 2, 3]


@given(VERSIONS, st.integers(0, 9), st.integers(0, 9))
def test_a_smaller_limit_never_keeps_more(versions, version, limit):
    rows = [row(*one) for one in versions]
    assert without_old(rows, version, None) == rows
    small, large = ([one.trained for one in without_old(rows, version, bound)] for bound in (limit, limit + 1))
    assert all(b or not a for a, b in zip(small, large, strict=True))


def test_what_was_not_trained_stays_so():
    one = Row("t", "g", (1, 2), (0, 1), None, 1.0, (5,), trained=False)
    assert without_old([one], 5, 0) == [one]
