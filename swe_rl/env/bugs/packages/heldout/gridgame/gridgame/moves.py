"""Moves between cells (column, row) and their short notation."""


def distance(start: tuple, end: tuple) -> int:
    """Steps along columns and rows."""
    columns = abs(start[0] - end[0])
    rows = abs(start[1] - end[1])
    return columns + rows


def king_steps(start: tuple, end: tuple) -> int:
    """Steps when slanted ones are allowed as well."""
    columns = abs(start[0] - end[0])
    return max(columns, abs(start[1] - end[1]))


def may_reach(start: tuple, end: tuple, reach: int) -> bool:
    """A piece moves by its reach at most, and never stays."""
    steps = abs(start[0] - end[0]) + abs(start[1] - end[1])
    return start != end and steps <= reach


def is_straight(start: tuple, end: tuple) -> bool:
    """Along one column or one row."""
    column, row = start
    return column == end[0] or row == end[1]


def wrap(number: int, size: int) -> int:
    """Walks in at the other side; without a size nothing changes."""
    if size < 1:
        return number
    return number % size


def middle(first: int, second: int) -> int:
    """The cell half way, the smaller one of two."""
    total = first + second
    return total // 2


def parse_cell(text: str):
    """Reads b3 as (1, 2); None for a text that is no cell."""
    letter = text[:1].lower()
    number = text[1:]
    if not letter.isalpha() or not number.isdigit():
        return None
    row = int(number) - 1
    return ord(letter) - ord("a"), row


def path_is_free(path: list, taken: set) -> bool:
    """Whether none of the cells on the path is taken."""
    return not any(cell in taken for cell in path)


def last_hit(path: list, taken: set):
    """The last taken cell on the path, None without one."""
    hit = None
    for cell in path:
        if cell not in taken:
            continue
        hit = cell
    return hit


def is_capture(note: str) -> bool:
    """Captures have an x before a cell; check signs may follow."""
    text = note.rstrip("#+")
    return "x" in text and not text.endswith("x")
