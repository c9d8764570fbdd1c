"""What the scheduler of the embedded engine asks of a forward pass and of the cache that this pass reads.

There are two of each. `PackedDecoder` with `SlotCache` is fast, and computes the families in `FAST_ARCHITECTURES`.
`AnyDecoder` with `RequestCaches` is slow, and computes every causal language model of transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

CacheT = TypeVar("CacheT")


@dataclass(slots=True)
class Slot:
    """Token counts from position 0: `known` ids, `length` of them written, `reusable` of those prefilled.

    `promised` is what `reusable` will be once the running prefill is through.
    """

    index: int
    known: int = 0
    length: int = 0
    reusable: int = 0
    promised: int = 0
    session_id: str | None = None
    running: bool = False
    stale: bool = False
    last_used: int = 0


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """New tokens `ids` of one slot, at positions `start` .. `start + len(ids)`."""

    slot: int
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


class Cache(Protocol):
    """A fixed number of slots, each of which belongs to at most one running request."""

    slots: list[Slot]

    def acquire(self, prompt: npt.NDArray[np.int64], session_id: str | None) -> tuple[Slot, int] | None:
        """Returns a slot for `prompt` [tokens] and how many of its tokens the slot holds; None where it has to wait."""

    def append(self, slot: Slot, token: int) -> None:
        """Notes that the slot's next position will hold `token`, which was sampled."""

    def prefilled(self, slot: Slot, end: int) -> None:
        """Notes that the positions up to `end` are written."""

    def finish(self, slot: Slot) -> None:
        """Ends the request of the slot."""

    def release_session(self, session_id: str) -> None:
        """Frees what is kept for the session; an unknown one is ignored."""

    def invalidate(self) -> None:
        """Forgets all that was written: the weights have changed."""

    def routed(self, slot: Slot) -> npt.NDArray[Any] | None:
        """Returns the routes of what the slot has written, [length, layers, experts]; None where none are kept."""

    def held_tokens(self) -> int:
        """Returns the number of tokens of running requests."""


class Decoder(Protocol[CacheT]):
    """Logits of new tokens, given a cache. It is not thread-safe; call it under `torch.inference_mode`."""

    vocab_size: int
    cuts_prompts: bool  # a prompt may be written in several passes without a change of one bit

    def make_cache(self, slots: int, max_tokens: int) -> CacheT: ...

    def pack(self) -> None:
        """Reads the model's weights again; call it after they changed."""

    def prefill(self, spans: Sequence[PrefillSpan], cache: CacheT) -> torch.Tensor:
        """Writes the spans; returns the logits [spans, vocab] after the last token of each."""

    def decode(self, slots: Sequence[int], positions: Sequence[int], ids: Sequence[int], cache: CacheT) -> torch.Tensor:
        """Writes one token per slot at its position; returns the logits [slots, vocab] after it."""
