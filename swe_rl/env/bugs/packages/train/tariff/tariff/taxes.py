"""Taxes on prices; rates are in percent."""

RATES = {"food": 7, "book": 7, "tool": 19, "wine": 19}
FREE = ("stamp", "school")


def tax_rate(kind: str) -> int:
    """The rate of a kind of goods in any case; 19 for unknown ones."""
    name = kind.lower()
    if name in FREE:
        return 0
    return RATES.get(name, 19)


def add_tax(net: int, rate: int) -> int:
    """The price with tax, half cents rounded up."""
    tax = (net * rate + 50) // 100
    return net + tax


def included_tax(gross: int, rate: int) -> int:
    """The tax within a price that has it already."""
    net = gross * 100 // (100 + rate)
    return gross - net


def is_exempt(kind: str, country: str, home: str) -> bool:
    """Free goods, and everything sent abroad, are exempt."""
    return kind in FREE or country != home


def tax_by_rate(lines: list) -> dict:
    """Adds up net amounts for each rate; rate zero is left out."""
    sums = {}
    for net, rate in lines:
        if rate == 0:
            continue
        sums[rate] = sums.get(rate, 0) + net
    return sums


def valid_tax_number(text) -> bool:
    """Numbers look like 'DE' followed by nine digits."""
    if text is None:
        return False
    if not text.startswith("DE"):
        return False
    digits = text[2:]
    return digits.isdigit() and len(digits) == 9


def duty(value: int, free_limit: int) -> int:
    """Duty of a tenth on what exceeds the free limit."""
    if value <= free_limit:
        return 0
    rest = value - free_limit
    return max(rest // 10, 100)


def highest_rate(kinds: list) -> int:
    """The largest rate among the kinds, zero for none."""
    if not kinds:
        return 0
    return max(tax_rate(kind) for kind in kinds)


def quarter(month: int) -> int:
    """The quarter, from one to four, of a month from one to twelve."""
    before = month - 1
    return before // 3 + 1
