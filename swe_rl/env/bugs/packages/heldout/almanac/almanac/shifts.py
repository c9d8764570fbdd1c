"""Shifts that repeat in a cycle, days off, and hours worked."""


def crew_on(day: int, crews: list) -> str:
    """Crews take turns day by day, from day 0 on."""
    place = day % len(crews)
    return crews[place]


def repeats(day: int, first: int, every: int) -> bool:
    """Whether something that began on a first day falls on this day."""
    if day < first:
        return False
    return (day - first) % every == 0


def days_until(today: int, goal: int) -> int:
    """Never negative: a past goal is 0 days away."""
    left = goal - today
    return max(left, 0)


def pay(hours: int, rate: int, night=True) -> int:
    """A night hour earns a half more."""
    total = hours * rate
    if night:
        total = total + total // 2
    return total


def longest_run(days: list) -> int:
    """The longest row of days that follow each other, at least 1."""
    best = 1
    run = 1
    for before, day in zip(days, days[1:]):
        run = run + 1 if day == before + 1 else 1
        best = max(best, run)
    return best


def changes(crews: list) -> int:
    """How often the crew differs from the one before."""
    count = 0
    for before, crew in zip(crews, crews[1:]):
        if crew != before:
            count = count + 1
    return count


def rest_ok(end: int, start: int, rest: int) -> bool:
    """Enough hours lie between an end and the next start."""
    return start - end >= rest


def too_long(shifts: list, limit: int) -> bool:
    """Whether any shift has more hours than allowed."""
    return any(end - start > limit for start, end in shifts)


def worked(shifts: list, until=None) -> int:
    """Hours of all shifts; those that end after `until` are left out."""
    hours = 0
    for start, end in shifts:
        if until is not None and end > until:
            continue
        hours = hours + end - start
    return hours


def swap_note(name: str, crew: str) -> str:
    """The initial of a name and the crew without stars in front."""
    letter = name[0].lower()
    return letter + "/" + crew.lstrip("*")


def is_relief(crew: str) -> bool:
    """Relief crews are marked with a star at the end."""
    mark = crew.rstrip()
    return len(mark) > 1 and mark.endswith("*")


def last_before(days: list, day: int):
    """The last of the sorted days before a day, None without one."""
    earlier = [other for other in days if other < day]
    if not earlier:
        return None
    return earlier[-1]


def split_even(hours: int, people: int) -> int:
    """Whole hours for each one; nobody gets nothing."""
    if people <= 0:
        return 0
    return hours // people
