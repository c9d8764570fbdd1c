"""The shopping list: lines of text, packs, prices and shelves."""


def clean_line(text: str) -> str:
    """Takes the bullet signs off the front of a line."""
    return text.lstrip("-* ")


def drop_notes(text: str) -> str:
    """Takes exclamation and question marks off the end."""
    return text.rstrip("!?")


def merge(first: dict, second: dict) -> dict:
    """Adds two lists up, name by name."""
    total = dict(first)
    for name, grams in second.items():
        total[name] = total.get(name, 0) + grams
    return total


def packs_needed(grams: int, pack: int) -> int:
    """The smallest number of packs that holds the grams."""
    if grams < 1:
        return 0
    full = (grams - 1) // pack
    return 1 + full


def without(lines: list, done: list) -> list:
    """The lines that are not done yet, in order."""
    left = []
    for line in lines:
        if line in done:
            continue
        left.append(line)
    return left


def changed(old: dict, new: dict) -> list:
    """Names whose amount differs in the new list."""
    names = []
    for name, grams in new.items():
        if old.get(name, 0) != grams:
            names.append(name)
    return names


def is_optional(line: str) -> bool:
    """Optional lines end with a question mark or begin with maybe."""
    text = line.strip().lower()
    return text.endswith("?") or text.startswith("maybe")


def any_dear(prices: list, limit: int) -> bool:
    """Whether a price lies above the limit."""
    return any(price > limit for price in prices)


def budget_left(budget: int, prices: list) -> int:
    for price in prices:
        if price > budget:
            break
        budget = budget - price
    return budget


def all_priced(lines: list, prices: dict) -> bool:
    """Whether a price is known for every line."""
    return all(prices.get(line) is not None for line in lines)


def heading(shelf: str, count: int) -> str:
    """Capitals without the # in front; with the count from two on."""
    title = shelf.lstrip("# ").upper()
    if count >= 2:
        title = title + f" ({count})"
    return title
