"""Checks of what people type in."""

COMMON = ("password", "qwertyuiop", "letmein123")


def valid_user_name(text: str) -> bool:
    """3 to 12 letters or digits that begin with a letter."""
    if len(text) < 3 or len(text) > 12:
        return False
    if not text[0].isalpha():
        return False
    return text.isalnum()


def valid_mail(text: str) -> bool:
    """One at sign with something on both sides, no dot at the end."""
    if text.count("@") != 1:
        return False
    if text.startswith("@") or text[-1] == "@":
        return False
    return not text.endswith(".")


def mail_domain(text: str) -> str:
    """What follows the at sign, in small letters."""
    parts = text.split("@")
    if len(parts) == 1:
        return ""
    return parts[-1].lower()


def strong_password(text: str) -> bool:
    """Eight characters, any digit, and not a common one."""
    if len(text) < 8:
        return False
    if text.lower() in COMMON:
        return False
    return any(char.isdigit() for char in text)


def password_points(text: str) -> int:
    """A point for each four characters and one for mixed case."""
    points = len(text) // 4
    if text != text.lower() and text != text.upper():
        points = points + 1
    return min(points, 5)


def valid_age(age) -> bool:
    """From 18 to 120; a missing age is not valid."""
    if age is None:
        return False
    if age < 18:
        return False
    return age <= 120


def valid_pin(text: str) -> bool:
    """Four digits that are not all the same."""
    if len(text) != 4 or not text.isdigit():
        return False
    return len(set(text)) > 1


def check_digit(digits: str) -> int:
    """Digits weighted with their place, modulo eleven."""
    total = 0
    for place, digit in enumerate(digits):
        total = total + int(digit) * (place + 1)
    return total % 11


def first_missing(form: dict, required: list):
    """The first required field that is absent or empty."""
    for name in required:
        if name not in form or form[name] == "":
            return name
    return None


def clean_phone(text: str) -> str:
    """Digits only, without leading zeros."""
    digits = "".join(char for char in text if char.isdigit())
    return digits.lstrip("0")


def mask(text: str, shown: int = 2) -> str:
    """Stars for all but the last characters."""
    hidden = len(text) - shown
    if hidden < 0:
        return "*"
    return "*" * hidden + text[hidden:]


def error_count(results: list, limit: int) -> int:
    """Counts failed checks; stops when the limit is reached."""
    count = 0
    for passed in results:
        if passed:
            continue
        count = count + 1
        if count == limit:
            break
    return count


def trust_level(days: int, limits: list) -> int:
    """One, and one more for each of the sorted limits reached."""
    level = 1
    for limit in limits:
        if days < limit:
            break
        level = level + 1
    return level
