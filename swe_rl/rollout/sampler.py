"""Which instances a step works on.

Invariants:
- Every instance once an epoch, in an order that depends on the seed and the epoch only.
- No instance twice in one `take`, also across two epochs: an instance that the end of an epoch gave moves to the end
  of the next one. Only a `take` of more than there are repeats.
- The state is plain data: a resumed run goes on with exactly the instances that an uninterrupted one would take.
"""

import random
from typing import TypedDict


class SamplerState(TypedDict):
    epoch: int
    taken: int  # of the current epoch
    deferred: list[int]  # to the end of the current epoch


class PromptSampler:
    def __init__(self, num_instances: int, seed: int) -> None:
        if num_instances < 1:
            raise ValueError("a sampler needs at least one instance")
        self._num_instances = num_instances
        self._seed = seed
        self._state = SamplerState(epoch=0, taken=0, deferred=[])

    def take(self, count: int) -> list[int]:
        """Indices of the next `count` instances; an epoch's rest is used up before the next one starts."""
        taken: list[int] = []
        while len(taken) < count:
            order = self._order()
            part = order[self._state["taken"] :][: count - len(taken)]
            taken += part
            self._state["taken"] += len(part)
            if self._state["taken"] == self._num_instances:
                deferred = sorted(taken) if 0 < len(taken) < min(count, self._num_instances) else []
                self._state = SamplerState(epoch=self._state["epoch"] + 1, taken=0, deferred=deferred)
        return taken

    def _order(self) -> list[int]:
        order = list(range(self._num_instances))
        random.Random(f"{self._seed}/{self._state['epoch']}").shuffle(order)
        return sorted(order, key=lambda index: index in self._state["deferred"])  # stable

    def state(self) -> SamplerState:
        return SamplerState(
            epoch=self._state["epoch"], taken=self._state["taken"], deferred=list(self._state["deferred"])
        )

    def restore(self, state: SamplerState) -> None:
        deferred = list(state.get("deferred", []))  # checkpoints of old have none
        self._state = SamplerState(epoch=state["epoch"], taken=state["taken"], deferred=deferred)
