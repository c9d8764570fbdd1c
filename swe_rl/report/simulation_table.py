"""Prints what `job=simulate` found as tables.

Invariants:
- Each figure of the table is in the JSON as well, under the same name.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Each key of the outcome has what the table calls it, and how it is written.
METRICS = {
    "tokens_per_s": ("response tokens/s", "{:.0f}"),
    "ratio_to_default": ("  to default", "{:.3f}"),
    "sampled_tokens_per_s": ("sampled tokens/s", "{:.0f}"),
    "makespan_s": ("makespan s", "{:.0f}"),
    "group_p50_s": ("group done p50 s", "{:.0f}"),
    "group_p99_s": ("group done p99 s", "{:.0f}"),
    "cached_share": ("prompt cached", "{:.1%}"),
    "prefix_hit_rate": ("prefix hit rate", "{:.1%}"),
    "recomputed_tokens": ("recomputed tokens", "{:.2e}"),
    "engine_idle_share": ("engines idle", "{:.1%}"),
    "hold_p50_s": ("hold p50 s", "{:.1f}"),
    "hold_p99_s": ("hold p99 s", "{:.1f}"),
    "hold_max_s": ("hold max s", "{:.1f}"),
    "pauses": ("pauses", "{:.0f}"),
    "moves": ("moves", "{:.0f}"),
    "preemptions": ("preemptions", "{:.0f}"),
    "forced": ("let go by max_hold_s", "{:.0f}"),
    "forced_share": ("  of all requests", "{:.1%}"),
    "forced_share_of_held": ("  of those held", "{:.1%}"),
}
TRAINING = {
    "tokens_per_h": "tokens/h",
    "step_s": "step s",
    "engine_idle_share": "engines idle",
    "trainer_idle_share": "trainer idle",
    "staleness_mean": "mean staleness",
}


def print_table(made: dict[str, Any]) -> None:
    """Prints all tables of a simulation."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    for section in ("workload", "engines", "step", "gateway"):
        facts = ", ".join(f"{key} {value}" for key, value in made[section].items())
        console.print(f"[bold]{section}[/] {facts}")
    routers = made["routers"]
    table = Table(box=None, pad_edge=False)
    table.add_column("mean ± spread over loads")
    for label in routers:
        table.add_column(label, justify="right")
    for key, (title, written) in METRICS.items():
        table.add_row(title, *_metric_cells(key, written, routers))
    console.print(table)
    if "tiers" in made:
        for size, row in made["tiers"]["sampled_tokens_per_s_by_gb"].items():
            facts = ", ".join(f"{label} {value:.0f}" for label, value in row.items())
            console.print(f"[bold]tier of {size} GB[/] an engine, sampled tokens/s: {facts}")
        console.print(f"[bold]best tier[/] {made['tiers']['best']}")
    if "training" in made:
        _print_training(console, made["training"])


def _print_training(console: "Console", made: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("trained, mean over loads", *TRAINING.values(), "tokens by staleness"):
        table.add_column(title, justify="left" if title.startswith("trained,") else "right")
    for label, row in (*made["ways"].items(), *made["divisions"].items()):
        ages = ", ".join(f"{age}: {share:.0%}" for age, share in row["staleness"].items())
        figures = (f"{row[key]:.0%}" if key.endswith("share") else f"{row[key]:.4g}" for key in TRAINING)
        table.add_row(label, *figures, ages)
    console.print(table)
    console.print(f"[bold]best[/] {made['best']}; with the configured layout the {made['slower_side']} are waited for")


def _metric_cells(key: str, written: str, routers: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    for summary in routers.values():
        mean = summary[key]["mean"]
        spread = summary[key]["spread"]
        yield f"{written.format(mean)} ± {written.format(spread)}" if spread else written.format(mean)
