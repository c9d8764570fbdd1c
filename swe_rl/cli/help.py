"""What `python -m swe_rl --help` prints: jobs, groups with their options, three examples.

Invariants:
- Read from conf/ itself, so that it cannot go stale.
- Standard library only; Hydra is not imported.
- No line is longer than the columns that are asked for, but for a word that is.
"""

import textwrap
from pathlib import Path

from swe_rl.config.choices import JobName
from swe_rl.config.folders import LAUNCHERS, Option, clash, offered, options, own_options

COLUMNS = 110  # where there is no terminal, and at most
_NARROWEST = 60
_TITLE = "swe_rl: post-train software-engineering agents with reinforcement learning."
_USAGE = "usage: python -m swe_rl [GROUP=OPTION ...] [KEY=VALUE ...] [--multirun]"
_PLAIN = "without arguments: the whole loop on this machine, no GPU, no download"
_EXAMPLES = {
    "python -m swe_rl trainer.steps=3 rollout.n=4": "a short run here",
    "python -m swe_rl +experiment=dp4_tr_atw01 job=check": "refuse a bad run before it costs a GPU-hour",
    "python -m swe_rl +experiment=dp4_tr_atw01 job=plan": "GPUs, memory, tokens, disk, time",
    "python -m swe_rl --multirun +sweep=dp4_default_vs_tr hydra/launcher=slurm_h100": "one SLURM job for each arm",
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
    """For a terminal of `columns`. `config_dir` has options of the user's own; raises UserError where it is missing."""
    columns = min(COLUMNS, max(_NARROWEST, columns))
    groups = options()
    summaries = {job.name: job.summary for job in groups.pop("job")}
    jobs = {name.value: summaries[name] for name in JobName if name in summaries}
    parts = [textwrap.fill(_TITLE, columns), "", *_wrapped(_USAGE, columns, "", " " * 7)]
    parts += [*_wrapped(_PLAIN, columns, " " * 7), "", "Jobs (job=NAME)", *_table(jobs, columns)]
    parts += ["", "Groups (the first is the default; + where there is none)"]
    parts += _table(dict(_group(name, members) for name, members in groups.items()), columns)
    parts += [*_installed(columns), *(_own(config_dir, columns) if config_dir else []), ""]
    parts += ["Examples", *_table(_EXAMPLES, columns), "", "Flags", *_table(_FLAGS, columns), ""]
    return "\n".join([*parts, *(textwrap.fill(line, columns) for line in _LAST)])


def _own(folder: Path, columns: int) -> list[str]:
    user_options = [option for members in own_options(folder).values() for option in members]
    rows = {f"{option.group}={option.name}": f"{option.summary} {clash(option)}" for option in user_options}
    return ["", f"Your own, in {folder}", *(_table(rows, columns) or ["  none"])]


def _installed(columns: int) -> list[str]:
    """Nothing where no package offers any."""
    rows = {
        f"{kind}={row.name}": f"{row.target}, {row.package}"
        for kind, by_name in offered().items()
        for row in by_name.values()
    }
    return ["", "Of installed packages", *_table(dict(sorted(rows.items())), columns)] if rows else []


def _table(rows: dict[str, str], columns: int) -> list[str]:
    """A name and what is said of it; below the name where it leaves too little room beside it."""
    wide = max(map(len, rows), default=0) + 4
    if columns - wide < _NARROWEST // 2:
        return [line for name, text in rows.items() for line in (f"  {name}", *_wrapped(text, columns, " " * 6))]
    return [
        line
        for name, text in rows.items()
        for line in _wrapped(text, columns, f"  {name}".ljust(wide), " " * wide) or [f"  {name}"]
    ]


def _wrapped(text: str, columns: int, first: str, others: str | None = None) -> list[str]:
    indent = first if others is None else others
    return textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _group(name: str, members: list[Option]) -> tuple[str, str]:
    default = default_choices().get(name)
    names = sorted((member.name for member in members), key=lambda option: (option != default, option))
    label = name if default or name == LAUNCHERS else f"+{name}"
    if name == LAUNCHERS:
        names = [*names, "submitit_slurm", "submitit_local"]
    return label, ", ".join(names)


def default_choices() -> dict[str, str]:
    """Group to default option, as conf/config.yaml lists them."""
    from swe_rl.config.folders import conf_dir

    choices: dict[str, str] = {}
    for line in (conf_dir() / "config.yaml").read_text(encoding="utf-8").splitlines():
        entry = line.partition("#")[0].strip()
        if entry.startswith("- ") and ": " in entry and "override" not in entry:
            group, _, option = entry[2:].partition(": ")
            choices[group.strip()] = option.strip()
    return choices
