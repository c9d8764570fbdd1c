"""Amounts of ingredients: grams, spoons, packs and their words."""

SPOON = 15


def parse_unit(text: str) -> str:
    """The unit in small letters, without the s of a plural."""
    unit = text.strip().lower()
    if len(unit) > 1 and unit.endswith("s"):
        return unit[:-1]
    return unit


def spoons_to_grams(spoons: int, heaped=False) -> int:
    """A heaped spoon holds seven grams more."""
    grams = spoons * SPOON
    if heaped:
        grams = grams + spoons * 7
    return grams


def split_packs(grams: int, pack: int) -> tuple:
    """Whole packs and the grams left over."""
    if pack <= 0:
        return 0, grams
    packs = grams // pack
    rest = grams % pack
    return packs, rest


def round_up(grams: int, step: int) -> int:
    rest = grams % step
    if rest != 0:
        grams = grams + step - rest
    return grams


def is_countable(unit: str) -> bool:
    """Whether the unit is counted rather than weighed."""
    name = unit.lower()
    if name.endswith("piece"):
        return True
    return name in ("slice", "clove")


def clamp(grams: int, low: int, high: int) -> int:
    grams = min(grams, high)
    return max(grams, low)


def leading_number(text: str) -> int:
    """The number in front of a text, 1 without one."""
    number = 1
    words = text.split()
    if words and words[0].isdigit():
        number = int(words[0])
    return number


def unit_word(text: str):
    """The last of several words, None for fewer than two."""
    words = text.split()
    if len(words) < 2:
        return None
    return words[-1]
