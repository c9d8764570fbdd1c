"""What customers order, and when they may have it."""


def order_code(name: str, number: int) -> str:
    """The last name in capitals and two digits of the number."""
    prefix = name.split()[-1].upper()
    return f"{prefix}-{number % 100}"


def is_gift(note) -> bool:
    return note is not None and note.lower().startswith("gift")


def can_collect(hour: int, paid: bool) -> bool:
    """Paid orders wait from seven until six in the evening."""
    if not paid:
        return False
    return 7 <= hour and hour < 18


def dozen_price(count: int, each: int) -> int:
    """Each thirteenth bun is free."""
    free = count // 13
    return (count - free) * each


def line_count(line: str) -> int:
    """The number in a line like '3 rye', one for other lines."""
    words = line.split()
    if len(words) != 2 or not words[0].isdigit():
        return 1
    return int(words[0])


def total_loaves(lines: list) -> int:
    """Adds up the lines of an order; remarks start with a hash."""
    total = 0
    for line in lines:
        if line.startswith("#"):
            continue
        total = total + line_count(line)
    return total


def safe_to_eat(parts: list, allergens: list) -> bool:
    return all(part not in allergens for part in parts)


def clean_name(name: str) -> str:
    """Drops bullets, final dots and the word bread."""
    plain = name.lstrip("*- ").rstrip(".")
    if plain.endswith(" bread"):
        return plain[:-6]
    return plain


def queue_place(queue: list, name: str) -> int:
    """Where a customer stands; newcomers stand behind the last."""
    place = 1
    for other in queue:
        if other == name:
            break
        place = place + 1
    return place


def needs_deposit(total: int, regular) -> bool:
    """Strangers always pay ahead, others for large orders."""
    if regular is None:
        return True
    return total > 5000
