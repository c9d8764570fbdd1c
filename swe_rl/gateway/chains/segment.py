"""This module says what a call is for, and so which role its chain has in the attempt.

An attempt is a tree of segments: the conversation as it began (`main`), and what a compaction, a sub-agent or another
break began.
Each chain of traces is a segment. Its first trace has its role and its parent: the turn that it came from.

Invariants:
- Only agents of ours say what a call is for, in the field `segment` of its body, and only in sessions whose settings
  have `has_segments`. What a program in a sandbox writes there changes nothing.
- Sub-agents have numbers from 1 on, and the agent itself has 0. A compaction is counted in its own conversation.
- A summary is accepted if a compacted segment came from it. So the traces alone tell which summaries are trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swe_rl.gateway.trace import Break, SegmentRole

# A chain that begins with a break of this kind has this role.
_ROLE_OF_BREAK = {
    Break.branch: SegmentRole.branch,
    Break.compacted: SegmentRole.compacted,
    Break.sub_agent: SegmentRole.sub_agent,
    Break.prefix_changed: SegmentRole.rewritten,
    Break.truncated: SegmentRole.rewritten,
}


@dataclass(frozen=True, slots=True)
class Purpose:
    """Says what a call is for: a turn of the agent, unless one of these is true."""

    summarizes: bool = False  # It asks for a summary.
    compacts: bool = False  # It begins a segment after a compaction.
    delegates: bool = False  # It begins the conversation of a sub-agent.
    accepted: bool = False  # This segment goes on from the summary that was asked for last.
    # Counts the conversation's compactions. The request of a compaction that is sent again has the same number.
    number: int = 0
    agent: int = 0  # It is the call of this sub-agent; 0: of the agent itself.

    @property
    def begins(self) -> bool:
        """Tells whether the call begins a segment that was meant."""
        return self.compacts or self.delegates

    @property
    def beginning(self) -> tuple[int, int]:
        """Returns what only this call and its retries have, among those that begin a segment."""
        return self.agent, self.number


ACTS = Purpose()


def read_purpose(body: Mapping[str, Any]) -> Purpose:
    """Reads what a body says of its call. What cannot be read is a turn like any other."""
    said = body.get("segment")
    if not isinstance(said, Mapping):
        return ACTS
    compacts = said.get("role") == SegmentRole.compacted
    number = said.get("number")
    if not compacts or not isinstance(number, int):
        number = 0
    agent = said.get("agent")
    if not isinstance(agent, int) or agent < 0:
        agent = 0
    return Purpose(
        summarizes=said.get("role") == SegmentRole.summary,
        compacts=compacts,
        delegates=said.get("role") == SegmentRole.sub_agent and agent > 0,
        accepted=compacts and said.get("accepted") is True,
        number=number,
        agent=agent,
    )


class Lineage:
    """Knows from which turn of a session a segment comes that a compaction or a sub-agent begins."""

    def __init__(self) -> None:
        self._newest_acting: int | None = None
        self._acting_turns: dict[int, int] = {}  # Has for each agent its newest turn that is no summary.
        self._summary_turns: dict[int, int] = {}  # Has the agents whose newest turn is a summary.
        self.compacted = False  # The session had a compaction.

    def note(self, turn: int, role: SegmentRole, agent: int = 0) -> None:
        """Notes a recorded turn of an agent, which is the newest now."""
        self.compacted = self.compacted or role is SegmentRole.compacted
        if role is SegmentRole.summary:
            self._summary_turns[agent] = turn
        else:
            self._summary_turns.pop(agent, None)
            self._acting_turns[agent] = self._newest_acting = turn

    def parent_of(self, purpose: Purpose) -> int | None:
        """Returns the turn that a segment comes from: a sub-agent from the turn that handed its task on, a compacted
        segment from its summary, or else from the newest turn of its agent."""
        if purpose.delegates:
            return self._newest_acting
        summary_turn = self._summary_turns.get(purpose.agent)
        if purpose.accepted and summary_turn is not None:
            return summary_turn
        return self._acting_turns.get(purpose.agent)


def role_of_chain(kind: Break | None, purpose: Purpose) -> SegmentRole:
    """Returns the role of a chain that begins with a break of this kind."""
    if purpose.summarizes:
        return SegmentRole.summary
    if kind is None:
        return SegmentRole.main
    return _ROLE_OF_BREAK.get(kind, SegmentRole.main)
