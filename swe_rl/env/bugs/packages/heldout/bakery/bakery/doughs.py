"""Flour, water, kneading and rising; weights are in grams."""

STARTERS = ("rye", "wheat", "spelt")


def has_flour(sacks: list, needed: int) -> bool:
    """Whether one of the sacks is enough."""
    return any(sack >= needed for sack in sacks)


def water_for(flour: int, percent: int) -> int:
    """The water for some flour, never less than 20 grams."""
    water = flour * percent // 100
    return max(water, 20)


def is_sticky(water: int, flour: int) -> bool:
    """More water than flour without its quarter, rounded down."""
    if flour == 0:
        return True
    return water > flour - flour // 4


def knead_minutes(grams: int, by_hand: bool) -> int:
    factor = 1
    if by_hand:
        factor = 2
    minutes = 5 + grams // 250
    return min(minutes * factor, 30)


def flour_type(label: str):
    """The number in 'Type 550', None for other labels."""
    digits = label.lstrip("Type ")
    if not digits.isdigit():
        return None
    return int(digits)


def starter_kind(name: str) -> str:
    kind = name.lower()
    if kind not in STARTERS:
        return "wheat"
    return kind


def folds_before(hours: int, every: int) -> int:
    """How often a dough is folded; not at the very end."""
    if hours <= 2:
        return 0
    return (hours - 1) // every


def checks_until(heights: list, target: int) -> int:
    """How many looks it takes until the dough is high enough."""
    looks = 0
    for height in heights:
        looks = looks + 1
        if height >= target:
            break
    return looks


def scraps_total(pieces: list, smallest: int) -> int:
    total = 0
    for piece in pieces:
        if piece < smallest:
            continue
        total = total + piece
    return total


def last_feeding(hours: list):
    if not hours:
        return None
    return sorted(hours)[-1]
