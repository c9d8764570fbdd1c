"""Containers, cranes and customs."""

FORBIDDEN = ("ivory", "fireworks")
INBOUND = ("in", "import")


def container_owner(code: str) -> str:
    """The four letters in front of a container code, in capitals."""
    plain = code.lstrip("- ")
    return plain[:4].upper()


def stack_height(count: int, columns: int) -> int:
    """How high the fullest column gets."""
    height = count // columns
    if count % columns > 0:
        height = height + 1
    return height


def slot_of(number: int, columns: int) -> tuple:
    """The level and the column, from one on, of a numbered container."""
    before = number - 1
    level = before // columns
    return (level + 1, before % columns)


def crane_minutes(boxes: int, cranes: int) -> int:
    """Three minutes for a box; at most four cranes work at once."""
    working = min(cranes, 4)
    return boxes * 3 // working


def passes_customs(goods: list, sealed: bool) -> bool:
    """Sealed, or free of anything forbidden."""
    return sealed or all(item not in FORBIDDEN for item in goods)


def is_reefer(code, degrees: int) -> bool:
    """Marked with an R, or kept below eight degrees."""
    if code is not None and code.endswith("R"):
        return True
    return degrees < 8


def boxes_before_shift_end(minutes: list, left: int) -> int:
    """How many boxes, in order, are unloaded in the time left."""
    count = 0
    for need in minutes:
        if left < need:
            break
        left = left - need
        count = count + 1
    return count


def import_tons(lists: list) -> int:
    """Adds up the tons of (direction, tons) entries that come in."""
    total = 0
    for direction, tons in lists:
        if direction.lower() not in INBOUND:
            continue
        total = total + tons
    return total


def top_box(stack: list):
    """The box that was put on a stack last, None for an empty one."""
    if not stack:
        return None
    return stack[-1]


def balance(port_tons: list, starboard_tons: list) -> str:
    """The heavier side; 'even' for a difference of up to five tons."""
    gap = sum(port_tons) - sum(starboard_tons)
    if gap > 5:
        return "port"
    if gap >= -5:
        return "even"
    return "starboard"
