"""One completion as the engine saw it.

Invariants:
- What grows with tokens is in arrays, and a token is there once: a trace has what its prompt adds, not the whole.
- A whole prompt is put together where somebody asks for it, by one concatenation.
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
    """Why a turn does not extend the one before it; a first turn has none. `duplicate`: a retry of the turn before."""

    prefix_changed = "prefix_changed"
    duplicate = "duplicate"
    branch = "branch"
    truncated = "truncated"


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Its prompt is what the turn `base_turn` of its session ended with (`base_tokens` ids: that one's prompt and
    sampled ids), and then `delta_ids`; without a base it is `delta_ids`.

    `logprobs` and `weight_versions` have one entry a sampled token: a reply that goes on across an update of the
    weights has several versions. `chain` counts the rows a session will give: it goes up by one at every break. Within
    a chain a prompt starts with the one before it and what was sampled then, id for id. `held_s` is the part of
    `queue_s` in which the router held the request before it placed it; the rest of `queue_s` it waited in the engine.
    `routes`: the experts of each token that its engine read and its base's had not, from the last one that the base
    sampled on; what it sampled last nobody has read yet.
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
        """Of its prompt and what was sampled."""
        return self.prompt_tokens + len(self.sampled_ids)


def superseded(traces: Sequence[Trace]) -> set[int]:
    """Turns whose reply is in no row, as a retry took its place and nothing went on from it."""
    ends: dict[int, int] = {}
    for trace in traces:
        ends[trace.chain] = max(trace.turn, ends.get(trace.chain, 0))
    return {trace.turn - 1 for trace in traces if trace.break_kind is Break.duplicate}.intersection(ends.values())


def ancestry(trace: Trace, by_turn: Mapping[int, Trace]) -> list[Trace]:
    """The traces that its prompt is made of, the first one first, and itself."""
    line = [trace]
    while line[-1].base_turn is not None:
        line.append(by_turn[line[-1].base_turn])
    return line[::-1]


def joined_ids(line: Sequence[Trace]) -> Ids:
    """Of an ancestry: the last one's whole prompt and what was sampled after it."""
    return np.concatenate([part for trace in line for part in (trace.delta_ids, trace.sampled_ids)])


def known_routes(base_tokens: int) -> int:
    """Of how many tokens traces have the experts before one that goes on from so many: its engine read all but the last
    of them before."""
    return max(0, base_tokens - 1)


def joined_routes(line: Sequence[Trace]) -> Routes | None:
    """The same, of all tokens but the last one; None where a trace has none."""
    parts = [trace.routes for trace in line]
    return None if any(part is None for part in parts) else np.concatenate([part for part in parts if part is not None])


def whole_prompts(traces: Sequence[Trace]) -> Iterator[Ids]:
    """Of each of a session's traces: one after another, as together they are the sum of all prompts."""
    by_turn = {trace.turn: trace for trace in traces}
    for trace in traces:
        yield joined_ids(ancestry(trace, by_turn))[: trace.prompt_tokens]
