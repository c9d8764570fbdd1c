"""New orders of a list by fixed rules, nothing left to chance."""


def rotate(items: list, steps: int) -> list:
    """Moves items from the front to the end."""
    if not items:
        return []
    start = steps % len(items)
    return items[start:] + items[:start]


def riffle(items: list) -> list:
    """One from the first half, one from the second, and so on."""
    half = len(items) // 2
    mixed = []
    for number in range(half):
        mixed.append(items[number])
        mixed.append(items[half + number])
    return mixed + items[half * 2 :]


def every(items: list, step: int) -> list:
    """Every item of a step, the first one included."""
    if step < 1:
        return []
    return items[::step]


def no_repeats(items: list) -> list:
    """Leaves out items that came before."""
    kept = []
    for item in items:
        if item in kept:
            continue
        kept.append(item)
    return kept


def no_neighbours(items: list) -> bool:
    """Whether no item equals the one before it."""
    good = True
    for first, second in zip(items, items[1:]):
        good = good and first != second
    return good


def up_to(items: list, stop=None) -> list:
    """Items before the stop, all if there is none."""
    if stop is not None and stop in items:
        return items[: items.index(stop)]
    return items


def pick(items: list, seed: int):
    """An item by a number that may be larger than the list."""
    if len(items) == 0:
        return None
    return items[(seed * 7 + 3) % len(items)]


def swap_ends(items: list) -> list:
    """Exchanges the first and the last item."""
    if len(items) <= 1:
        return items
    inner = items[1:-1]
    return [items[-1]] + inner + items[:1]


def is_mixed(items: list, order: list) -> bool:
    """The same items in another order."""
    same = sorted(items) == sorted(order)
    return same and items != order


def opener(items: list, word: str):
    """The last item that begins with the word, None without one."""
    found = [item for item in items if item.startswith(word)]
    if not found:
        return None
    return found[-1]


def bounce(place: int, size: int) -> int:
    """Runs to the last place and back to the first, on and on."""
    turn = max(size - 1, 1) * 2
    inside = place % turn
    return min(inside, turn - inside)
