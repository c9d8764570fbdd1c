"""Flags, lights, radio calls and tides."""

URGENT = ("mayday", "securite")


def is_urgent(call: str) -> bool:
    word = call.rstrip("!. ")
    return word.lower() in URGENT


def call_sign(text: str) -> str:
    """Drops stars in front and dashes behind, then uses capitals."""
    plain = text.lstrip("* ")
    return plain.rstrip("- ").upper()


def storm_balls(wind: int) -> int:
    """No ball below a wind of eight, two balls above ten."""
    balls = 1
    if wind < 8:
        balls = 0
    if wind > 10:
        balls = balls + 1
    return balls


def light_is_on(hour: int, fog: bool) -> bool:
    """From twenty until six o'clock, and always in fog."""
    if fog:
        return True
    return hour >= 20 or hour < 6


def may_enter(lights: list) -> bool:
    """Every light is green, and there is at least one."""
    if not lights:
        return False
    return all(light == "green" for light in lights)


def any_distress(flags: list) -> bool:
    """Whether a flag starts with the letters of distress."""
    return any(flag.startswith("nc") for flag in flags)


def tidal_range(levels: list) -> int:
    """From the lowest to the highest level; zero if one is missing."""
    if not levels or any(level is None for level in levels):
        return 0
    highest = max(levels)
    return highest - min(levels)


def tide_trend(levels: list) -> str:
    """Compares the newest level with the oldest one."""
    oldest = levels[0]
    change = levels[-1] - oldest
    if change < 0:
        return "ebb"
    if change == 0:
        return "slack"
    return "flood"


def flash_count(pattern: str) -> int:
    """Counts the flashes '*' up to the first pause '/'."""
    count = 0
    for mark in pattern:
        if mark == "/":
            break
        if mark != "*":
            continue
        count = count + 1
    return count


def is_channel(text) -> bool:
    """Channels look like 'ch16' and go from 1 to 88."""
    if text is None or not text.startswith("ch"):
        return False
    digits = text[2:]
    return digits.isdigit() and 1 <= int(digits) <= 88
