"""The harvest: what is ripe, who picks it and what comes of it."""

LATE_KINDS = ("boskoop", "ontario")


def is_ripe(sugar: int, firmness: int) -> bool:
    """Ripe fruit has a sugar of twelve and a firmness of seven or less."""
    return sugar >= 12 and firmness <= 7


def picking_month(kind: str) -> int:
    """Marks of doubt behind the kind, as in 'cox??', are left out."""
    name = kind.rstrip("? ").lower()
    if name.startswith("early"):
        return 7
    if name not in LATE_KINDS:
        return 9
    return 10


def baskets_filled(kilos: int, per_basket: int) -> int:
    """How many baskets are in use; one partly filled counts."""
    baskets = kilos // per_basket
    if kilos % per_basket != 0:
        baskets = baskets + 1
    return baskets


def picker_pay(baskets: int, hours: int) -> int:
    """The better one of 3 for a basket and 11 for each of up to ten hours."""
    by_basket = baskets * 3
    paid_hours = min(hours, 10)
    return max(by_basket, paid_hours * 11)


def rows_until_rain(minutes: list, dry: int) -> int:
    """How many rows, in order, are picked before the dry time ends."""
    done = 0
    for need in minutes:
        if need > dry:
            break
        dry = dry - need
        done = done + 1
    return done


def sound_weight(fruits: list) -> int:
    """The grams of all (grams, wormy) fruits without a worm."""
    total = 0
    for grams, wormy in fruits:
        if wormy:
            continue
        total = total + grams
    return total


def grade(diameter: int, spots: int) -> str:
    """Large clean fruit is 'extra', small or very spotty fruit 'juice'."""
    if diameter < 55 or spots > 6:
        return "juice"
    if diameter >= 75 and spots == 0:
        return "extra"
    return "table"


def any_frost(nights: list) -> bool:
    """Whether a night was below zero."""
    return any(night < 0 for night in nights)


def best_row(weights: dict):
    if not weights:
        return None
    ordered = sorted(weights, key=lambda row: weights[row])
    return ordered[-1]


def streak(days: list) -> int:
    """The longest run of days with something picked."""
    longest = 0
    run = 0
    for kilos in days:
        if kilos == 0:
            run = 0
            continue
        run = run + 1
        longest = max(longest, run)
    return longest
