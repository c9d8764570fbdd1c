"""This module prints `python -m swe_rl --help`: jobs, groups with their options, examples.

Invariants:
- Jobs, groups and options are read from conf/ itself, so that they cannot go stale.
- Standard library only; Hydra is not imported.
- No line is longer than the columns that are asked for, unless a word is.
"""

import textwrap
from pathlib import Path

from swe_rl.config.choices import JobName
from swe_rl.config.folders import LAUNCHERS, Option, describe_clash, find_offered, list_options, own_options
from swe_rl.files.lines import lines_of
from swe_rl.host.terminal import format_table, wrap_text

# The text is so wide at most, and without a terminal.
COLUMNS = 110
# Narrower lines could not be read, so a narrower terminal wraps them itself.
_NARROWEST = 60
_TITLE = "swe_rl: post-train software-engineering agents with reinforcement learning."
_USAGE = "usage: python -m swe_rl [GROUP=OPTION ...] [KEY=VALUE ...] [--multirun]"
_PLAIN = "without arguments: the whole loop on this machine, no GPU, no download"
_EXAMPLES = {
    "python -m swe_rl trainer.steps=3 rollout.n=4": "a short run here",
    "python -m swe_rl +experiment=dp4_tr_atw01 job=check": "refuse a bad run before it costs a GPU-hour",
    "python -m swe_rl +experiment=dp4_tr_atw01 job=plan": "GPUs, memory, tokens, disk, time",
    "python -m swe_rl --multirun +sweep=dp4_default_vs_tr hydra/launcher=slurm_h100": "one SLURM job for each variant",
}
_FLAGS = {
    "--multirun, -m": "run every combination of comma-separated values",
    "--cfg job": "print the composed configuration (--resolve: with references resolved)",
    "--info defaults": "print which files make it up",
    "--config-dir, -cd": "a folder with options of your own, laid out like conf/",
    "-sc install=bash": 'tab completion: eval "$(swe_rl -sc install=bash)"',
    "--hydra-help": "Hydra's own flags",
}
_LAST = [
    "Keys: `job=describe` lists them, `job=describe job.topic=rollout.n` explains one.",
    "Exit status: 0 done, 1 the run failed, 2 the configuration is wrong (nothing was started), 130 interrupted.",
]


def help_text(config_dir: Path | None = None, columns: int = COLUMNS) -> str:
    """Returns the help for a terminal of `columns`. `config_dir` has options of the user's own; raises UserError if it
    is missing."""
    columns = min(COLUMNS, max(_NARROWEST, columns))
    groups = list_options()
    summaries = {job.name: job.summary for job in groups.pop("job")}
    jobs = {name.value: summaries[name] for name in JobName if name in summaries}
    parts = [textwrap.fill(_TITLE, columns), "", *wrap_text(_USAGE, columns, "", " " * 7)]
    parts += [*wrap_text(_PLAIN, columns, " " * 7), "", "Jobs (job=NAME)", *format_table(jobs, columns)]
    parts += ["", "Groups (the first is the default; + where there is none)"]
    parts += format_table(dict(_describe_group(name, members) for name, members in groups.items()), columns)
    parts += [*_list_installed(columns), *(_list_own(config_dir, columns) if config_dir else []), ""]
    parts += ["Examples", *format_table(_EXAMPLES, columns), "", "Flags", *format_table(_FLAGS, columns), ""]
    return "\n".join([*parts, *(textwrap.fill(line, columns) for line in _LAST)])


def _list_own(folder: Path, columns: int) -> list[str]:
    user_options = [option for members in own_options(folder).values() for option in members]
    rows = {f"{option.group}={option.name}": f"{option.summary} {describe_clash(option)}" for option in user_options}
    return ["", f"Your own, in {folder}", *(format_table(rows, columns) or ["  none"])]


def _list_installed(columns: int) -> list[str]:
    """Lists the options of installed packages, or nothing if no package offers any."""
    rows = {
        f"{kind}={row.name}": f"{row.target}, {row.package}"
        for kind, by_name in find_offered().items()
        for row in by_name.values()
    }
    if rows:
        return ["", "Of installed packages", *format_table(dict(sorted(rows.items())), columns)]
    return []


def _describe_group(name: str, members: list[Option]) -> tuple[str, str]:
    default = default_choices().get(name)
    names = sorted((member.name for member in members), key=lambda option: (option != default, option))
    label = name if default or name == LAUNCHERS else f"+{name}"
    if name == LAUNCHERS:
        names = [*names, "submitit_slurm", "submitit_local"]
    return label, ", ".join(names)


def default_choices() -> dict[str, str]:
    """Maps each group to its default option, as conf/config.yaml lists them."""
    from swe_rl.config.folders import conf_dir

    choices: dict[str, str] = {}
    for line in lines_of((conf_dir() / "config.yaml").read_text(encoding="utf-8"), ends=False):
        entry = line.partition("#")[0].strip()
        if entry.startswith("- ") and ": " in entry and "override" not in entry:
            group, _, option = entry[2:].partition(": ")
            choices[group.strip()] = option.strip()
    return choices
