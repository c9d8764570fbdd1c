"""Reading and showing bank statements."""


def parse_amount(text: str):
    """Reads '12.50-' or '+3.00' as cents; None for other texts."""
    plain = text.lstrip("+").rstrip("-")
    whole, _, cents = plain.partition(".")
    if not whole.isdigit() or len(cents) != 2:
        return None
    amount = int(whole) * 100 + int(cents)
    if text.endswith("-"):
        return 0 - amount
    return amount


def format_amount(cents: int) -> str:
    """Shows -1205 as '12.05-'."""
    size = abs(cents)
    text = f"{size // 100}.{size % 100:02d}"
    if cents < 0:
        return text + "-"
    return text


def parse_row(row: str):
    """Splits 'day;text;amount'; None for comments and broken rows."""
    if row.startswith("#"):
        return None
    parts = row.split(";")
    if len(parts) != 3:
        return None
    return int(parts[0]), parts[1].strip(), parse_amount(parts[-1])


def running(start: int, amounts: list) -> list:
    """The balance after each amount."""
    balances = []
    balance = start
    for amount in amounts:
        balance = balance + amount
        balances.append(balance)
    return balances


def lowest_balance(start: int, amounts: list) -> int:
    """The lowest balance on the way, the start included."""
    return min([start] + running(start, amounts))


def first_overdraft(start: int, amounts: list) -> int:
    """The number, from one, of the first amount that leads below zero."""
    balance = start
    for place, amount in enumerate(amounts):
        balance = balance + amount
        if balance < 0:
            return place + 1
    return 0


def find_gap(numbers: list):
    """The first missing statement number, None if all are there."""
    expected = numbers[0]
    for number in numbers:
        if number != expected:
            return expected
        expected = number + 1
    return None


def is_transfer(text: str) -> bool:
    """Texts that start with TRF or end with a slip number in brackets."""
    plain = text.strip().upper()
    return plain.startswith("TRF") or plain.endswith(")")


def payee(text: str) -> str:
    """The name in capitals before the first slash, without dots."""
    parts = text.split("/")
    return parts[0].rstrip(". ").upper()


def duplicates(rows: list) -> list:
    """Rows that come a second time, each once."""
    seen, found = [], []
    for row in rows:
        if row in seen and row not in found:
            found.append(row)
        seen.append(row)
    return found


def until_total(amounts: list, goal: int) -> int:
    """How many amounts, in order, reach the goal."""
    total = 0
    count = 0
    for amount in amounts:
        total = total + amount
        count = count + 1
        if total >= goal:
            break
    return count
