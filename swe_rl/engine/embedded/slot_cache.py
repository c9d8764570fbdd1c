"""The module is the embedded engine's KV cache: a fixed number of slots, and who may reuse what they hold.

Invariants:
- A slot is free, running or idle. Idle slots keep a finished request's keys and values, in LRU order, until the slot is
  needed. Reuse never goes past `length`, what is written; nothing reads beyond it.
- Only prefilled positions are reused, never sampled ones. Prefilling computes the same bits however a prompt is cut
  into passes, and decoding rounds otherwise. So what a request computes does not depend on what its slot went through.
- A session continues on its own slot, and then never copies. Others copy a prefix of at least `WORTH_A_COPY_TOKENS`:
  for the few words with which all prompts begin, nobody waits or copies.
- After `invalidate` nothing written before is ever reused; running slots go on with what they hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from swe_rl.engine.embedded.decoder import Slot
from swe_rl.model.experts import route_type, unknown_route

# Keys and values are read in whole chunks.
CHUNK_TOKENS = 128
WORTH_A_COPY_TOKENS = 64


@dataclass(frozen=True, slots=True)
class CacheShape:
    slots: int
    max_tokens: int
    layers: int
    kv_heads: int
    head_dim: int
    # These are the layers with experts, the experts of a token, and the experts in all.
    routed: tuple[int, int, int] | None = None


class SlotCache:
    """The slots. `routes` [slots, tokens, layers with experts, experts of a token] has each written
    position's experts.
    """

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self.slots = [Slot(i) for i in range(shape.slots)]
        # Tokens are whole chunks, so that readers may round lengths up; they begin as zeros, as what is read beyond a
        # length must be finite.
        padded = -(-shape.max_tokens // CHUNK_TOKENS) * CHUNK_TOKENS
        size = (shape.slots, shape.kv_heads, padded, shape.head_dim)
        self.keys = [torch.zeros(size) for _ in range(shape.layers)]
        self.values = [torch.zeros(size) for _ in range(shape.layers)]
        self.routes: npt.NDArray[Any] | None = None
        if shape.routed is not None:
            kind = route_type(shape.routed[-1])
            self.routes = np.full((shape.slots, padded, *shape.routed[:2]), unknown_route(kind), kind)
        self._tokens: npt.NDArray[np.int64] = np.full((shape.slots, shape.max_tokens), -1, dtype=np.int64)
        self._sessions: dict[str, int] = {}
        self._tick = 0

    def acquire(self, prompt: npt.NDArray[np.int64], session_id: str | None) -> tuple[Slot, int] | None:
        """Returns a slot for `prompt` [tokens] and how many of its tokens the slot already holds (never all of them).

        Returns None where no slot is free, or a running prefill is about to write a longer shared prefix, which is
        worth a wait.
        """
        target = self._target(session_id)
        if target is None:
            return None
        shared = self._shared_prefixes(prompt)
        limit = len(prompt) - 1
        kept_tokens = 0
        if self._owns(target, session_id):
            kept_tokens = min(int(shared[target.index]), target.reusable, limit)
        source, copied = self._best_source(shared, limit)
        if source is not None and kept_tokens == 0:
            if source.reusable < copied:
                return None
            self._copy(source, target, copied)
            kept_tokens = copied
        self._occupy(target, prompt, session_id, kept_tokens)
        return target, kept_tokens

    def flat_rows(self, slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Returns rows of one position per slot in a layer seen as [slots * kv_heads * tokens, head_dim]; [n *
        kv_heads].
        """
        kv_heads, tokens = self.keys[0].shape[1:3]
        first = torch.tensor(slots)[:, None] * kv_heads + torch.arange(kv_heads)
        return (first * tokens + torch.tensor(positions)[:, None]).flatten()

    def append(self, slot: Slot, token: int) -> None:
        """Notes that the slot's next position will hold `token` (a sampled one)."""
        self._tokens[slot.index, slot.known] = token
        slot.known += 1

    def prefilled(self, slot: Slot, end: int) -> None:
        """Notes that positions up to `end` are written."""
        slot.length = slot.reusable = end

    def finish(self, slot: Slot) -> None:
        """Notes that the request ended; the slot keeps its keys for whoever continues it."""
        self._tick += 1
        slot.running = False
        slot.last_used = self._tick
        slot.known = slot.length
        slot.promised = slot.reusable
        if slot.stale:
            self._clear(slot)

    def release_session(self, session_id: str) -> None:
        """Frees the session's idle slot at once; a running one is left to finish."""
        index = self._sessions.pop(session_id, None)
        if index is None:
            return
        self.slots[index].session_id = None
        if not self.slots[index].running:
            self._clear(self.slots[index])

    def invalidate(self) -> None:
        """Forgets what old weights wrote: idle slots are cleared, running ones are cleared when they finish."""
        for slot in self.slots:
            if slot.running:
                slot.stale = True
                slot.reusable = 0
                slot.promised = 0
            else:
                self._clear(slot)

    def routed(self, slot: Slot) -> npt.NDArray[Any] | None:
        """Returns the routes of what the slot has written, [length, layers, experts]; None where none are kept."""
        if self.routes is None:
            return None
        return self.routes[slot.index, : slot.length]

    def held_tokens(self) -> int:
        """Returns the tokens of running requests; idle slots do not count, as they are given up on demand."""
        return sum(slot.length for slot in self.slots if slot.running)

    def _target(self, session_id: str | None) -> Slot | None:
        if session_id is None:
            index = None
        else:
            index = self._sessions.get(session_id)
        if index is not None and not self.slots[index].running:
            return self.slots[index]
        idle = [slot for slot in self.slots if not slot.running]
        return min(idle, key=lambda slot: (slot.length > 0, slot.last_used, slot.index), default=None)

    def _owns(self, slot: Slot, session_id: str | None) -> bool:
        return session_id is not None and slot.session_id == session_id

    def _shared_prefixes(self, prompt: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the length of the common prefix of `prompt` with every slot's tokens; [slots]."""
        differs = self._tokens[:, : len(prompt)] != prompt
        first: npt.NDArray[np.int64] = np.where(differs.any(axis=1), differs.argmax(axis=1), len(prompt))
        return first

    def _best_source(self, shared: npt.NDArray[np.int64], limit: int) -> tuple[Slot | None, int]:
        """Returns the slot with the longest prefix that is worth a copy; it may still be being written."""
        best = None
        best_tokens = 0
        for slot in self.slots:
            tokens = min(int(shared[slot.index]), slot.promised, limit)
            if tokens > best_tokens and tokens >= WORTH_A_COPY_TOKENS:
                best = slot
                best_tokens = tokens
        return best, best_tokens

    def _copy(self, source: Slot, target: Slot, tokens: int) -> None:
        if source is target:
            return
        for layer in (*self.keys, *self.values):
            layer[target.index, :, :tokens].copy_(layer[source.index, :, :tokens])
        if self.routes is not None:
            self.routes[target.index, :tokens] = self.routes[source.index, :tokens]

    def _occupy(self, slot: Slot, prompt: npt.NDArray[np.int64], session_id: str | None, reused: int) -> None:
        if slot.session_id is not None and slot.session_id != session_id:
            del self._sessions[slot.session_id]
        if session_id is not None:
            previous = self._sessions.get(session_id)
            if previous is not None and previous != slot.index:
                self.slots[previous].session_id = None
            self._sessions[session_id] = slot.index
        slot.session_id = session_id
        slot.running = True
        slot.stale = False
        slot.known = slot.promised = len(prompt)
        slot.length = slot.reusable = reused
        self._tokens[slot.index, : len(prompt)] = prompt
        self._tokens[slot.index, len(prompt) :] = -1

    def _clear(self, slot: Slot) -> None:
        if slot.session_id is not None:
            self._sessions.pop(slot.session_id, None)
        self._tokens[slot.index] = -1
        slot.known = slot.length = slot.reusable = slot.promised = slot.last_used = 0
        slot.session_id = None
        slot.stale = False


def as_ids(ids: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.asarray(ids, dtype=np.int64)
