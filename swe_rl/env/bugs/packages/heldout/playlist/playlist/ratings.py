"""Ratings from 1 to 5 stars and what follows from them."""


def stars_text(stars: int) -> str:
    """Five signs: stars and then dots."""
    full = max(min(stars, 5), 0)
    return "*" * full + "." * (5 - full)


def read_stars(text: str) -> int:
    """Counts the stars in front of a comment."""
    rest = text.lstrip("*")
    return len(text) - len(rest)


def is_rating(value: int) -> bool:
    """From 1 to 5."""
    return value >= 1 and value <= 5


def average(ratings: list) -> int:
    """Tenths of stars, rounded down; 0 without ratings."""
    if not ratings:
        return 0
    return sum(ratings) * 10 // len(ratings)


def best(table: dict):
    """The title with most stars, the first of the alphabet of equals."""
    top = None
    for title in sorted(table):
        if top is None or table[title] > table[top]:
            top = title
    return top


def is_loved(ratings: list) -> bool:
    """Someone gave five stars, and nobody gave one."""
    top = any(value == 5 for value in ratings)
    return top and 1 not in ratings


def agreed(ratings: list, gap: int) -> bool:
    """Ratings differ by the gap at most."""
    if len(ratings) < 2:
        return True
    return max(ratings) - min(ratings) <= gap


def trend(ratings: list) -> int:
    """The change from the first to the last rating."""
    if not ratings:
        return 0
    latest = ratings[-1]
    return latest - ratings[0]


def counted(ratings: list) -> int:
    """How many ratings are not 0, which means no opinion."""
    number = 0
    for value in ratings:
        if value != 0:
            number = number + 1
    return number


def keep_rated(table: dict, least: int) -> list:
    """Titles with at least so many stars, without unrated ones."""
    kept = []
    for title, stars in table.items():
        if stars is None or stars < least:
            continue
        kept.append(title)
    return kept


def vote_up(table: dict, title: str, most=None) -> int:
    """One star more for a title, but not above `most`."""
    stars = table.get(title, 0) + 1
    if most is not None:
        stars = min(stars, most)
    table[title] = stars
    return stars


def is_review(text: str) -> bool:
    """Longer texts and those that end with a mark are reviews."""
    words = text.split()
    return len(words) > 3 or text.rstrip().endswith("!")
