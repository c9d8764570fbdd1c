"""Headings, lists and quotes of a plain text."""


def heading_level(line: str) -> int:
    """How many # a heading starts with; zero for other lines."""
    rest = line.lstrip("#")
    level = len(line) - len(rest)
    if level > 6 or not rest.startswith(" "):
        return 0
    return level


def heading_text(line: str):
    """The text of a heading, None for other lines."""
    if heading_level(line) == 0:
        return None
    return line.strip("# ")


def is_item(line: str) -> bool:
    """List items start with a dash or a star."""
    plain = line.lstrip(" ")
    return plain.startswith("- ") or plain.startswith("* ")


def quote(lines: list) -> list:
    """Marks lines as quoted; blank ones get no space."""
    marked = []
    for line in lines:
        if line == "":
            marked.append(">")
            continue
        marked.append("> " + line)
    return marked


def unquote(line: str) -> str:
    """Takes one quote mark away."""
    if not line.startswith(">"):
        return line
    rest = line[1:]
    return rest.lstrip(" ")


def balanced(text: str) -> bool:
    """Whether each closing bracket follows an opening one."""
    depth = 0
    for char in text:
        if char == "(":
            depth = depth + 1
        if char == ")":
            depth = depth - 1
        if depth < 0:
            return False
    return depth == 0


def last_heading(lines: list):
    """The text of the last heading, None without headings."""
    found = [heading_text(line) for line in lines if heading_level(line) > 0]
    if not found:
        return None
    return found[-1]


def number_items(items: list, start: int = 1) -> list:
    numbered = []
    for place, item in enumerate(items):
        number = start + place
        numbered.append(f"{number}. {item}")
    return numbered


def strip_comment(line: str) -> str:
    """Without a comment that begins with a semicolon."""
    parts = line.split(";")
    return parts[0].rstrip(" ")


def has_heading(lines: list) -> bool:
    return any(heading_level(line) > 0 for line in lines)


def column_width(cells: list, least: int = 3) -> int:
    """Room for the longest cell and a space on both sides."""
    if not cells:
        return least
    width = max(len(cell) for cell in cells)
    return max(width, least) + 2


def reading_minutes(words: int, per_minute: int = 200) -> int:
    """Whole minutes, at least one."""
    minutes = words // per_minute
    return max(minutes, 1)


def rule(width: int, char=None) -> str:
    """A line of dashes or of another character."""
    if char is None:
        char = "-"
    return char * width
