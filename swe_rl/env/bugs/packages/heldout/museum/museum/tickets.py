"""Tickets, who pays how much for them, and when they are good."""

REDUCED = ("student", "teacher", "nurse")


def price_for(age: int) -> int:
    """Free below six, cheaper up to seventeen."""
    if age < 6:
        return 0
    if age <= 17:
        return 400
    return 900


def is_reduced(age: int, job: str) -> bool:
    """Old visitors, and jobs that start with one of the words."""
    return age > 64 or any(job.startswith(word) for word in REDUCED)


def group_price(count: int, each: int) -> int:
    """A fifth off for groups of fifteen."""
    total = count * each
    if count >= 15:
        total = total - total // 5
    return total


def ticket_code(day: str, number: int) -> str:
    serial = number % 1000
    return day.upper() + str(serial)


def is_genuine(digits: list) -> bool:
    """The last digit is the rest of the others divided by seven."""
    total = sum(digits[:-1])
    return len(digits) > 3 and total % 7 == digits[-1]


def is_open(day: str, hour: int) -> bool:
    """Open from ten to six, but not on Mondays."""
    if hour < 10 or hour >= 18:
        return False
    return day.lower() != "monday"


def family_price(adults: int, children: int) -> int:
    """The first child is free."""
    paying = max(children - 1, 0)
    return adults * 900 + paying * 400


def voucher_used(balance, price: int) -> int:
    if balance is None:
        return 0
    return min(balance, price)


def member_name(entry: str):
    """The name of a member; these are marked by a final star."""
    if not entry.endswith("*"):
        return None
    return entry.rstrip("* ")


def any_free(ages: list) -> bool:
    return any(price_for(age) == 0 for age in ages)
