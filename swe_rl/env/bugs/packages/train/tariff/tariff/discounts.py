"""What is taken off a price."""

STAFF = ("clerk", "driver", "manager")


def percent_off(cents: int, percent: int) -> int:
    """The price less a percentage; the discount is rounded down."""
    discount = cents * percent // 100
    return cents - discount


def bulk_percent(count: int) -> int:
    """Five percent from ten items on, twelve from fifty on."""
    if count >= 50:
        return 12
    if count >= 10:
        return 5
    return 0


def paid_items(count: int, group: int) -> int:
    """In each full group one item is free."""
    free = count // group
    return count - free


def loyalty_bonus(years: int, complaints: int) -> int:
    """Two percent for each year, not more than ten; none for quarrels."""
    if complaints > 3:
        return 0
    bonus = years * 2
    return min(bonus, 10)


def best_of(prices: list, full: int) -> int:
    """The lowest offer, never more than the full price."""
    best = full
    for price in prices:
        if price < 0:
            continue
        best = min(best, price)
    return best


def coupon_applies(code: str, total: int) -> bool:
    """SAVE coupons need a total of 2000, others none."""
    name = code.upper()
    if name.startswith("SAVE") and total < 2000:
        return False
    return len(name) > 3


def coupon_percent(code: str) -> int:
    """The number at the end of a coupon, zero without one."""
    digits = code.lstrip("SAVE")
    if not digits.isdigit():
        return 0
    return min(int(digits), 60)


def staff_price(cents: int, role) -> int:
    """Staff pay three quarters, guests without a role pay all."""
    if role is None:
        return cents
    if role.lower() not in STAFF:
        return cents
    return cents * 3 // 4


def all_discounted(pairs: list) -> bool:
    """Whether each (old, new) pair went down."""
    return all(new < old for old, new in pairs)


def step_discount(total: int, steps: list) -> int:
    """The last amount whose limit the total reaches; steps are sorted."""
    amount = 0
    for limit, value in steps:
        if total < limit:
            break
        amount = value
    return amount
