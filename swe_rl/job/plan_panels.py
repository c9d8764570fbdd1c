"""Draws the pieces of which `job=plan` makes its page for people: a GPU with its roles, and a section of rows.

Invariants:
- rich is imported only where something is drawn, because `job.format=json` does without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.text import Text

_COLORS = {"engine": "cyan", "trainer": "magenta", "idle": "dim"}


def gpu_cell(name: str, roles: str) -> "Text":
    """Returns a GPU's number with what runs on it: `0: E0/T1` for a part of engine 0 and rank 1 of the trainer."""
    from rich.text import Text

    number = name.rpartition(" ")[2]
    text = Text(f"{number}:", style="dim")
    for index, role in enumerate(roles.split(", ")):
        kind = role.partition(" ")[0]
        text.append("/" if index else "", style="dim")
        text.append(role.replace("engine ", "E").replace("trainer ", "T"), style=_COLORS.get(kind, ""))
    return text


def section_panel(name: str, rows: dict[str, Any], wide: bool = False) -> "Panel":
    """Returns a section's rows in a frame. A `wide` one may take the whole width of the terminal."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", max_width=None if wide else 44)
    for key, value in rows.items():
        text = f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value)
        table.add_row(key, Text(text, justify="left"))
    return Panel(table, title=name, title_align="left", expand=False)
