"""One completion as the engine saw it."""

from dataclasses import dataclass
from enum import StrEnum

from swe_rl.errors import RunError


class TraceStoreError(RunError):
    """The trace store cannot be read or written."""


class Break(StrEnum):
    """Why a turn does not extend the one before it; a first turn has none."""

    prefix_changed = "prefix_changed"
    duplicate = "duplicate"
    branch = "branch"
    truncated = "truncated"


@dataclass(frozen=True, slots=True)
class Trace:
    """`prompt_ids` is whole here; the store keeps only what is new since the trace it extends.

    `chain` counts the rows a session will give: it goes up by one at every break. Within a chain,
    `prompt_ids[n + 1]` starts with `prompt_ids[n] + sampled_ids[n]`, id for id. `held_s` is the part of `queue_s` in
    which the router held the request before it placed it; the rest of `queue_s` it waited in the engine.
    """

    session_id: str
    turn: int
    chain: int
    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int
    finish_reason: str
    break_kind: Break | None = None
    created_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cached_tokens: int = 0
    engine: str = ""
    held_s: float = 0.0
