from hypothesis import given
from hypothesis import strategies as st

from swe_rl.trainer.compute import balance_rows

LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=60)


def cost(tokens):
    return tokens + tokens * tokens / 1000


@given(LENGTHS, st.integers(100, 20_000), st.integers(1, 8))
def test_every_row_is_once_there_within_the_budget_and_all_ranks_have_as_many_passes(lengths, max_tokens, ranks):
    plan = balance_rows(lengths, max_tokens, ranks, cost)
    assert all(len(at_once) == ranks for at_once in plan)
    batches = [rows for at_once in plan for rows in at_once]
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    assert all(len(rows) <= 1 or sum(lengths[i] for i in rows) <= max_tokens for rows in batches)


@given(LENGTHS, st.integers(100, 20_000), st.integers(1, 8))
def test_no_more_passes_than_packing_asks_for(lengths, max_tokens, ranks):
    """Spreading by cost may need more bins than first-fit, but never more than one row a bin."""
    plan = balance_rows(lengths, max_tokens, ranks, cost)
    assert len(plan) <= -(-len(lengths) // ranks)


def test_the_dearest_come_first_and_ranks_are_even():
    plan = balance_rows([1000] * 8 + [100] * 8, 2200, 4, cost)
    totals = [[sum(([1000] * 8 + [100] * 8)[i] for i in rows) for rows in at_once] for at_once in plan]
    assert totals == [[2200] * 4]


def test_nothing_gives_nothing():
    assert balance_rows([], 100, 4, cost) == []


def test_one_row_for_four_ranks_leaves_three_empty():
    assert balance_rows([50], 100, 4, cost) == [[(0,), (), (), ()]]
