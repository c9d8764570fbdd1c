"""Which rows go into which micro-batch of which rank.

Invariants:
- Every rank has the same number of micro-batches, so that no collective waits for one that never comes; what is
  missing is an empty one.
- Every row is in exactly one micro-batch. One has at most `max_tokens` tokens, unless a single row alone is longer.
- The micro-batches that run at the same time cost about the same; the dearest come first, so that a step that does
  not fit into memory fails at once.
- Deterministic: the same lengths give the same plan on every rank.
"""

from collections.abc import Callable, Sequence


def balanced(
    lengths: Sequence[int], max_tokens: int, ranks: int, cost: Callable[[int], float]
) -> list[list[tuple[int, ...]]]:
    """`plan[i][r]`: the rows of the i-th micro-batch of rank r. `cost` is that of one row of so many tokens.

    Longest-processing-time-first into the fewest bins that hold everything, in multiples of `ranks`
    (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969).
    """
    if not lengths:
        return []
    bins_needed = _first_fit(lengths, max_tokens)
    count = -(-bins_needed // ranks) * ranks
    bins = _spread(lengths, max_tokens, count, cost)
    while bins is None:
        count += ranks
        bins = _spread(lengths, max_tokens, count, cost)
    bins.sort(key=lambda rows: (-sum(cost(lengths[i]) for i in rows), rows))
    return [[tuple(rows) for rows in bins[i : i + ranks]] for i in range(0, count, ranks)]


def _first_fit(lengths: Sequence[int], max_tokens: int) -> int:
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = next((i for i, room in enumerate(rooms) if room >= length), None)
        if fitting is None:
            rooms.append(max(0, max_tokens - length))
        else:
            rooms[fitting] -= length
    return len(rooms)


def _spread(
    lengths: Sequence[int], max_tokens: int, count: int, cost: Callable[[int], float]
) -> list[list[int]] | None:
    """Each row, the dearest first, into the cheapest bin that has room; None where one finds none."""
    bins: list[list[int]] = [[] for _ in range(count)]
    tokens, costs = [0] * count, [0.0] * count
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        open_bins = [b for b in range(count) if not bins[b] or tokens[b] + lengths[row] <= max_tokens]
        if not open_bins:
            return None
        chosen = min(open_bins, key=lambda b: (costs[b], b))
        bins[chosen].append(row)
        tokens[chosen] += lengths[row]
        costs[chosen] += cost(lengths[row])
    return bins
