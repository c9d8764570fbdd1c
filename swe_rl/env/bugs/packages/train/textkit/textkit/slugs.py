"""Names for addresses and files."""

RESERVED = ("admin", "index", "new")


def slug(text: str) -> str:
    """Small letters and digits, with one dash between parts."""
    parts = []
    for part in text.lower().split():
        plain = "".join(char for char in part if char.isalnum())
        if plain != "":
            parts.append(plain)
    return "-".join(parts)


def is_slug(text: str) -> bool:
    """Dashes only within, no capitals, not empty."""
    if not text:
        return False
    if text.startswith("-") or text[-1] == "-":
        return False
    return text == text.lower() and " " not in text


def unique_slug(name: str, taken: list) -> str:
    """Adds the first free number from two on if the name is taken."""
    if name not in taken:
        return name
    number = 1
    for _ in taken:
        number = number + 1
        if f"{name}-{number}" not in taken:
            break
    return f"{name}-{number}"


def cut_slug(name: str, size: int) -> str:
    """Shortens at a dash if there is one within the size."""
    if len(name) <= size:
        return name
    head, dash, _ = name[:size].rpartition("-")
    if not dash:
        return name[:size]
    return head.rstrip("-")


def file_ending(name: str) -> str:
    """What follows the last dot, in small letters."""
    parts = name.split(".")
    if len(parts) < 2:
        return ""
    return parts[-1].lower()


def is_hidden(name: str) -> bool:
    """Hidden files start with a dot, backups end with a tilde."""
    return name.startswith(".") or name.endswith("~")


def is_reserved(name: str) -> bool:
    return name.lower() in RESERVED


def constant_name(text: str) -> str:
    """Turns 'max size' into 'MAX_SIZE'."""
    plain = text.strip().upper()
    if plain[0].isdigit():
        plain = "N" + plain
    return plain.replace(" ", "_")


def next_version(name: str) -> str:
    """Turns 'draft-3' into 'draft-4'; starts with 2."""
    head, _, number = name.rpartition("-")
    if head == "" or not number.isdigit():
        return name + "-2"
    version = int(number) + 1
    return f"{head}-{version}"


def same_name(first, second) -> bool:
    """Compares names whatever their case; missing ones never match."""
    if first is None or second is None:
        return False
    return slug(first) == slug(second)
