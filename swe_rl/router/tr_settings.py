"""This module has the set-points of the program-aware router.

Invariants:
- There is one setting for every load: what depends on the load is measured, not set.
"""

from dataclasses import dataclass

from swe_rl.config.schema import RouterConfig

# An engine that does not say its capacity is taken to hold this much. Too small a number only makes programs wait.
DEFAULT_CAPACITY_TOKENS = 65_536


@dataclass(frozen=True)
class TrSettings(RouterConfig):
    """Adds settings that are not the user's to the keys of `router`. Shares are of an engine's capacity.

    `sibling_turns`: where groups flow a program is of use when the last one of its group has ended, so each of them
    that is left counts as so many turns.

    `ageing_turns_per_s`: the program with the fewest turns goes first, as it probably has most before it, and the last
    program ends the step. A waiting program gains so many turns a second.

    `lease_s`: idle tokens keep others from running, and fetching them again costs their prefill. The two costs are even
    after about capacity / prefill speed: 120,000 tokens at 15,000 tokens/s.
    """

    name: str = "tr"
    # This holds for an engine that does not say its own.
    capacity_tokens: int = DEFAULT_CAPACITY_TOKENS
    # So many tokens fit into an engine's tier in the host's memory, if the engine does not say its own; 0: it has none.
    host_tokens: int = 0
    # A token's keys and values come from the host in this time, and are computed in that time.
    copy_token_s: float = 0.0
    prefill_token_s: float = 0.0
    # One engine runs so many requests at once; 0 means that there is no limit.
    max_num_seqs: int = 0
    # A program is not paused so soon after its admission.
    min_stay_s: float = 3.0
    # A program waits so long for its origin before it may go elsewhere.
    move_after_s: float = 8.0
    sibling_turns: float = 4.0
    # An engine may have so much less room and still be taken for a sibling's prefix.
    sibling_share: float = 0.1
    # If true, new programs wait for all begun ones; else those with fewest turns go first. In a step that ends with its
    # last program, young programs have most before them and are cheap to let in.
    new_last: bool = False
    # After a sync an engine is filled up again within so many seconds, so that not all prompts are computed at once.
    stagger_s: float = 4.0
    # A program that asks nothing for so long is forgotten.
    idle_ttl_s: float = 3600.0

    @property
    def copy_pays(self) -> bool:
        """Tells whether to bring a prefix back from the host is faster than to compute it. Unknown times say yes."""
        return not self.prefill_token_s or self.copy_token_s < self.prefill_token_s
