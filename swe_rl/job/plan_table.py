"""The plan for people: a picture of the GPUs, then sections side by side where the terminal is wide enough.

Invariants:
- Nothing is computed here; every number is the plan's own.
"""

from itertools import groupby
from typing import Any

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config

_COLORS = {"engine": "cyan", "trainer": "magenta", "idle": "dim"}
_WIDE = 110
_SHOWN_KEYS = ("model.path", "engine.urls", "paths.outputs", "paths.sync_to")


def print_plan(made: dict[str, Any], config: Config, origins: Origins | None) -> None:
    console = Console(highlight=False)
    console.print(_headline(config, made))
    console.print(_gpus(made["gpus"], config))
    sections = [
        _section(name, rows) for name, rows in made.items() if isinstance(rows, dict) and name not in _APART and rows
    ]
    if console.width >= _WIDE:
        console.print(Columns(sections, equal=False, expand=False))
    else:
        console.print(*sections, sep="\n")
    console.print(_section("environment", made["environment"], wide=True))
    if origins is not None and (given := _from_environment(config, origins)):
        console.print(_section("set by the environment", given, wide=True))


_APART = ("gpus", "environment")


def _headline(config: Config, made: dict[str, Any]) -> Text:
    parts = (
        config.model.name,
        f"layout={config.layout.name}",
        f"router={config.router.name}",
        f"env={config.env.name}",
    )
    return Text.assemble((config.name, "bold"), "  ", "  ".join(parts), ("  " + made["config_hash"], "dim"))


def _gpus(gpus: dict[str, str], config: Config) -> RenderableType:
    if not gpus:
        return Text("no GPU: engine, trainer and sandboxes on this machine's CPU", style="dim")
    if "not known" in gpus:
        return Text(f"GPUs: {gpus['not known']}", style="dim")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    for node, members in groupby(gpus.items(), key=lambda item: item[0].split(" gpu ")[0]):
        cells = [_cell(name, roles) for name, roles in members]
        table.add_row(Text(node, style="bold"), *cells)
    memory = f"{config.hardware.gpu_kind}, {config.hardware.gpu_memory_gb:g} GB each"
    return Panel(table, title=f"hardware={config.hardware.name}: {memory}", title_align="left", expand=False)


def _cell(name: str, roles: str) -> Text:
    number = name.rpartition(" ")[2]
    text = Text(f"{number}:", style="dim")
    for index, role in enumerate(roles.split(", ")):
        kind = role.partition(" ")[0]
        text.append("/" if index else "", style="dim")
        text.append(role.replace("engine ", "E").replace("trainer ", "T"), style=_COLORS.get(kind, ""))
    return text


def _section(name: str, rows: dict[str, Any], wide: bool = False) -> Panel:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", max_width=None if wide else 44)
    for key, value in rows.items():
        text = f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value)
        table.add_row(key, Text(text, justify="left"))
    return Panel(table, title=name, title_align="left", expand=False)


def _from_environment(config: Config, origins: Origins) -> dict[str, str]:
    found = {}
    for key in _SHOWN_KEYS:
        origin = origins.of(key)
        if origin.startswith(("environment:", ".env:")):
            group, _, name = key.partition(".")
            found[key] = f"{getattr(getattr(config, group), name)}  (from: {origin})"
    return found
