"""Traces to rows: accounting that must hold for every session."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.row import Row, age_steps
from swe_rl.engine.server.wire import BadNumbersError, TokenIn, parse_reply
from swe_rl.gateway.trace import Break, Trace, superseded_turns
from swe_rl.rollout.rows import RowError, traced_rows
from swe_rl.rollout.trajectory import Status, Trajectory

ids = st.lists(st.integers(0, 999), min_size=1, max_size=8)


def trace(turn: int, chain: int, prompt: list[int], sampled: list[int], **more) -> Trace:
    """With its whole prompt."""
    more = {"logprobs": (-0.5,) * len(sampled), "weight_versions": (3,) * len(sampled), "finish_reason": "stop"} | more
    return Trace("s", turn, chain, prompt, sampled, **more)


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
        assert row.token_ids.tolist() == [*chain[-1].delta_ids, *chain[-1].sampled_ids]


@given(sessions(), st.randoms())
def test_the_order_of_traces_does_not_matter(traces, rng):
    shuffled = list(traces)
    rng.shuffle(shuffled)
    assert rows_of(shuffled) == rows_of(traces)


def test_a_prompt_that_leaves_its_chain_is_refused():
    with pytest.raises(RowError, match="token 1"):
        rows_of([trace(0, 0, [1, 2], [3]), trace(1, 0, [1, 9, 3, 4], [5])])


def test_logprobs_that_do_not_fit_are_refused():
    with pytest.raises(RowError, match="2 sampled ids have 1 log-probabilities and 2 weight versions"):
        rows_of([trace(0, 0, [1], [2, 3], logprobs=(-0.1,), weight_versions=(0, 0))])
    with pytest.raises(RowError, match=r"turn 0: the log-probability of its token 1 is nan, and at most 0"):
        rows_of([trace(0, 0, [1], [2, 3], logprobs=(-0.1, float("nan")))])


@pytest.mark.parametrize(("above_nats", "sound"), [(1.5e-6, True), (9e-4, True), (2e-3, False)])
def test_rounding_above_0_is_taken_alike_from_every_engine(above_nats, sound):
    """One that a server reports and one that is in a trace."""
    choice = {"token_ids": [2], "logprobs": {"token_logprobs": [above_nats]}, "finish_reason": "stop"}
    if sound:
        assert parse_reply(TokenIn.completions, {"choices": [choice]}).logprobs == (0.0,)
        [row] = rows_of([trace(0, 0, [1], [2], logprobs=(above_nats,))])
        assert row.rollout_logprobs.tolist() == [0.0, 0.0]
        return
    expected = rf"token 0 is {above_nats},.* and at most 0 was expected \(up to 0.001 is taken for rounding\)"
    with pytest.raises(BadNumbersError, match=expected):
        parse_reply(TokenIn.completions, {"choices": [choice]})
    with pytest.raises(RowError, match=expected):
        rows_of([trace(0, 0, [1], [2], logprobs=(above_nats,))])


def test_a_superseded_reply_is_not_trained():
    first = trace(0, 0, [1], [2])
    again = trace(1, 1, [1], [7, 8], break_kind=Break.duplicate)
    [row] = rows_of([first, again])
    assert row.token_ids.tolist() == [1, 7, 8] and row.trained_tokens == 2


def test_a_reply_that_the_agent_went_on_from_is_trained_whatever_it_asked_in_between():
    first = trace(0, 0, [1], [2])
    again = trace(1, 1, [1], [7, 8], break_kind=Break.duplicate)
    assert superseded_turns([first, again]) == {0}
    on = trace(2, 0, [3], [4], base_turn=0, base_tokens=2)
    assert superseded_turns([first, again, on]) == set()
    assert [row.token_ids.tolist() for row in rows_of([first, again, on])] == [[1, 7, 8], [1, 2, 3, 4]]
    assert sum(row.trained_tokens for row in rows_of([first, again, on])) == 4


def test_an_aborted_reply_is_not_trained():
    assert rows_of([trace(0, 0, [1], [2], finish_reason="abort")]) == []


def test_each_sampled_token_keeps_its_weight_version():
    first = trace(0, 0, [1], [2], weight_versions=(6,))
    [row] = rows_of([first, trace(1, 0, [1, 2, 3], [4, 5], weight_versions=(4, 9))])
    assert row.weight_versions.tolist() == [6, 4, 9] and row.oldest_version == 4
    assert age_steps(row, 9) == 5


@given(sessions(), st.data())
def test_an_id_that_is_not_what_the_row_has_at_its_place_is_refused(traces, data):
    """Of what a turn adds, sampled or not: another id there is another conversation."""
    chain = [one for one in traces if one.chain == traces[-1].chain]
    place = data.draw(st.integers(0, len(chain) - 1))
    turn, known = chain[place], chain[place - 1].tokens if place else 0
    at = data.draw(st.integers(known, turn.prompt_tokens - 1))
    other = turn.delta_ids.copy()
    other[at] += 1
    changed = [dataclasses.replace(one, delta_ids=other) if one is turn else one for one in traces]
    if place == len(chain) - 1:  # the row is made of it
        assert rows_of(changed)[-1].token_ids.tolist() == [*other, *turn.sampled_ids]
    else:
        with pytest.raises(RowError, match=f"token {at}$"):
            rows_of(changed)


@st.composite
def conversations(draw) -> list[tuple[Trace, list[int]]]:
    """As a gateway records them, with the whole prompt of each: chains that go on, also in turns with others, breaks of
    each kind, replies that were superseded, cut off or aborted, and prompts that are stored whole within their chain.
    """
    traces: list[tuple[Trace, list[int]]] = []
    ends: dict[int, tuple[Trace, list[int]]] = {}  # by chain, of those that can go on
    chains = 0
    for turn in range(draw(st.integers(1, 9))):
        sampled = draw(ids)
        more = {
            "logprobs": [draw(st.sampled_from([-0.25, -3.0, 0.0, 5e-7])) for _ in sampled],
            "weight_versions": [draw(st.integers(0, 2)) for _ in sampled],
            "finish_reason": draw(st.sampled_from(["stop", "stop", "length", "abort"])),
        }
        way = draw(st.sampled_from(["extend", "extend", "whole", *Break])) if ends else Break.branch
        chain = draw(st.sampled_from(sorted(ends))) if way in ("extend", "whole") else chains
        if way in ("extend", "whole"):
            base, held = ends[chain]
            delta = draw(st.one_of(ids, st.just([])))
            prompt = held + delta
            stored = {"base_turn": base.turn, "base_tokens": base.tokens} if way == "extend" else {}
            new = trace(turn, chain, delta if stored else prompt, sampled, **more, **stored)
        else:
            last, prompt = traces[-1] if traces else (None, [])
            prompt = list(prompt) if way is Break.duplicate and last else draw(ids)
            new = trace(turn, chain, prompt, sampled, **more, break_kind=way if traces else None)
            chains += 1
        traces.append((new, prompt))
        ends[chain] = new, prompt + sampled
    return traces


def simple_rows(traces: list[tuple[Trace, list[int]]]) -> list[Row]:
    """What a row is, of whole prompts: the last one of its chain and its reply; each reply stands at its place."""
    retried = {later.turn - 1 for later, _ in traces if later.break_kind is Break.duplicate}
    left_out = {
        turn for turn in retried if not any(one.chain == traces[turn][0].chain for one, _ in traces[turn + 1 :])
    }
    kept = [(one, prompt) for one, prompt in traces if one.turn not in left_out and one.finish_reason != "abort"]
    rows = []
    ends = {one.chain: one.turn for one, _ in kept}
    for chain in sorted(ends, key=ends.get):  # type: ignore[arg-type]
        turns = [(one, prompt) for one, prompt in kept if one.chain == chain]
        token_ids = turns[-1][1] + turns[-1][0].sampled_ids.tolist()
        mask, logprobs, versions = [0] * len(token_ids), [0.0] * len(token_ids), []
        for one, prompt in turns:
            assert token_ids[: len(prompt)] == prompt
            for at, logprob in enumerate(one.logprobs.tolist(), len(prompt)):
                mask[at], logprobs[at] = 1, min(logprob, 0.0)
            versions += one.weight_versions.tolist()
        rows.append(Row("t", "g", token_ids, mask, logprobs, 0.5, versions, segment=chain))
    return rows


@given(conversations())
def test_rows_of_deltas_are_those_of_whole_prompts(conversation):
    assert rows_of([one for one, _ in conversation]) == simple_rows(conversation)


def numbered(ids: list[int]) -> np.ndarray:
    """Routes that tell whose they are; what is sampled last nobody has read."""
    return (np.array(ids[:-1], np.uint16)[:, None, None] + np.zeros((2, 3), np.uint16)).astype(np.uint16)


@given(conversations(), st.integers(0, 30))
def test_the_experts_of_a_row_are_those_of_its_tokens(conversation, untold):
    """A trace has those of the tokens that its engine read and its base's had not. One that has none is not guessed."""
    traces = []
    for one, prompt in conversation:
        routes = numbered([*prompt, *one.sampled_ids.tolist()])[max(0, one.base_tokens - 1) :]
        traces.append(dataclasses.replace(one, routes=routes))
    rows = rows_of(traces)
    assert all(np.array_equal(row.routes, numbered(row.token_ids.tolist())) for row in rows)
    if untold < len(traces):
        traces[untold] = dataclasses.replace(traces[untold], routes=None)
        again = rows_of(traces)
        assert [row.token_ids.tolist() for row in again] == [row.token_ids.tolist() for row in rows]
        assert all(row.routes is None or np.array_equal(row.routes, numbered(row.token_ids.tolist())) for row in again)
