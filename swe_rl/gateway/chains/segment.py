"""This module says what a call is for, and so which role its chain has in the attempt.

An attempt is a tree of segments: the conversation as it began (`main`), and what a compaction or another break began.
Each chain of traces is a segment. Its first trace has its role and its parent: the turn that it came from.

Invariants:
- Only agents of ours say what a call is for, in the field `segment` of its body, and only in sessions whose settings
  have `compacts`. What a program in a sandbox writes there changes nothing.
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
    Break.prefix_changed: SegmentRole.rewritten,
    Break.truncated: SegmentRole.rewritten,
}


@dataclass(frozen=True, slots=True)
class Purpose:
    """Says what a call is for: a turn of the agent, unless one of these is true."""

    summarizes: bool = False  # It asks for a summary.
    compacts: bool = False  # It begins a segment after a compaction.
    accepted: bool = False  # This segment goes on from the summary that was asked for last.
    # Counts the attempt's compactions. The request of a compaction that is sent again has the same number.
    number: int = 0


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
    return Purpose(
        summarizes=said.get("role") == SegmentRole.summary,
        compacts=compacts,
        accepted=compacts and said.get("accepted") is True,
        number=number,
    )


class Lineage:
    """Knows from which turn of a session a compacted segment comes."""

    def __init__(self) -> None:
        self._acting_turn: int | None = None
        self._summary_turn: int | None = None  # None if the newest turn is no summary.
        self.compacted = False  # The session had a compaction.

    def note(self, turn: int, role: SegmentRole) -> None:
        """Notes a recorded turn, which is the newest now."""
        self.compacted = self.compacted or role is SegmentRole.compacted
        if role is SegmentRole.summary:
            self._summary_turn = turn
        else:
            self._summary_turn = None
            self._acting_turn = turn

    def parent_of(self, purpose: Purpose) -> int | None:
        """Returns the turn that a compacted segment comes from: its summary, or else the newest turn of the agent."""
        if purpose.accepted and self._summary_turn is not None:
            return self._summary_turn
        return self._acting_turn


def role_of_chain(kind: Break | None, purpose: Purpose) -> SegmentRole:
    """Returns the role of a chain that begins with a break of this kind."""
    if purpose.summarizes:
        return SegmentRole.summary
    if kind is None:
        return SegmentRole.main
    return _ROLE_OF_BREAK.get(kind, SegmentRole.main)
