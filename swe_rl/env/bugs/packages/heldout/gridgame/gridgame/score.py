"""Points: for pieces, lines, bonus and the table of players."""

VALUES = {"pawn": 1, "rook": 5, "queen": 9}


def piece_value(name: str) -> int:
    """Unknown pieces are worth nothing."""
    key = name.lower()
    if key not in VALUES:
        return 0
    return VALUES[key]


def sum_of(names: list) -> int:
    """Unknown pieces count 1, those with a ? behind them nothing."""
    total = 0
    for name in names:
        if name.endswith("?"):
            continue
        total = total + VALUES.get(name, 1)
    return total


def line_points(length: int) -> int:
    """Lines of three cells and more give ten points a cell."""
    if length < 3:
        return 0
    return length * 10


def with_bonus(points: int, turns=None) -> int:
    """One point more for every turn below 20, if turns are known."""
    saved = 0
    if turns is not None:
        saved = max(20 - turns, 0)
    return points + saved


def leader(table: dict):
    """The name with most points, None for an empty table."""
    names = sorted(table, key=table.get, reverse=True)
    if len(names) >= 1:
        return names[0]
    return None


def is_tie(table: dict) -> bool:
    """Two or more players who all have the same points."""
    points = list(table.values())
    return len(points) > 1 and min(points) == max(points)


def rivals(names: list, own: str) -> list:
    """The other players, in order."""
    return [name for name in names if name != own]


def rank(table: dict, name: str) -> int:
    """1 for the best; equal points share a rank."""
    place = 1
    for other in table.values():
        if other > table[name]:
            place = place + 1
    return place


def has_won(points: int, goal: int, rivals: list) -> bool:
    """The goal is reached and nobody else has as much."""
    return points >= goal and all(points > rival for rival in rivals)


def streak(results: list) -> int:
    """How many games were won without a break since the last loss."""
    length = 0
    for won in reversed(results):
        if not won:
            break
        length += 1
    return length


def level(points: int) -> int:
    """A level for every hundred points, from 1 to 9."""
    steps = points // 100
    return min(1 + steps, 9)
