"""The set-points of the program-aware router.

Invariants:
- One setting for every load: what depends on the load is measured, not set.
"""

from dataclasses import dataclass

from swe_rl.config.schema import RouterConfig

DEFAULT_CAPACITY_TOKENS = 65_536


@dataclass(frozen=True)
class TrSettings(RouterConfig):
    """`router.*`, and what is not the user's. Shares are of an engine's capacity; `max_num_seqs` 0: no limit.

    `sibling_turns`: where groups flow a program is of use when the last one of its group has ended, so each of them
    that is left counts as so many turns.
    `ageing_turns_per_s`: who had fewest turns goes first. As far as anybody knows it has most before it, and the last
    one ends the step. `lease_s`: idle tokens cost what they keep others from; fetching them again costs their prefill.
    The two are even after about capacity / prefill speed: 120,000 tokens at 15,000 tokens/s.
    """

    name: str = "tr"
    capacity_tokens: int = DEFAULT_CAPACITY_TOKENS  # of an engine that does not say
    max_num_seqs: int = 0  # requests that one engine runs at once
    min_stay_s: float = 3.0  # after its admission a program is not paused
    move_after_s: float = 8.0  # a program waits so long for its origin before it may go elsewhere
    sibling_turns: float = 4.0
    sibling_share: float = 0.1  # so much less room an engine may have and still be taken for a sibling's prefix
    # In a step that ends with its last program, young programs have most before them and are cheap to let in.
    new_last: bool = False  # new programs wait for all begun ones; else those with fewest turns go first
    stagger_s: float = 4.0  # in which an engine is filled up again after a sync
    idle_ttl_s: float = 3600.0  # a program that asks nothing for so long is forgotten
