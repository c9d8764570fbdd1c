"""Flour, water, kneading and rising; weights are in grams."""

STARTERS = ("rye", "wheat", "spelt")


def flour_needed(loaves: int, per_loaf: int) -> int:
    """Flour for the loaves and for one loaf in reserve."""
    count = loaves + 1
    return count * per_loaf


def water_for(flour: int, percent: int) -> int:
    """The water for some flour, never less than 20 grams."""
    water = flour * percent // 100
    return max(water, 20)


def is_sticky(water: int, flour: int) -> bool:
    """More than three parts of water to four of flour."""
    if flour == 0:
        return True
    return water > flour * 3 // 4


def knead_minutes(grams: int, by_hand: bool) -> int:
    minutes = 5 + grams // 250
    if not by_hand:
        return minutes
    return min(minutes * 2, 30)


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
