"""This module makes the segments of an attempt from its traces: the conversation as it began, those of sub-agents, and
what followed a compaction or another break.

Invariants:
- A segment is a chain of traces that has a row, and its number is the chain's. Superseded replies are in none.
- A summary is in the segment that it sums up. One with which no segment goes on is in no segment, as it is in no row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.gateway.trace import Break, SegmentRole, Trace, superseded_turns, unused_summaries


@dataclass(frozen=True, slots=True)
class Segment:
    """Describes one segment of an attempt."""

    number: int  # of its chain
    role: SegmentRole
    parent: int | None  # the number of the segment that it came from; None if nothing says it
    calls: int  # the replies in it
    prompt_tokens: int  # of its first prompt
    tokens: int  # at its end: the prompt, and all that came after
    sampled_tokens: int
    sub_agent: int = 0  # the number of the sub-agent whose conversation it is; 0: the agent's own
    trained: bool = True  # False: it is a sub-agent's, and `agent.delegate.trained` is false.

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Segment":
        """Returns what a trajectory's record has of a segment."""
        return cls(**{**record, "role": SegmentRole(record["role"])})


def recorded_chains(traces: Sequence[Trace], *, with_unused: bool = False) -> list[list[Trace]]:
    """Returns the traces by chain, without superseded and aborted ones, and without summaries that were not used.

    These are traces that give rows. `with_unused` returns the unused summaries, too.
    """
    left_out = superseded_turns(traces)
    if not with_unused:
        left_out |= unused_summaries(traces)
    chains: dict[int, list[Trace]] = {}
    for trace in sorted(traces, key=lambda stored: (stored.chain, stored.turn)):
        if trace.turn not in left_out and trace.finish_reason != "abort" and len(trace.sampled_ids):
            chains.setdefault(trace.chain, []).append(trace)
    return list(chains.values())


def segments_of(traces: Sequence[Trace], *, sub_agents_trained: bool = True) -> list[Segment]:
    """Returns the segments of one attempt in order of their chains."""
    chain_of_turn = {trace.turn: trace.chain for trace in traces}
    first_of_chain: dict[int, Trace] = {}
    for trace in traces:
        first_of_chain.setdefault(trace.chain, trace)
    segments = []
    for chain in recorded_chains(traces):
        number = chain[0].chain
        parent_turn = first_of_chain[number].parent_turn
        parent = None
        if parent_turn is not None:
            parent = chain_of_turn.get(parent_turn)
        segments.append(
            Segment(
                number=number,
                role=chain[0].role,
                parent=parent,
                calls=len(chain),
                prompt_tokens=chain[0].prompt_tokens,
                tokens=chain[-1].tokens,
                sampled_tokens=sum(len(trace.sampled_ids) for trace in chain),
                sub_agent=chain[0].sub_agent,
                trained=sub_agents_trained or not chain[0].sub_agent,
            )
        )
    return segments


def response_tokens(traces: Sequence[Trace]) -> int:
    """Returns the tokens after the first prompt, and after the first prompt of each sub-agent and compaction.

    Other breaks write the same conversation once more. So of an agent's chains between two compactions, the longest
    counts.
    """
    by_agent: dict[int, list[Trace]] = {}
    for trace in traces:
        by_agent.setdefault(trace.sub_agent, []).append(trace)
    left_out = superseded_turns(traces)
    return sum(_response_tokens_of_agent(of_agent, left_out) for of_agent in by_agent.values())


def _response_tokens_of_agent(traces: Sequence[Trace], left_out: set[int]) -> int:
    began: dict[int, int] = {}  # For each chain, the number of compactions before it.
    prompt_tokens: dict[int, int] = {}
    longest: dict[int, int] = {}
    compactions = 0
    for trace in sorted(traces, key=lambda stored: stored.turn):
        compactions += trace.break_kind is Break.compacted
        part = began.setdefault(trace.chain, compactions)
        prompt_tokens.setdefault(part, trace.prompt_tokens)
        if trace.turn not in left_out:
            longest[part] = max(trace.tokens, longest.get(part, 0))
    return sum(tokens - prompt_tokens[part] for part, tokens in longest.items())
