"""Data of the warm start: demonstrations as token rows.

Invariants:
- The messages are exactly those of `agent=bash` on the embedded instances, to the last byte.
- The same seed gives the same rows in the same order, however many are taken.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Protocol

Messages = list[dict[str, str]]
IdsAndMask = tuple[list[int], list[int]]


class Conversations(Protocol):
    def __call__(self, rng: random.Random) -> Messages: ...


class Renders(Protocol):
    def whole(self, messages: Sequence[dict[str, str]]) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a finished conversation and the spans that the assistant wrote."""
        ...


def batches(conversations: Conversations, renderer: Renders, seed: int, tokens: int) -> Iterator[list[IdsAndMask]]:
    """Endless batches of at least `tokens` tokens, sorted by length so that padding is short."""
    rng = random.Random(f"warm start/{seed}")
    while True:
        batch: list[IdsAndMask] = []
        size = 0
        while size < tokens:
            ids, spans = renderer.whole(conversations(rng))
            mask = [0] * len(ids)
            for start, end in spans:
                mask[start:end] = [1] * (end - start)
            batch.append((ids, mask))
            size += len(ids)
        yield sorted(batch, key=lambda row: len(row[0]))
