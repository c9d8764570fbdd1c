"""Fits texts into a width: left, right, centred, cut or wrapped."""


def left(text: str, width: int) -> str:
    """Fills up with spaces on the right."""
    gap = max(width - len(text), 0)
    return text + " " * gap


def right(text: str, width: int) -> str:
    """Fills up with spaces on the left."""
    gap = width - len(text)
    if gap < 1:
        return text
    return " " * gap + text


def centre(text: str, width: int) -> str:
    """Half of the gap goes to the left, the rest to the right."""
    gap = max(width - len(text), 0)
    before = gap // 2
    after = gap - before
    return " " * before + text + " " * after


def cut(text: str, width: int) -> str:
    """Texts that are too long end with a dot."""
    if len(text) <= width:
        return text
    return text[: width - 1] + "."


def fits(texts: list, width: int) -> bool:
    """Whether every text is within the width."""
    return all(len(text) <= width for text in texts)


def overflows(texts: list, width: int) -> bool:
    """Whether some text is wider than allowed."""
    return any(len(text) > width for text in texts)


def wrap_words(text: str, width: int) -> list:
    """Breaks a text at its spaces into lines of at most the width."""
    lines = []
    line = ""
    for word in text.split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = word
        else:
            line = (line + " " + word).lstrip()
    return lines + [line]


def side_of(name: str) -> str:
    """Reads l, LEFT, r, ... as a side; left is the default."""
    letter = name[:1].lower()
    if letter in ("r", "c"):
        return letter
    return "l"


def tab_gap(place: int, size: int) -> int:
    """Spaces from a place to the next tab stop, at least one."""
    over = place % size
    return size - over


def point_place(text: str) -> int:
    """Signs in front of the decimal point, all without one."""
    place = text.find(".")
    if place < 0:
        place = len(text)
    return place


def indent(text: str, steps: int) -> str:
    """Moves a text to the right by two signs a step."""
    level = max(steps, 0)
    return " " * (level * 2) + text.lstrip()
