"""Traces to rows: accounting that must hold for every session."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.gateway.trace import Break, Trace
from swe_rl.rollout.rows import RowError, traced_rows
from swe_rl.rollout.trajectory import Status, Trajectory

ids = st.lists(st.integers(0, 999), min_size=1, max_size=8)


def trace(turn: int, chain: int, prompt: list[int], sampled: list[int], **more) -> Trace:
    more = {"logprobs": tuple(-0.5 for _ in sampled), "weight_version": 3, "finish_reason": "stop"} | more
    return Trace("s", turn, chain, tuple(prompt), tuple(sampled), **more)


@st.composite
def sessions(draw) -> list[Trace]:
    """Well-formed sessions: chains of turns, each prompt extending the one before."""
    traces, turn = [], 0
    for chain in range(draw(st.integers(1, 3))):
        held: list[int] = []
        for number in range(draw(st.integers(1, 4))):
            prompt, sampled = held + draw(ids), draw(ids)
            kind = Break.prefix_changed if chain and not number else None
            traces.append(trace(turn, chain, prompt, sampled, break_kind=kind))
            held, turn = prompt + sampled, turn + 1
    return traces


def rows_of(traces: list[Trace]):
    one = Trajectory("t", "i", "g", "train", 1, 0, 0, Status.resolved, 1.0, True, True, advantage=0.5)
    return traced_rows(one, traces)


@given(sessions())
def test_every_sampled_token_is_trained_exactly_once(traces):
    rows = rows_of(traces)
    assert len(rows) == len({one.chain for one in traces})
    assert sum(row.trained_tokens for row in rows) == sum(len(one.sampled_ids) for one in traces)
    for row in rows:
        assert len(row.token_ids) == len(row.loss_mask) == len(row.rollout_logprobs)
        pairs = zip(row.loss_mask, row.rollout_logprobs, strict=True)
        assert all((logprob == 0.0) == (not mask) for mask, logprob in pairs)


@given(sessions())
def test_masked_tokens_are_what_the_engine_sampled_in_order(traces):
    by_chain = [[one for one in traces if one.chain == chain] for chain in sorted({one.chain for one in traces})]
    for row, chain in zip(rows_of(traces), by_chain, strict=True):
        sampled = [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
        assert sampled == [token for one in chain for token in one.sampled_ids]
        assert row.token_ids == chain[-1].prompt_ids + chain[-1].sampled_ids


@given(sessions(), st.randoms())
def test_the_order_of_traces_does_not_matter(traces, rng):
    shuffled = list(traces)
    rng.shuffle(shuffled)
    assert rows_of(shuffled) == rows_of(traces)


def test_a_prompt_that_leaves_its_chain_is_refused():
    with pytest.raises(RowError, match="token 1"):
        rows_of([trace(0, 0, [1, 2], [3]), trace(1, 0, [1, 9, 3, 4], [5])])


def test_logprobs_that_do_not_fit_are_refused():
    with pytest.raises(RowError, match="do not match"):
        rows_of([trace(0, 0, [1], [2, 3], logprobs=(-0.1,))])
    with pytest.raises(RowError, match="do not match"):
        rows_of([trace(0, 0, [1], [2], logprobs=(float("nan"),))])


def test_a_superseded_reply_is_not_trained():
    first = trace(0, 0, [1], [2])
    again = trace(1, 1, [1], [7, 8], break_kind=Break.duplicate)
    [row] = rows_of([first, again])
    assert row.token_ids == (1, 7, 8) and row.trained_tokens == 2


def test_an_aborted_reply_is_not_trained():
    assert rows_of([trace(0, 0, [1], [2], finish_reason="abort")]) == []


def test_weight_versions_span_the_row():
    [row] = rows_of([trace(0, 0, [1], [2], weight_version=4), trace(1, 0, [1, 2, 3], [4], weight_version=6)])
    assert row.weight_versions == (4, 6)


@given(sessions(), st.data())
def test_an_id_that_is_not_what_the_row_has_at_its_place_is_refused(traces, data):
    """Of what a turn adds, sampled or not: another id there is another conversation."""
    chain = [one for one in traces if one.chain == traces[-1].chain]
    place = data.draw(st.integers(0, len(chain) - 1))
    turn, known = chain[place], len(chain[place - 1].prompt_ids + chain[place - 1].sampled_ids) if place else 0
    at = data.draw(st.integers(known, len(turn.prompt_ids) - 1))
    other = (*turn.prompt_ids[:at], turn.prompt_ids[at] + 1, *turn.prompt_ids[at + 1 :])
    changed = [dataclasses.replace(one, prompt_ids=other) if one is turn else one for one in traces]
    if place == len(chain) - 1:  # the row is made of it
        assert rows_of(changed)[-1].token_ids == other + turn.sampled_ids
    else:
        with pytest.raises(RowError, match=f"token {at}$"):
            rows_of(changed)
