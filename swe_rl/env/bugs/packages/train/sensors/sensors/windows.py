"""Parts of a series."""


def sliding(values: list, size: int) -> list:
    """All windows of this size, each one reading further."""
    if size < 1:
        return []
    count = len(values) - size + 1
    return [values[start : start + size] for start in range(count)]


def window_count(length: int, size: int, step: int) -> int:
    """How many windows fit if each starts a step later."""
    if size > length:
        return 0
    return (length - size) // step + 1


def moving_max(values: list, size: int) -> list:
    return [max(window) for window in sliding(values, size)]


def chunk_totals(values: list, size: int) -> list:
    """Sums of chunks one after another; a short rest is left out."""
    totals = []
    for place in range(len(values) // size):
        start = place * size
        totals.append(sum(values[start : start + size]))
    return totals


def rest_length(length: int, size: int) -> int:
    """Readings after the last full chunk."""
    if size == 0:
        return length
    return length % size


def last_values(values: list, count: int) -> list:
    """The last readings, fewer if there are not enough."""
    start = max(len(values) - count, 0)
    return values[start:]


def trim_zeros(values: list) -> list:
    """Without zeros at the start and at the end."""
    kept = list(values)
    for _ in values:
        if kept and kept[0] == 0:
            kept = kept[1:]
        if kept and kept[-1] == 0:
            kept = kept[:-1]
    return kept


def take_until(values: list, stop: int) -> list:
    """Readings before the first one equal to `stop`."""
    taken = []
    for value in values:
        if value == stop:
            break
        taken.append(value)
    return taken


def quiet_windows(values: list, size: int, limit: int) -> int:
    """How many windows differ by no more than the limit within."""
    count = 0
    for window in sliding(values, size):
        spread = max(window) - min(window)
        if spread > limit:
            continue
        count = count + 1
    return count


def overlap(first: tuple, second: tuple) -> int:
    """The common length of two (start, end) ranges."""
    start = max(first[0], second[0])
    end = min(first[-1], second[-1])
    return max(end - start, 0)


def contains(outer: tuple, inner: tuple) -> bool:
    """Whether the inner (start, end) range lies within the outer one."""
    if inner[0] < outer[0]:
        return False
    return inner[-1] <= outer[-1]


def smooth(values: list) -> list:
    """Each reading but the first is averaged with the one before."""
    if not values:
        return []
    result = [values[0]]
    for before, after in zip(values, values[1:]):
        result.append((before + after) // 2)
    return result


def run_count(values: list) -> int:
    """How many runs of equal readings there are."""
    if not values:
        return 0
    count = 1
    for before, after in zip(values, values[1:]):
        if before != after:
            count = count + 1
    return count
