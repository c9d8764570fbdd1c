"""Finds a smallest set by delta debugging (Zeller and Hildebrandt's ddmin): no item of it can be left out.

Invariants:
- The answer passes, and it does not pass without any single one of its items (1-minimality).
- At most n * n + 3 * n sets of n items are asked about.
- The order of the items decides between several answers, so the same items and replies give the same answer.
"""

from collections.abc import Generator, Sequence


def minimal_subset(items: Sequence[int]) -> Generator[tuple[int, ...], bool, tuple[int, ...]]:
    """Yields sets to try, is sent whether each passes, and returns a 1-minimal set that passes.

    All items together pass, and none alone does not: neither is asked about.
    """
    current = tuple(items)
    num_parts = 2
    while len(current) > 1:
        parts = _parts(current, num_parts)
        smaller: tuple[int, ...] | None = None
        for part in parts:
            if (yield part):
                smaller = part
                num_parts = 2
                break
        # Of two parts each is what the other leaves.
        for part in parts if smaller is None and len(parts) > 2 else ():
            rest = tuple(item for item in current if item not in part)
            if (yield rest):
                smaller = rest
                num_parts = max(num_parts - 1, 2)
                break
        if smaller is not None:
            current = smaller
        elif num_parts >= len(current):
            break
        else:
            num_parts = min(2 * num_parts, len(current))
    return current


def _parts(items: tuple[int, ...], number: int) -> list[tuple[int, ...]]:
    """Returns items in so many parts of nearly the same size, in their order."""
    bounds = [len(items) * part // number for part in range(number + 1)]
    return [items[start:end] for start, end in zip(bounds, bounds[1:], strict=False) if start < end]
