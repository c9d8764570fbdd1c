"""What a trajectory can be doing, as the event `program` names it.

Invariants:
- The order is that of a turn; readers and writers of events share these names.
"""

from enum import StrEnum


class PhaseKind(StrEnum):
    """In the order in which a turn goes through them; boot is before all turns, grade after them."""

    boot = "boot"
    hold = "hold"  # by the router, where it is known apart from the engine's queue
    queue = "queue"
    prefill = "prefill"
    decode = "decode"
    tool = "tool"  # a command was running
    grade = "grade"
