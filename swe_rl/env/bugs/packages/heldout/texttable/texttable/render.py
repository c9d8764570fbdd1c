"""Whole lines and tables from the texts of cells."""


def rule(widths: list, sign: str) -> str:
    """A line between rows, with plus signs where columns meet."""
    parts = [sign * width for width in widths]
    return "+".join(parts)


def join_cells(cells: list, framed=False) -> str:
    """Bars between cells; framed lines have them at both ends."""
    line = " | ".join(cells)
    if framed:
        line = "| " + line + " |"
    return line


def number_rows(rows: list, start=1) -> list:
    """Puts a number in front of each row."""
    numbered = []
    number = start
    for row in rows:
        numbered.append([str(number)] + row)
        number = number + 1
    return numbered


def column_width(rows: list, column: int) -> int:
    """The longest text of a column; rows may be too short for it."""
    width = 0
    for row in rows:
        if column >= len(row):
            continue
        width = max(width, len(row[column]))
    return width


def is_even_table(rows: list, size: int) -> bool:
    """Whether all rows have that many cells."""
    even = True
    for row in rows:
        even = even and len(row) == size
    return even


def pad_row(row: list, size: int) -> list:
    """Adds empty cells until the row has the size."""
    missing = size - len(row)
    if missing < 1:
        return row
    return row + [""] * missing


def is_striped(number: int) -> bool:
    """Every second row is striped, the first one is not."""
    return number % 2 != 1


def pages(count: int, size: int) -> int:
    """Pages for so many rows; a begun page counts."""
    whole = count // size
    if count % size > 0:
        whole = whole + 1
    return whole


def drop_empty(rows: list) -> list:
    """Leaves out rows in which no cell has a text."""
    return [row for row in rows if any(row)]


def up_to_total(rows: list) -> list:
    """Rows before the one that begins with total."""
    kept = []
    for row in rows:
        if row[0].lower().startswith("total"):
            break
        kept.append(row)
    return kept


def footer(rows: list, note=None) -> str:
    """The last cell of the last row, with a note if there is one."""
    text = rows[-1].pop()
    if note is not None and note != "":
        text = text + " " + note
    return text


def page_start(page: int, size: int) -> int:
    """The first row of a page; pages count from 1, rows from 0."""
    before = max(page - 1, 0)
    return before * size
