"""The set-points of the program-aware router.

Invariants:
- One setting for every load: what depends on the load is measured, not set.
"""

from dataclasses import dataclass

DEFAULT_CAPACITY_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class TrSettings:
    """The first seven are `router.*`. Shares are of an engine's capacity; `max_num_seqs` 0: no limit."""

    acting_weight: float = 1.0
    acting_half_life_s: float = 0.0
    pause_at: float = 0.95
    resume_at: float = 0.85
    # Who had fewest turns goes first: as far as anybody knows it has most before it, and the last one ends the step.
    ageing_turns_per_s: float = 0.05  # so much further behind counts a program for the time that it waits
    # Idle tokens cost what they keep others from; fetching them again costs their prefill. The two are even after about
    # capacity / prefill speed: 120,000 tokens at 15,000 tokens/s.
    lease_s: float = 8.0  # idle for longer, a program makes room for one that waits
    max_hold_s: float = 600.0
    capacity_tokens: int = DEFAULT_CAPACITY_TOKENS  # of an engine that does not say
    max_num_seqs: int = 0  # requests that one engine runs at once
    min_stay_s: float = 3.0  # after its admission a program is not paused
    move_after_s: float = 8.0  # a program waits so long for its origin before it may go elsewhere
    sibling_share: float = 0.1  # so much less room an engine may have and still be taken for a sibling's prefix
    # In a step that ends with its last program, young programs have most before them and are cheap to let in.
    new_last: bool = False  # new programs wait for all begun ones; else those with fewest turns go first
    stagger_s: float = 4.0  # in which an engine is filled up again after a sync
    idle_ttl_s: float = 3600.0  # a program that asks nothing for so long is forgotten
