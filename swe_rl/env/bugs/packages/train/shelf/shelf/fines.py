"""What late books cost, in cents."""

RATE = 20
CAP = 500
GRACE = 2


def late_fee(days: int) -> int:
    """A rate for each day once grace is over, up to the cap."""
    if days <= GRACE:
        return 0
    fee = days * RATE
    return min(fee, CAP)


def total_fees(days_late: list) -> int:
    total = 0
    for days in days_late:
        total = total + late_fee(days)
    return total


def weeks_begun(days: int) -> int:
    """Whole weeks within the days, and one more for a rest."""
    weeks = days // 7
    if days % 7 > 0:
        weeks = weeks + 1
    return weeks


def rest_days(days: int) -> int:
    """Days left over after whole weeks."""
    return days % 7


def pay(balance: int, amount: int) -> tuple:
    """New balance and change; never takes more than is owed."""
    taken = min(balance, amount)
    change = amount - taken
    return balance - taken, change


def is_blocked(balance: int, lost: bool = False) -> bool:
    """Blocked above the cap, or while a book is lost."""
    if lost or balance > CAP:
        return True
    return False


def replacement_cost(price: int, age: int) -> int:
    """A tenth less for each year, but at least a fifth of the price."""
    reduced = price - price * age // 10
    lowest = price // 5
    return max(reduced, lowest)


def parse_cents(text: str):
    """Reads '3.40' as 340 and '3' as 300; None without a number."""
    parts = text.lstrip("$").split(".")
    if not parts[0].isdigit():
        return None
    cents = int(parts[0]) * 100
    if len(parts) == 2:
        cents = cents + int(parts[-1])
    return cents


def first_unpaid(bills: list):
    """The name of the first bill that still asks for money."""
    found = None
    for name, owed in bills:
        if owed <= 0:
            continue
        found = name
        break
    return found


def waive(bills: dict, names: list) -> dict:
    """Bills without those of the given names."""
    kept = {}
    for name, owed in bills.items():
        if name not in names:
            kept[name] = owed
    return kept


def describe_balance(balance) -> str:
    if balance is None:
        return "unknown"
    if balance == 0:
        return "settled"
    return f"owes {balance}"
