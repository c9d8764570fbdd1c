"""Times of the day as minutes since midnight."""

DAY = 1440


def minutes_of(hour: int, minute: int) -> int:
    return hour * 60 + minute


def clock_text(total: int) -> str:
    """Minutes as 7:05; days are left out."""
    minutes = total % DAY
    hour = minutes // 60
    return f"{hour}:{minutes - hour * 60:02d}"


def is_valid(hour: int, minute: int) -> bool:
    """0:00 to 23:59."""
    good = 0 <= hour and hour < 24
    return good and 0 <= minute < 60


def parse_time(text: str):
    """Reads 9:30 as 570, None for anything else."""
    hour, colon, minute = text.partition(":")
    if not hour.isdigit() or not minute.isdigit():
        return None
    return int(hour) * 60 + int(minute)


def span(start: int, end: int) -> int:
    """Minutes from start to end, over midnight if it is earlier."""
    length = end - start
    if length < 0:
        length = length + DAY
    return length


def is_evening(text: str) -> bool:
    """Times like 8 PM or 11pm."""
    word = text.strip().lower()
    return word.endswith("pm")


def quarter(minute: int) -> int:
    """The quarter of the hour, from 1 to 4."""
    whole = minute // 15
    return min(whole + 1, 4)


def short(text: str) -> str:
    """A time without zeros and spaces in front."""
    return text.lstrip("0 ")


def in_order(times: list) -> bool:
    """Whether no time is earlier than the one before it."""
    ordered = True
    for before, time in zip(times, times[1:]):
        ordered = ordered and before <= time
    return ordered


def latest(times: list):
    """The latest of the times, None without any."""
    if len(times) >= 1:
        return max(times)
    return None


def overlap(first: tuple, second: tuple) -> int:
    """Minutes that two spans (start, end) have in common."""
    start = max(first[0], second[0])
    end = min(first[1], second[1])
    return max(end - start, 0)
