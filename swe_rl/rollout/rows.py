"""Traces to training rows.

Invariants:
- Sampled tokens have mask 1 and their own log-probability, everything else mask 0 and 0.0.
- One row a chain; each sampled token is in at most one row; a reply that a client's retry superseded, or that was
  aborted, is in none.
- Within a chain every prompt starts with the ids of the row so far, id for id; anything else is a RowError.
"""

import math
from collections.abc import Sequence

from swe_rl.algo.row import Row
from swe_rl.errors import RunError
from swe_rl.gateway.trace import Break, Trace


class RowError(RunError):
    """Traces contradict each other: no row can be made of them without guessing."""


def build_rows(
    traces: Sequence[Trace], *, trajectory_id: str, group_id: str, advantage: float, trained: bool
) -> list[Row]:
    """Rows of one trajectory, in order of its chains; none for a trajectory without a usable completion."""
    rows = []
    for chain in _chains(traces):
        ids: list[int] = []
        mask: list[int] = []
        logprobs: list[float] = []
        for trace in chain:
            _extend(trace, ids, mask, logprobs)
        versions = [trace.weight_version for trace in chain]
        rows.append(
            Row(
                trajectory_id=trajectory_id,
                group_id=group_id,
                token_ids=tuple(ids),
                loss_mask=tuple(mask),
                rollout_logprobs=tuple(logprobs),
                advantage=advantage,
                weight_versions=(min(versions), max(versions)),
                trained=trained,
            )
        )
    return rows


def _chains(traces: Sequence[Trace]) -> list[list[Trace]]:
    """The traces by chain, without the superseded and the aborted ones."""
    superseded = {one.turn - 1 for one in traces if one.break_kind is Break.duplicate}
    chains: dict[int, list[Trace]] = {}
    for trace in sorted(traces, key=lambda one: (one.chain, one.turn)):
        if trace.turn not in superseded and trace.finish_reason != "abort" and trace.sampled_ids:
            chains.setdefault(trace.chain, []).append(trace)
    return list(chains.values())


def _extend(trace: Trace, ids: list[int], mask: list[int], logprobs: list[float]) -> None:
    prompt, sampled = trace.prompt_ids, trace.sampled_ids
    if len(sampled) != len(trace.logprobs) or not all(math.isfinite(one) and one <= 1e-6 for one in trace.logprobs):
        raise RowError(f"session {trace.session_id}, turn {trace.turn}: sampled ids and log-probabilities do not match")
    if list(prompt[: len(ids)]) != ids:
        at = next(
            (i for i, (old, new) in enumerate(zip(ids, prompt, strict=False)) if old != new), min(len(ids), len(prompt))
        )
        raise RowError(f"session {trace.session_id}, turn {trace.turn}: the prompt leaves its chain at token {at}")
    new = len(prompt) - len(ids)
    ids += [*prompt[len(ids) :], *sampled]
    mask += [0] * new + [1] * len(sampled)
    logprobs += [0.0] * new + [min(one, 0.0) for one in trace.logprobs]
