"""Time and fuel of a trip. Times are minutes, lengths are kilometres."""

PAUSE_AFTER = 120
PAUSE = 15


def travel_minutes(km: int, speed: int) -> int:
    """Driving time at a speed in km per hour, rounded down."""
    if speed <= 0:
        return 0
    return km * 60 // speed


def pauses(minutes: int) -> int:
    """One pause after each two hours, none at the very end."""
    if minutes <= 0:
        return 0
    before_end = minutes - 1
    return before_end // PAUSE_AFTER


def arrival(start: int, minutes: int) -> int:
    """The minute of the day at arrival, pauses included."""
    rest = pauses(minutes) * PAUSE
    return (start + minutes + rest) % 1440


def clock(minute: int) -> str:
    """Shows minute 545 of the day as '9:05'."""
    hours = minute // 60
    rest = minute % 60
    if rest < 10:
        return f"{hours}:0{rest}"
    return f"{hours}:{rest}"


def parse_clock(text: str):
    """Reads '9:05' as 545, None if it is no time."""
    hours, mark, rest = text.partition(":")
    if not mark or not rest.isdigit():
        return None
    minutes = int(hours) * 60
    return minutes + int(rest)


def fuel_needed(km: int, per_hundred: int, reserve: int = 5) -> int:
    """Litres for the way, rounded up, and a reserve."""
    litres = (km * per_hundred + 99) // 100
    return litres + reserve


def refuels(legs: list, tank: int) -> int:
    """Stops for fuel before legs; the trip ends at one that is too long."""
    stops = 0
    left = tank
    for km in legs:
        if km > tank:
            break
        if km > left:
            left = tank
            stops = stops + 1
        left = left - km
    return stops


def is_night(minute: int) -> bool:
    """From ten in the evening until before six."""
    if minute >= 1320 or minute < 360:
        return True
    return False


def fastest(trips: dict):
    """The name of the trip with the fewest minutes, None without trips."""
    if not trips:
        return None
    ranked = sorted(trips.items(), key=lambda item: item[1])
    return ranked[0][0]
