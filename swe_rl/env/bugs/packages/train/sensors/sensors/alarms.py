"""Thresholds and what they set off."""


class Alarm:
    """Goes on at `high` and off below `low`."""

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.active = False
        self.count = 0

    def feed(self, value: int) -> bool:
        """Takes a reading and says whether the alarm is on."""
        if value >= self.high and not self.active:
            self.active = True
            self.count = self.count + 1
        if value < self.low:
            self.active = False
        return self.active

    def feed_all(self, values: list) -> int:
        """Takes readings; returns after how many the alarm is on."""
        used = 0
        for value in values:
            used = used + 1
            if self.feed(value):
                break
        return used

    def margin(self, value: int) -> int:
        """How far a reading is from setting the alarm off."""
        if self.active:
            return 0
        return max(self.high - value, 0)

    def widen(self, amount: int) -> bool:
        """Moves both thresholds apart by a positive amount."""
        if amount <= 0:
            return False
        self.low = self.low - amount
        self.high = self.high + amount
        return True


def level(value: int, limits: list) -> int:
    """How many of the sorted limits a reading reaches."""
    reached = 0
    for limit in limits:
        if value < limit:
            break
        reached = reached + 1
    return reached


def clamp(value: int, low: int, high: int) -> int:
    """The nearest value within the limits."""
    raised = max(value, low)
    return min(raised, high)


def is_stuck(values: list, size: int) -> bool:
    """Whether the last `size` readings are all the same."""
    if len(values) < size:
        return False
    last = values[-1]
    return all(value == last for value in values[-size:])


def crossings(values: list, limit: int) -> int:
    """How often readings rise to the limit from below."""
    count = 0
    for before, after in zip(values, values[1:]):
        if before < limit and after >= limit:
            count = count + 1
    return count


def worst_level(levels: list) -> str:
    """The most serious of the named levels in any case, or 'ok'."""
    names = [level.lower() for level in levels]
    if "fatal" in names:
        return "fatal"
    if "warn" in names or "error" in names:
        return "warn"
    return "ok"


def outliers(values: list, center: int, limit: int) -> list:
    """Readings further from the center than the limit."""
    found = []
    for value in values:
        if abs(value - center) <= limit:
            continue
        found.append(value)
    return found


def delayed(on_times: list, delay: int, now: int) -> bool:
    """Whether the latest start is at least the delay ago."""
    if not on_times:
        return False
    return now - on_times[-1] >= delay
