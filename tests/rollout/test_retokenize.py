"""The mismatch of rendering again is measured turn by turn and token by token."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.gateway.trace import Break, Trace
from swe_rl.rollout.rows import Mismatch, Rendered

ids = st.lists(st.integers(0, 99), min_size=1, max_size=6).map(tuple)
turns = st.lists(st.tuples(ids, ids), min_size=1, max_size=5)  # what is new in a prompt, what is sampled


def session(parts) -> tuple[Rendered, list[Trace]]:
    """Traces, and a rendering that agrees with them id for id."""
    held: tuple[int, ...] = ()
    traces, spans = [], []
    for turn, (new, sampled) in enumerate(parts):
        prompt = held + new
        traces.append(Trace("s", turn, 0, prompt, sampled, (-0.5,) * len(sampled), (0,) * len(sampled), "stop"))
        spans.append((len(prompt), len(prompt) + len(sampled)))
        held = prompt + sampled
    return Rendered(np.array(held), tuple(spans)), traces


@given(turns)
def test_the_same_rendering_differs_nowhere(parts):
    mismatch = Mismatch()
    mismatch.add(*session(parts))
    assert set(mismatch.rates().values()) == {0.0}
    assert mismatch.turns == len(parts) and mismatch.tokens == sum(len(sampled) for _, sampled in parts)


@given(turns, st.data())
def test_one_changed_id_is_that_turn_and_that_token(parts, data):
    rendered, traces = session(parts)
    turn = data.draw(st.integers(0, len(parts) - 1))
    start, end = rendered.spans[turn]
    at = data.draw(st.integers(start, end - 1))
    changed = rendered.token_ids.copy()
    changed[at] += 100
    mismatch = Mismatch()
    mismatch.add(Rendered(changed, rendered.spans), traces)
    # The turn itself, and all after it, whose context is no longer what was sampled; their own tokens are the same.
    assert mismatch.turns_differing == len(parts) - turn
    assert mismatch.tokens_differing == 1 and mismatch.trajectories_differing == 1


@given(turns)
def test_a_changed_id_of_the_last_turn_is_exactly_one_turn_and_one_token(parts):
    rendered, traces = session(parts)
    mismatch = Mismatch()
    rendered.token_ids[-1] += 100
    mismatch.add(rendered, traces)
    assert (mismatch.turns_differing, mismatch.tokens_differing) == (1, 1)


@given(turns)
def test_turns_that_were_not_rendered_differ_whole(parts):
    rendered, traces = session(parts)
    mismatch = Mismatch()
    mismatch.add(Rendered(rendered.token_ids, rendered.spans[:-1]), traces)
    assert mismatch.turns_differing == 1 and mismatch.tokens_differing == len(traces[-1].sampled_ids)


@given(turns, st.data())
def test_a_reply_that_a_retry_superseded_is_no_turn(parts, data):
    rendered, traces = session(parts)
    turn = data.draw(st.integers(0, len(parts) - 1))
    again = [replace(trace, turn=trace.turn + 1, chain=1) for trace in traces[turn:]]
    again[0] = replace(again[0], break_kind=Break.duplicate)
    mismatch = Mismatch()
    mismatch.add(rendered, [*traces[:turn], replace(traces[turn], sampled_ids=(7, 7)), *again])
    assert set(mismatch.rates().values()) == {0.0} and mismatch.turns == len(parts)


@given(turns)
def test_the_mask_is_exactly_the_spans(parts):
    rendered, traces = session(parts)
    masked = [token for token, mask in zip(rendered.token_ids, rendered.mask(), strict=True) if mask]
    assert masked == [token for trace in traces for token in trace.sampled_ids]


def test_no_trajectory_no_rate():
    assert set(Mismatch().rates().values()) == {0.0}
