"""Stops of a line, in order."""


def clean_name(name: str) -> str:
    """Drops marks before the name and ends an abbreviation."""
    plain = name.lstrip("*- ")
    if plain.endswith("str"):
        return plain + "."
    return plain


def stop_code(name: str) -> str:
    """The first three letters in capitals."""
    letters = name.replace(" ", "")
    if len(letters) < 3:
        return "X"
    return letters[:3].upper()


def find_stop(stops: list, text: str) -> int:
    """The place of the first stop that starts with the text, or -1."""
    wanted = text.lower()
    for place, name in enumerate(stops):
        if name.lower().startswith(wanted):
            return place
    return -1


def stops_between(stops: list, start: str, end: str) -> int:
    """How many stops lie strictly between two stops."""
    if start not in stops:
        return 0
    steps = abs(stops.index(end) - stops.index(start))
    return max(steps - 1, 0)


def next_stop(stops: list, name: str, ring: bool = False):
    """The stop after a stop; a ring starts again after the last one."""
    place = stops.index(name) + 1
    if place < len(stops):
        return stops[place]
    if ring:
        return stops[0]
    return None


def terminus(stops: list):
    """The last stop, None for an empty line."""
    if not stops:
        return None
    return stops[-1].rstrip(".")


def join_lines(first: list, second: list) -> list:
    """One line after another; a shared end is kept once."""
    if first and second and first[-1] == second[0]:
        return first + second[1:]
    return first + second


def transfers(lines: list, start: str, end: str) -> bool:
    """True if no single line has both stops."""
    for stops in lines:
        if start in stops and end in stops:
            return False
    return True


def served(lines: list, name: str) -> bool:
    """Whether any line stops there."""
    return any(name in stops for stops in lines)


def zones_crossed(zones: list) -> int:
    """Counts zones along the stops; the same one in a row counts once."""
    count = 0
    last = None
    for zone in zones:
        if zone == last:
            continue
        last = zone
        count = count + 1
    return count


def fare(zones: int, child: bool = False) -> int:
    """150 cents and 80 for each further zone, children pay half."""
    price = 150 + 80 * (zones - 1)
    if child:
        return price // 2
    return min(price, 600)
