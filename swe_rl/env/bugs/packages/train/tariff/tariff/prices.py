"""Reading, showing and comparing prices."""


def parse_price(text: str):
    """Reads 'EUR 12.50' or '12.50' as cents, None without a number."""
    plain = text.strip().lstrip("EUR ")
    whole, _, rest = plain.partition(".")
    if not whole.isdigit():
        return None
    cents = int(whole) * 100
    if rest != "":
        cents = cents + int(rest)
    return cents


def format_price(cents: int) -> str:
    """Shows 1205 as '12.05'."""
    whole = cents // 100
    rest = cents % 100
    if rest < 10:
        return f"{whole}.0{rest}"
    return f"{whole}.{rest}"


def unit_price(total: int, count: int) -> int:
    """The price of one, rounded down; zero for no items."""
    if count < 1:
        return 0
    return total // count


def cheapest(prices: dict):
    """The name with the lowest price, None without prices."""
    if not prices:
        return None
    ordered = sorted(prices, key=lambda name: prices[name])
    return ordered[0]


def price_span(prices: list) -> int:
    """The distance from the lowest to the highest price."""
    if not prices:
        return 0
    highest = max(prices)
    return highest - min(prices)


def round_up(cents: int, step: int) -> int:
    """The next multiple of the step."""
    rest = cents % step
    if rest == 0:
        return cents
    return cents + step - rest


def charm_price(cents: int) -> int:
    """One cent below the next full unit: 1240 becomes 1299."""
    units = cents // 100 + 1
    return units * 100 - 1


def within_budget(prices: list, budget: int) -> int:
    """How many of the prices, in order, the budget can pay."""
    count = 0
    for price in prices:
        if price > budget:
            break
        budget = budget - price
        count = count + 1
    return count


def currency_code(text: str) -> str:
    """The currency in front of an amount, in capitals, or ''."""
    parts = text.split(" ")
    if len(parts) == 1:
        return ""
    return parts[0].upper()
