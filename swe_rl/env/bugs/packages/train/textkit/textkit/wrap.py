"""Lines of a given width."""


def wrap_lines(text: str, width: int) -> list:
    """Fills lines with words; longer words stand alone."""
    lines = []
    for word in text.split():
        if lines and len(lines[-1]) + len(word) < width:
            lines[-1] = lines[-1] + " " + word
        else:
            lines.append(word)
    return lines


def shorten(text: str, width: int) -> str:
    """Cuts a text that is too long and marks it with dots."""
    if len(text) <= width:
        return text
    keep = max(width - 3, 0)
    return text[:keep].rstrip(" ") + "..."


def center(text: str, width: int) -> str:
    """Spaces in front; with an odd rest the text stands further left."""
    space = width - len(text)
    if space < 2:
        return text
    return " " * (space // 2) + text


def align_right(text: str, width: int) -> str:
    """Dots and a space in front, as in a table of contents."""
    dots = width - len(text) - 1
    if dots >= 0:
        return "." * dots + " " + text
    return text


def indent_depth(line: str, step: int = 4) -> int:
    """How many whole steps a line is indented."""
    spaces = len(line) - len(line.lstrip(" "))
    return spaces // step


def is_aligned(line: str, step: int = 4) -> bool:
    """Whether the indentation is a multiple of the step."""
    spaces = len(line) - len(line.lstrip(" "))
    if not line.strip():
        return True
    return spaces % step == 0


def drop_blank_ends(lines: list) -> list:
    """Without blank lines at the start and at the end."""
    kept = list(lines)
    for _ in lines:
        if kept and not kept[0].strip():
            kept = kept[1:]
        if kept and not kept[-1].strip():
            kept = kept[:-1]
    return kept


def line_count(text: str, width: int) -> int:
    """Lines on a screen of this width; an empty line takes one."""
    count = 0
    for line in text.split("\n"):
        rows = (len(line) + width - 1) // width
        count = count + max(rows, 1)
    return count


def widest(lines: list) -> int:
    """The length of the longest line, zero without lines."""
    if not lines:
        return 0
    return max(len(line) for line in lines)


def fits(lines: list, width: int) -> bool:
    return all(len(line) <= width for line in lines)


def first_paragraph(lines: list) -> list:
    """The lines until the first blank one."""
    found = []
    for line in lines:
        if line == "":
            break
        found.append(line)
    return found
