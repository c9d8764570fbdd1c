"""Turns traces into training rows, or renders the final messages once as a baseline (`rollout.capture=retokenize`).

Invariants:
- Sampled tokens have mask 1 and their own log-probability, everything else mask 0 and 0.0.
- There is one row a chain; each sampled token is in one row; a reply that was aborted, or that a client's retry
  superseded and nothing went on from, is in none, and neither is a summary that no segment goes on from.
- A row's ids are the last prompt of its chain and what was sampled after it, put together by one concatenation. What
  every trace adds stands there at its place, id for id; anything else is a RowError.
- The work grows with the row, not with the sum of its prompts, and is done on arrays.
- A rendered row has no log-probabilities. The traces are captured underneath all the same, so that the mismatch is
  measured and not guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from swe_rl.agent.agent import AgentResult
from swe_rl.algo.credit import of_turns
from swe_rl.algo.row import ROUNDING_NATS as _ROUNDING_NATS
from swe_rl.algo.row import Ids, Mask, PerToken, Row, fill_sampled, find_unsound_logprob
from swe_rl.errors import RunError
from swe_rl.gateway.trace import Trace, joined_ids, joined_routes, superseded_turns, trace_ancestry, whole_prompts
from swe_rl.model.chat import ChatRenderer
from swe_rl.rollout.segments import recorded_chains
from swe_rl.rollout.trajectory import Trajectory


class RowError(RunError):
    """Traces contradict each other: no row can be made of them without guessing."""


def traced_rows(trajectory: Trajectory, traces: Sequence[Trace]) -> list[Row]:
    """Returns rows of one trajectory; none without a usable completion. Raises RowError.

    They are in the order in which their chains ended: so the row of an agent follows those of its sub-agents, and the
    last row has the end of the attempt.
    """
    by_turn = {trace.turn: trace for trace in traces}
    chains = sorted(recorded_chains(traces), key=lambda chain: chain[-1].turn)
    untrained = {segment.number for segment in trajectory.segments if not segment.trained}
    answered = [trace.turn for chain in recorded_chains(traces, with_unused=True) for trace in chain]
    answers = {turn: i for i, turn in enumerate(sorted(answered))}
    rows = []
    for chain in chains:
        line = trace_ancestry(chain[-1], by_turn)
        ids = joined_ids(line)
        mask = np.zeros(len(ids), np.bool_)
        logprobs = np.zeros(len(ids), np.float32)
        _check_chain(chain, ids, {trace.turn for trace in line}, by_turn)
        for trace in chain:
            place = slice(trace.prompt_tokens, trace.tokens)
            mask[place] = True
            logprobs[place] = np.minimum(trace.logprobs, 0.0)
        rows.append(
            Row(
                trajectory_id=trajectory.trajectory_id,
                group_id=trajectory.group_id,
                token_ids=ids,
                loss_mask=mask,
                rollout_logprobs=logprobs,
                advantage=fill_sampled(trajectory.advantage or 0.0, mask),
                weight_versions=np.concatenate([trace.weight_versions for trace in chain]),
                trained=trajectory.trained and chain[0].chain not in untrained,
                turns=_turn_of_tokens(chain, answers) if len(answers) == len(trajectory.turns) else None,
                routes=joined_routes(line),
                segment=chain[0].chain,
            )
        )
    return rows


def _turn_of_tokens(chain: Sequence[Trace], answers: Mapping[int, int]) -> Ids:
    """Returns for each sampled token its answer's number among those that the agent went on from."""
    return np.concatenate([np.full(len(trace.sampled_ids), answers[trace.turn], np.int32) for trace in chain])


def with_current_advantages(rows: Sequence[Row], trajectories: Sequence[Trajectory]) -> list[Row]:
    """Returns rows with the advantages of now. What was left out of training when the rows were made stays so."""
    by_id = {owner.trajectory_id: owner for owner in trajectories}
    last = {row.trajectory_id: row for row in rows if row.sampled_tokens}
    # An attempt may end in a sub-agent that is not trained.
    last |= {row.trajectory_id: row for row in rows if row.trained_tokens}
    return [
        replace(
            row,
            advantage=_advantage_per_token(row, trajectory),
            trained=row.trained and trajectory.trained,
            rewards=_rewards_per_token(row, trajectory, is_last=row is last.get(row.trajectory_id)),
        )
        for row in rows
        for trajectory in (by_id[row.trajectory_id],)
    ]


def _advantage_per_token(row: Row, trajectory: Trajectory) -> PerToken:
    """Returns the trajectory's advantage, and that of the turn that sampled a token, where it is known."""
    whole = fill_sampled(trajectory.advantage or 0.0, row.loss_mask)
    if row.turns is None or not trajectory.turn_advantages:
        return whole
    together = of_turns(trajectory.advantage or 0.0, trajectory.turn_advantages)
    return together.astype(np.float32)[row.turns]


