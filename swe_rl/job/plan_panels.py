"""Draws the pieces of which `job=plan` makes its page for people: one line of all, the GPUs, sections of rows.

Invariants:
- rich is imported only where something is drawn, because `job.format=json` does without it.
"""

from itertools import groupby
from typing import TYPE_CHECKING, Any

from swe_rl.config.schema import Config
from swe_rl.plan.updates import describe_updates

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.panel import Panel
    from rich.text import Text

IDLE = "idle"
NOT_KNOWN = "not known"  # in the place of a number
_COLORS = {"engine": "cyan", "trainer": "magenta", IDLE: "dim"}


def make_headline(config: Config, made: dict[str, Any]) -> "Text":
    from rich.text import Text

    parts = (config.model.name, *(f"{group}={getattr(config, group).name}" for group in ("layout", "router", "env")))
    return Text.assemble((config.name, "bold"), "  ", "  ".join(parts), ("  " + made["config_hash"], "dim"))


def describe_in_short(made: dict[str, Any]) -> str:
    """Returns `24 steps of 64 trajectories, 4 s each: 100 s in all; 8 GPUs, 6.2 GPU-hours; 0.05 GB of checkpoints`."""
    batch, time, disk, gpus = (made.get(name, {}) for name in ("batch", "time", "disk", "gpus"))
    parts = []
    if "trajectories_per_step" in batch and "step" in time:
        note = " without training" if time.get("training_s_per_step") == NOT_KNOWN else ""
        steps = f"{batch['steps']} steps of {batch['trajectories_per_step']} trajectories"
        parts.append(f"{steps}, about {time['step']} each{note}: {time['run']} in all")
    if "updates" in batch:
        length = f": {time['run']} in all" if "run" in time else ""
        parts.append(f"{describe_updates(batch)}{length}")
    if "gpu_hours" in time:
        used = sum(roles != IDLE for roles in gpus.values())
        parts.append(f"{used} GPUs, {time['gpu_hours']:g} GPU-hours")
    if "attempts_per_instance" in batch:
        parts.append(f"attempts at each instance: {batch['attempts_per_instance']}; how many instances: {NOT_KNOWN}")
    room = [f"{disk['checkpoints_gb_at_most']:.3g} GB of checkpoints"] if "checkpoints_gb_at_most" in disk else []
    if images := disk.get("images_gb_at_most"):
        room.append("images of unknown size" if images == "unknown" else f"{images:g} GB of images")
    parts += [f"disk: {' and '.join(room)}"] if room else []
    return "; ".join(parts)


def draw_gpus(gpus: dict[str, str], config: Config) -> "RenderableType":
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    if not gpus:
        return Text("no GPU: engine, trainer and sandboxes on this machine's CPU", style="dim")
    if NOT_KNOWN in gpus:
        return Text(f"GPUs: {gpus[NOT_KNOWN]}", style="dim")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    for node, members in groupby(gpus.items(), key=lambda item: item[0].split(" gpu ")[0]):
        cells = [_gpu_cell(name, roles) for name, roles in members]
        table.add_row(Text(node, style="bold"), *cells)
    memory = f"{config.hardware.gpu_kind}, {config.hardware.gpu_memory_gb:g} GB each"
    return Panel(table, title=f"hardware={config.hardware.name}: {memory}", title_align="left", expand=False)


def _gpu_cell(name: str, roles: str) -> "Text":
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
        if isinstance(value, int):
            text = f"{value:,}".replace(",", " ")
        else:
            text = str(value)
        table.add_row(key, Text(text, justify="left"))
    return Panel(table, title=name, title_align="left", expand=False)
