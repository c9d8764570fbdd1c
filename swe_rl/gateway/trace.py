"""A trace is one completion as the engine saw it.

Invariants:
- What grows with tokens is in arrays, and no token is stored twice: a trace has what its prompt adds, not the whole
  prompt.
- A whole prompt is only put together on demand, by one concatenation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from swe_rl.algo.row import Ids, Logprobs, Routes, Versions, same_fields
from swe_rl.errors import RunError


class TraceStoreError(RunError):
    """The trace store cannot be read or written."""


class Break(StrEnum):
    """Says why a turn does not extend the one before it. A first turn has none. `duplicate` is a retry of the turn
    before. Two are meant: with `compacted` the agent made its conversation shorter, and `sub_agent` begins another."""

    prefix_changed = "prefix_changed"
    duplicate = "duplicate"
    branch = "branch"
    truncated = "truncated"
    compacted = "compacted"
    sub_agent = "sub_agent"


# These are no accidents of a client: agents of ours say that they begin a segment.
MEANT_BREAKS = frozenset({Break.compacted, Break.sub_agent})


class SegmentRole(StrEnum):
    """Says what a turn's segment is in its attempt. A turn that writes a summary has the role `summary`, also where it
    ends a segment of another role."""

    main = "main"  # the conversation as it began
    compacted = "compacted"  # it goes on after a compaction
    summary = "summary"  # it sums up the segment that it comes from
    sub_agent = "sub_agent"  # the conversation of an agent that works on a part of the task
    branch = "branch"  # it goes on from an earlier turn
    rewritten = "rewritten"  # earlier messages changed, and no compaction of ours changed them


@dataclass(frozen=True, slots=True)
class Recorded:
    """Has the numbers of a recorded turn. `base_turn` is the turn that it extends within its chain: the first
    `base_tokens` ids of its prompt are that turn's prompt and sampled ids."""

    turn: int
    chain: int
    break_kind: Break | None
    base_turn: int | None = None
    base_tokens: int = 0
    added_tokens: int = 0  # The prompt added so many tokens to those of the session's segments: `TurnPlan`.
    role: SegmentRole = SegmentRole.main
    parent_turn: int | None = None
    sub_agent: int = 0  # The turn is this sub-agent's; 0: the session's own agent's.


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Holds a completion, with what its prompt adds to the turn that it goes on from. The prompt is the prompt and
    sampled ids of the session's turn `base_turn` (`base_tokens` ids), then `delta_ids`; without a base it is
    `delta_ids` alone.

    `logprobs` (over the whole vocabulary) and `weight_versions` have one entry for each sampled token: a reply that
    goes on across an update of the weights has several versions. `chain` counts the rows that a session will give: it
    goes up by one at every break. Within a chain a prompt starts with the one before it and what was sampled then, id
    for id. `held_s` is the part of `queue_s` in which the router held the request before it placed it; for the rest of
    `queue_s` the request waited in the engine.

    `role` is that of the turn's segment. `parent_turn` is the turn that a chain came from, and only the first trace of
    a chain has one: for a compacted segment this is the summary that it goes on with, or else the turn before, and for
    a sub-agent the turn that handed its task on. `sub_agent` is the number of the sub-agent whose turn it is, or 0.

    `routes` has the experts of each token that this engine read and the base's engine had not: from the last token that
    the base sampled on. The last token of this trace is not among them, as nobody has read it yet.

    Sequences of other types become arrays.
    """

    session_id: str
    turn: int
    chain: int
    delta_ids: Ids
    sampled_ids: Ids
    logprobs: Logprobs
    weight_versions: Versions
    finish_reason: str
    break_kind: Break | None = None
    created_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cached_tokens: int = 0
    engine: str = ""
    held_s: float = 0.0
    base_turn: int | None = None
    base_tokens: int = 0
    routes: Routes | None = None
    role: SegmentRole = SegmentRole.main
    parent_turn: int | None = None
    sub_agent: int = 0

    def __post_init__(self) -> None:
        for name in ("delta_ids", "sampled_ids", "weight_versions"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.int32))
        object.__setattr__(self, "logprobs", np.asarray(self.logprobs, np.float32))

    def __eq__(self, other: object) -> bool:
        return same_fields(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def prompt_tokens(self) -> int:
        return self.base_tokens + len(self.delta_ids)

    @property
    def tokens(self) -> int:
        """Counts the ids of the prompt and of what was sampled."""
        return self.prompt_tokens + len(self.sampled_ids)


def superseded_turns(traces: Sequence[Trace]) -> set[int]:
    """Returns the turns whose reply is in no row, because a retry took its place and nothing went on from it."""
    ends: dict[int, int] = {}
    for trace in traces:
        ends[trace.chain] = max(trace.turn, ends.get(trace.chain, 0))
    return {trace.turn - 1 for trace in traces if trace.break_kind is Break.duplicate}.intersection(ends.values())


def unused_summaries(traces: Sequence[Trace]) -> set[int]:
    """Returns the turns that wrote a summary with which no segment goes on: it was rejected, or the attempt ended."""
    used = {trace.parent_turn for trace in traces}
    return {trace.turn for trace in traces if trace.role is SegmentRole.summary} - used


def trace_ancestry(trace: Trace, by_turn: Mapping[int, Trace]) -> list[Trace]:
    """Returns the traces that make up this trace's prompt, oldest first, and the trace itself at the end."""
    line = [trace]
    while line[-1].base_turn is not None:
        line.append(by_turn[line[-1].base_turn])
    return line[::-1]


def joined_ids(line: Sequence[Trace]) -> Ids:
    """Joins an ancestry's ids into the last trace's whole prompt and what was sampled after it."""
    return np.concatenate([part for trace in line for part in (trace.delta_ids, trace.sampled_ids)])


def known_routes(base_tokens: int) -> int:
    """Counts the tokens whose experts are already in traces, if a prompt goes on from `base_tokens` tokens. An engine
    has read all of these but the last."""
    return max(0, base_tokens - 1)


def joined_routes(line: Sequence[Trace]) -> Routes | None:
    """Joins an ancestry's routes: the experts of all tokens but the last one. Returns None if a trace has none."""
    parts = [trace.routes for trace in line]
    if any(part is None for part in parts):
        return None
    return np.concatenate([part for part in parts if part is not None])


def whole_prompts(traces: Sequence[Trace]) -> Iterator[Ids]:
    """Yields the whole prompt of each trace of a session, one after another: together they would take the sum of all
    prompts."""
    by_turn = {trace.turn: trace for trace in traces}
    for trace in traces:
        yield joined_ids(trace_ancestry(trace, by_turn))[: trace.prompt_tokens]
