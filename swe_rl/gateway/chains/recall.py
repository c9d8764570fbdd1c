"""This module gives a session the replies that an earlier process recorded, instead of sampling them again.

Invariants:
- A recorded reply is given only to the very prompt that it was sampled for, id for id, and in the recorded order. So a
  row of recalled turns is exactly the row that was recorded.
- With the first prompt that is another one, recalling ends for good: what was recorded after it is not used.
- What is recalled keeps its log-probabilities, the version of the weights of each token, its routes and its times.
"""

from collections.abc import Sequence

from swe_rl.engine.token_ids import TokenIds
from swe_rl.gateway.trace import Trace, joined_ids, trace_ancestry


class Recall:
    """Holds the recorded turns of one session. `recalled_tokens` and `dropped_tokens` are sampled ones."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._waiting = list(traces)
        self._by_turn = {trace.turn: trace for trace in traces}
        self.recalled_turns = 0
        self.recalled_tokens = 0
        self.dropped_tokens = 0

    def take(self, prompt_ids: TokenIds) -> Trace | None:
        """Returns the recorded turn of this prompt, or None where there is none: then it has to be sampled."""
        if not self._waiting:
            return None
        trace = self._waiting[0]
        if not self._is_prompt_of(trace, prompt_ids):
            self.dropped_tokens += sum(len(left.sampled_ids) for left in self._waiting)
            self._waiting.clear()
            return None
        del self._waiting[0]
        self.recalled_turns += 1
        self.recalled_tokens += len(trace.sampled_ids)
        return trace

    def _is_prompt_of(self, trace: Trace, prompt_ids: TokenIds) -> bool:
        if trace.prompt_tokens != len(prompt_ids):
            return False
        recorded = joined_ids(trace_ancestry(trace, self._by_turn))[: trace.prompt_tokens]
        return [*map(int, recorded)] == list(prompt_ids)
