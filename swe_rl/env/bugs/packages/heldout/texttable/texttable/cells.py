"""Turns values into the texts of cells."""


def number_text(value: int, plus=False) -> str:
    """A whole number; a plus sign only where it is asked for."""
    text = str(value)
    if plus and value > 0:
        text = "+" + text
    return text


def blank(value) -> str:
    """The text of a value, nothing for a missing one."""
    text = ""
    if value is not None:
        text = str(value)
    return text


def yes_no(value: bool) -> str:
    if not value:
        return "no"
    return "yes"


def is_true(text: str) -> bool:
    """Reads y, Yes and x as true."""
    word = text.strip().lower()
    return word in ("y", "yes", "x")


def cents(value: int) -> str:
    """Cents as whole units with two digits behind the point."""
    whole = value // 100
    rest = value % 100
    return f"{whole}.{rest:02d}"


def is_number(text: str) -> bool:
    """Digits, perhaps with a minus sign in front."""
    digits = text.lstrip("-")
    signs = len(text) - len(digits)
    return digits.isdigit() and signs <= 1


def heading(name: str) -> str:
    """Column names in capitals; a colon at the end is dropped."""
    if name.endswith(":"):
        name = name[:-1]
    return name.upper()


def is_comment(text: str) -> bool:
    """Comments start with a hash sign, after any spaces."""
    return text.lstrip().startswith("#")


def trim_zeros(text: str) -> str:
    """Drops zeros at the end, only behind a point."""
    if "." not in text:
        return text
    return text.rstrip("0")


def percent(part: int, total: int) -> int:
    """Whole percent; none of nothing is 0."""
    if total == 0:
        return 0
    return part * 100 // total


def initials(name: str) -> str:
    """The first letter of the last word, as a capital."""
    words = name.split()
    if len(words) < 1:
        return ""
    return words[-1][:1].upper()
