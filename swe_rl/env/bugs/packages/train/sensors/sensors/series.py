"""Lists of readings; None stands for a missing one."""


def present(values: list) -> list:
    """The readings that are there."""
    return [value for value in values if value is not None]


def mean(values: list):
    """The average, rounded down; None without readings."""
    known = present(values)
    if not known:
        return None
    return sum(known) // len(known)


def span(values: list) -> int:
    """The distance from the lowest to the highest reading."""
    known = present(values)
    if not known:
        return 0
    highest = max(known)
    return highest - min(known)


def fill_gaps(values: list, start: int = 0) -> list:
    """Missing readings repeat the one before."""
    filled = []
    last = start
    for value in values:
        if value is not None:
            last = value
        filled.append(last)
    return filled


def longest_gap(values: list) -> int:
    """The most missing readings in a row."""
    longest = 0
    length = 0
    for value in values:
        if value is None:
            length = length + 1
        else:
            length = 0
        longest = max(longest, length)
    return longest


def differences(values: list) -> list:
    """How much each reading differs from the one before."""
    return [after - before for before, after in zip(values, values[1:])]


def trend(values: list) -> str:
    """Compares the last reading with the first one."""
    if not values:
        return "flat"
    change = values[-1] - values[0]
    if change > 0:
        return "up"
    if change < 0:
        return "down"
    return "flat"


def is_rising(values: list) -> bool:
    """Whether each reading is larger than the one before."""
    return all(step > 0 for step in differences(values))


def has_jump(values: list, size: int) -> bool:
    """Whether two neighbours differ by the size or more."""
    return any(abs(step) >= size for step in differences(values))


def peak_place(values: list) -> int:
    """The place, from one, of the first highest reading; zero for none."""
    if not values:
        return 0
    return values.index(max(values)) + 1


def median(values: list):
    """The middle reading, the lower one of two; None for none."""
    if not values:
        return None
    ordered = sorted(values)
    middle = (len(ordered) - 1) // 2
    return ordered[middle]
