"""Traces to training rows; or, as a baseline, the final messages rendered once (`rollout.capture=retokenize`).

Invariants:
- Sampled tokens have mask 1 and their own log-probability, everything else mask 0 and 0.0.
- One row a chain; each sampled token is in at most one row; a reply that a client's retry superseded, or that was
  aborted, is in none.
- A row's ids are the last prompt of its chain and what was sampled after it. What every trace adds stands there at its
  place, id for id; anything else is a RowError. That a prompt begins with all before it is how the store keeps it.
- A rendered row has no log-probabilities. The traces are captured underneath all the same, so that the mismatch is
  measured and not guessed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from swe_rl.agent.protocol import AgentResult
from swe_rl.algo.row import Row
from swe_rl.errors import RunError
from swe_rl.gateway.trace import Break, Trace
from swe_rl.model.chat import ChatRenderer
from swe_rl.rollout.trajectory import Trajectory


class RowError(RunError):
    """Traces contradict each other: no row can be made of them without guessing."""


def traced_rows(trajectory: Trajectory, traces: Sequence[Trace]) -> list[Row]:
    """Rows of one trajectory, in order of its chains; none without a usable completion. Raises RowError."""
    rows = []
    for chain in _chains(traces):
        mask: list[int] = []
        logprobs: list[float] = []
        ids = chain[-1].prompt_ids + chain[-1].sampled_ids
        for trace in chain:
            _extend(trace, ids, mask, logprobs)
        versions = [trace.weight_version for trace in chain]
        rows.append(
            Row(
                trajectory_id=trajectory.trajectory_id,
                group_id=trajectory.group_id,
                token_ids=ids,
                loss_mask=tuple(mask),
                rollout_logprobs=tuple(logprobs),
                advantage=trajectory.advantage or 0.0,
                weight_versions=(min(versions), max(versions)),
                trained=trajectory.trained,
            )
        )
    return rows


def weighed(rows: Sequence[Row], trajectories: Sequence[Trajectory]) -> list[Row]:
    """With the advantages of now. What was left out of training when the rows were made stays so."""
    by_id = {owner.trajectory_id: owner for owner in trajectories}
    return [
        replace(row, advantage=trajectory.advantage or 0.0, trained=row.trained and trajectory.trained)
        for row in rows
        for trajectory in (by_id[row.trajectory_id],)
    ]


def _chains(traces: Sequence[Trace]) -> list[list[Trace]]:
    """The traces by chain, without the superseded and the aborted ones."""
    superseded = {later.turn - 1 for later in traces if later.break_kind is Break.duplicate}
    chains: dict[int, list[Trace]] = {}
    for trace in sorted(traces, key=lambda stored: (stored.chain, stored.turn)):
        if trace.turn not in superseded and trace.finish_reason != "abort" and trace.sampled_ids:
            chains.setdefault(trace.chain, []).append(trace)
    return list(chains.values())


def _extend(trace: Trace, ids: tuple[int, ...], mask: list[int], logprobs: list[float]) -> None:
    """Compares what is new only: the work grows with the row, not with the sum of its prompts."""
    sampled, known, end = trace.sampled_ids, len(mask), len(trace.prompt_ids)
    if len(sampled) != len(trace.logprobs) or not all(
        math.isfinite(logprob) and logprob <= 1e-6 for logprob in trace.logprobs
    ):
        raise RowError(f"session {trace.session_id}, turn {trace.turn}: sampled ids and log-probabilities do not match")
    new = trace.prompt_ids[known:] + sampled
    if end < known or ids[known : known + len(new)] != new:
        pairs = enumerate(zip(ids[known:], new, strict=False), known)
        at = next((place for place, (old, other) in pairs if old != other), min(known, end))
        raise RowError(f"session {trace.session_id}, turn {trace.turn}: the prompt leaves its chain at token {at}")
    mask += [0] * (end - known) + [1] * len(sampled)
    logprobs += [0.0] * (end - known) + [min(logprob, 0.0) for logprob in trace.logprobs]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A whole conversation as ids, with the spans of the assistant's messages (end token included)."""

    token_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, result: AgentResult, renderer: ChatRenderer) -> "Rendered":
        ids, spans = renderer.whole(result.messages, result.tools)
        return cls(tuple(ids), tuple(spans))

    def mask(self) -> tuple[int, ...]:
        mask = [0] * len(self.token_ids)
        for start, end in self.spans:
            mask[start:end] = [1] * (end - start)
        return tuple(mask)


@dataclass(slots=True)
class Mismatch:
    """Counts over trajectories; rates are derived."""

    trajectories: int = 0
    trajectories_differing: int = 0
    turns: int = 0
    turns_differing: int = 0
    tokens: int = 0
    tokens_differing: int = 0

    def add(self, rendered: Rendered, traces: Sequence[Trace]) -> bool:
        """A turn differs when its sampled ids, or the context in front of them, are not the rendered ones.

        Returns whether any turn does.
        """
        differing = 0
        for number, trace in enumerate(traces):
            start, end = rendered.spans[number] if number < len(rendered.spans) else (0, 0)
            same_context = rendered.token_ids[:start] == trace.prompt_ids
            span = rendered.token_ids[start:end]
            self.tokens_differing += _differing(span, trace.sampled_ids)
            self.tokens += len(trace.sampled_ids)
            differing += not (same_context and span == trace.sampled_ids)
        self.turns += len(traces)
        self.turns_differing += differing
        self.trajectories += 1
        self.trajectories_differing += bool(differing)
        return differing > 0

    def rates(self) -> dict[str, float]:
        return {
            "mismatch_trajectory_rate": self.trajectories_differing / max(1, self.trajectories),
            "mismatch_turn_rate": self.turns_differing / max(1, self.turns),
            "mismatch_token_rate": self.tokens_differing / max(1, self.tokens),
        }


def _differing(rendered: Sequence[int], sampled: Sequence[int]) -> int:
    """Sampled tokens that are not at their place in the rendered span."""
    same = sum(old == new for old, new in zip(rendered, sampled, strict=False))
    return len(sampled) - same


def retokenized_rows(
    trajectory: Trajectory,
    result: AgentResult | None,
    traces: Sequence[Trace],
    renderer: ChatRenderer,
    mismatch: Mismatch,
    *,
    masks: bool = False,
) -> list[Row]:
    """One row of the final messages, and its difference to what was really sampled counted into `mismatch`.

    `masks`: where there is a difference, the row is not trained.
    """
    if result is None or not traces:
        return []
    rendered = Rendered.of(result, renderer)
    differs = mismatch.add(rendered, traces)
    row = Row(
        trajectory_id=trajectory.trajectory_id,
        group_id=trajectory.group_id,
        token_ids=rendered.token_ids,
        loss_mask=rendered.mask(),
        rollout_logprobs=None,
        advantage=trajectory.advantage or 0.0,
        weight_versions=(traces[0].weight_version,) * 2,
        trained=trajectory.trained and not (masks and differs),
    )
    return [row]