def _rewards_per_token(row: Row, trajectory: Trajectory, *, is_last: bool) -> PerToken | None:
    """Returns rewards for a critic: the trajectory's at the end of its last row, and a turn's where it ended."""
    if trajectory.charged_reward is None:
        return None
    rewards = fill_sampled(0.0, row.loss_mask)
    if is_last:
        rewards[-1] += trajectory.charged_reward
    if row.turns is not None and trajectory.turn_rewards:
        # -1 is the number of no turn, so the last token always ends one.
        ends = np.flatnonzero(np.diff(row.turns, append=-1))
        rewards[ends] += np.array(trajectory.turn_rewards, np.float32)[row.turns[ends]]
    return rewards


def _check_chain(chain: Sequence[Trace], ids: Ids, in_line: set[int], by_turn: Mapping[int, Trace]) -> None:
    """Checks that each trace adds what `ids` has at its place. Those `in_line` do: `ids` was made of them."""
    known = 0
    for trace in chain:
        _check_logprobs(trace)
        if trace.turn not in in_line or trace.prompt_tokens < known:
            _check_in_line(trace, known, ids, by_turn)
        known = trace.tokens


def _check_logprobs(trace: Trace) -> None:
    where = f"session {trace.session_id}, turn {trace.turn}"
    tokens = len(trace.sampled_ids)
    logprobs = len(trace.logprobs)
    versions = len(trace.weight_versions)
    if not tokens == logprobs == versions:
        raise RowError(
            f"{where}: {tokens} sampled ids have {logprobs} log-probabilities and {versions} weight versions, and each "
            "needs one"
        )
    if (wrong := find_unsound_logprob(trace.logprobs)) is not None:
        raise RowError(
            f"{where}: the log-probability of its token {wrong} is {trace.logprobs[wrong]:g}, and at most 0 was "
            f"expected (up to {_ROUNDING_NATS:g} is taken for rounding)"
        )


def _check_in_line(trace: Trace, known: int, ids: Ids, by_turn: Mapping[int, Trace]) -> None:
    whole = joined_ids(trace_ancestry(trace, by_turn))
    new = whole[known:]
    there = ids[known : len(whole)]
    if trace.prompt_tokens < known or not np.array_equal(new, there):
        shorter = min(len(new), len(there))
        apart = np.flatnonzero(new[:shorter] != there[:shorter])
        at = known + int(apart[0]) if len(apart) else min(known, trace.prompt_tokens)
        raise RowError(f"session {trace.session_id}, turn {trace.turn}: the prompt leaves its chain at token {at}")


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """A whole conversation as ids, with the spans of the assistant's messages (end token included)."""

    token_ids: Ids
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, result: AgentResult, renderer: ChatRenderer) -> "Rendered":
        ids, spans = renderer.whole(result.messages, result.tools)
        return cls(np.array(ids, np.int32), tuple(spans))

    def mask(self) -> Mask:
        mask = np.zeros(len(self.token_ids), np.bool_)
        for start, end in self.spans:
            mask[start:end] = True
        return mask


@dataclass(slots=True)
class Mismatch:
    """The mismatch as counts over trajectories; rates are derived."""

    trajectories: int = 0
    trajectories_differing: int = 0
    turns: int = 0
    turns_differing: int = 0
    tokens: int = 0
    tokens_differing: int = 0

    def add(self, rendered: Rendered, traces: Sequence[Trace]) -> bool:
        """Counts a trajectory. Returns whether any of its turns differs.

        A turn differs when its sampled ids, or the context in front of them, are not the rendered ones. A superseded
        reply is no turn.
        """
        differing = 0
        left_out = superseded_turns(traces)
        traces = [trace for trace in traces if trace.turn not in left_out]
        for number, (trace, prompt) in enumerate(zip(traces, whole_prompts(traces), strict=True)):
            start, end = rendered.spans[number] if number < len(rendered.spans) else (0, 0)
            same_context = np.array_equal(rendered.token_ids[:start], prompt)
            span = rendered.token_ids[start:end]
            self.tokens_differing += _count_differing(span, trace.sampled_ids)
            self.tokens += len(trace.sampled_ids)
            differing += not (same_context and np.array_equal(span, trace.sampled_ids))
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


def _count_differing(rendered: Ids, sampled: Ids) -> int:
    """Returns the number of sampled tokens that are not at their place in the rendered span."""
    shorter = min(len(rendered), len(sampled))
    return len(sampled) - int(np.count_nonzero(rendered[:shorter] == sampled[:shorter]))


def retokenized_rows(
    trajectory: Trajectory,
    result: AgentResult | None,
    traces: Sequence[Trace],
    renderer: ChatRenderer,
    mismatch: Mismatch,
    *,
    masks: bool = False,
) -> list[Row]:
    """Returns one row of the final messages, and counts its difference to what was really sampled into `mismatch`.

    With `masks` a row with a difference is not trained.
    """
    if result is None or not traces:
        return []
    rendered = Rendered.of(result, renderer)
    differs = mismatch.add(rendered, traces)
    mask = rendered.mask()
    row = Row(
        trajectory_id=trajectory.trajectory_id,
        group_id=trajectory.group_id,
        token_ids=rendered.token_ids,
        loss_mask=mask,
        rollout_logprobs=None,
        advantage=fill_sampled(trajectory.advantage or 0.0, mask),
        weight_versions=np.full(np.count_nonzero(mask), traces[0].weight_versions[0], np.int32),
        trained=trajectory.trained and not (masks and differs),
    )
    return [row]
