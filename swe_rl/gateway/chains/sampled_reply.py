"""This module has a sampled reply, the trace that is written of it, and the reply that such a trace gives back.

Invariants:
- A trace holds what its turn adds to the turn before: the first `base_tokens` ids of the prompt are that turn's.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from swe_rl.algo.row import Routes
from swe_rl.engine.engine import Completion
from swe_rl.engine.token_ids import TokenIds
from swe_rl.gateway.trace import Recorded, Trace, known_routes
from swe_rl.model.experts import unknown_route


@dataclass(frozen=True, slots=True)
class SampledReply:
    """Holds an engine's answer. `held_s` says how long the router held the request. `call` is the call's number if
    another process recorded it."""

    completion: Completion
    engine: str
    held_s: float
    call: int = 0
    recalled: bool = False  # An earlier process sampled it.


def recalled_reply(trace: Trace) -> SampledReply:
    """Returns the reply of a turn that an earlier process recorded."""
    return SampledReply(_completion_of(trace), trace.engine, trace.held_s, recalled=True)


def make_trace(session_id: str, prompt_ids: TokenIds, turn: Recorded, sampled: SampledReply) -> Trace:
    """Returns the record of a turn. It has what the turn adds to `turn.base_turn`, not the whole prompt."""
    completion = sampled.completion
    return Trace(
        session_id=session_id,
        turn=turn.turn,
        chain=turn.chain,
        delta_ids=np.asarray(prompt_ids, np.int32)[turn.base_tokens :].copy(),
        sampled_ids=np.array(completion.token_ids, np.int32),
        logprobs=np.array(completion.logprobs, np.float32),
        weight_versions=np.array(completion.weight_versions, np.int32),
        finish_reason=completion.finish_reason,
        break_kind=turn.break_kind,
        created_s=time.time(),
        queue_s=sampled.held_s + completion.queue_s,
        prefill_s=completion.prefill_s,
        decode_s=completion.decode_s,
        cached_tokens=completion.cached_tokens,
        engine=sampled.engine,
        held_s=sampled.held_s,
        base_turn=turn.base_turn,
        base_tokens=turn.base_tokens,
        role=turn.role,
        parent_turn=turn.parent_turn,
        sub_agent=turn.sub_agent,
        routes=_new_routes(completion, known_routes(turn.base_tokens)),
    )


def _new_routes(completion: Completion, known: int) -> Routes | None:
    """Returns the routes after the first `known` tokens. If another call extended the chain meanwhile, so that all
    tokens are new, the routes that the engine was not asked for are marked as unknown."""
    routes = completion.routes
    missing = completion.routes_from - known
    if routes is None or missing <= 0:
        if routes is None:
            return None
        return routes[-missing:].copy()
    padded: Any = np.pad(routes, ((missing, 0), (0, 0), (0, 0)), constant_values=unknown_route(routes.dtype))
    return padded  # type: ignore[no-any-return]


def _completion_of(trace: Trace) -> Completion:
    """Returns the reply of a recorded turn as its engine gave it."""
    versions = tuple(trace.weight_versions.tolist())
    return Completion(
        token_ids=tuple(trace.sampled_ids.tolist()),
        logprobs=tuple(trace.logprobs.tolist()),
        finish_reason=trace.finish_reason,  # type: ignore[arg-type]
        weight_version=versions[-1] if versions else 0,
        cached_tokens=trace.cached_tokens,
        queue_s=max(0.0, trace.queue_s - trace.held_s),
        prefill_s=trace.prefill_s,
        decode_s=trace.decode_s,
        token_versions=versions,
        routes=trace.routes,
        routes_from=known_routes(trace.base_tokens) if trace.routes is not None else 0,
    )
