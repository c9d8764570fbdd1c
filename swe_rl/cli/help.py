"""What `python -m swe_rl --help` prints: jobs, groups with their options, three examples.

Invariants:
- Read from conf/ itself, so that it cannot go stale.
- Standard library only; Hydra is not imported.
"""

import textwrap
from pathlib import Path

from swe_rl.config.choices import JobName
from swe_rl.config.folders import LAUNCHERS, Option, clash, offered, options, own_options

_WIDTH = 110
_USAGE = """\
swe_rl: post-train software-engineering agents with reinforcement learning.

usage: python -m swe_rl [GROUP=OPTION ...] [KEY=VALUE ...] [--multirun]
       without arguments: the whole loop on this machine, no GPU, no download
"""
_EXAMPLES = """\
Examples
  python -m swe_rl trainer.steps=3 rollout.n=4                          a short run here
  python -m swe_rl +experiment=dp4_tr_atw01 job=check                   refuse a bad run before it costs a GPU-hour
  python -m swe_rl +experiment=dp4_tr_atw01 job=plan                    GPUs, memory, tokens, disk, time
  python -m swe_rl --multirun +sweep=dp4_default_vs_tr hydra/launcher=slurm_h100
                                                                        one SLURM job for each arm
"""
_FLAGS = """\
Flags
  --multirun, -m       run every combination of comma-separated values
  --cfg job            print the composed configuration (--resolve: with references resolved)
  --info defaults      print which files make it up
  --config-dir, -cd    a folder with options of your own, laid out like conf/
  -sc install=bash     tab completion: eval "$(swe_rl -sc install=bash)"
  --hydra-help         Hydra's own flags

Keys: `job=describe` lists them, `job=describe job.topic=rollout.n` explains one.
Exit status: 0 done, 1 the run failed, 2 the configuration is wrong (nothing was started), 130 interrupted.
"""


def help_text(config_dir: Path | None = None) -> str:
    """`config_dir`: a folder with options of the user's own. Raises UserError where there is no such folder."""
    user_options = [*_installed(), *(_own(config_dir) if config_dir else [])]
    groups = options()
    jobs = groups.pop("job")
    parts = [_USAGE, "Jobs (job=NAME)", *_jobs(jobs), "", "Groups (the first is the default; + where there is none)"]
    parts += [_group(name, members) for name, members in groups.items()]
    return "\n".join([*parts, *user_options, "", _EXAMPLES, _FLAGS.rstrip()])


def _own(folder: Path) -> list[str]:
    user_options = [option for members in own_options(folder).values() for option in members]
    rows = [(f"{option.group}={option.name}", f"{option.summary} {clash(option)}") for option in user_options]
    return ["", f"Your own, in {folder}", *(_table(rows) or ["  none"])]


def _installed() -> list[str]:
    """Nothing where no package offers any."""
    rows = [
        (f"{kind}={row.name}", f"{row.target}, {row.package}")
        for kind, by_name in offered().items()
        for row in by_name.values()
    ]
    return ["", "Of installed packages", *_table(sorted(rows))] if rows else []


def _table(rows: list[tuple[str, str]]) -> list[str]:
    wide = max((len(choice) for choice, _ in rows), default=0) + 2
    return [f"  {choice:<{wide}}{said}".rstrip() for choice, said in rows]


def _jobs(jobs: list[Option]) -> list[str]:
    by_name = {job.name: job.summary for job in jobs}
    return [f"  {name:<10}{by_name[name]}" for name in JobName if name in by_name]


def _group(name: str, members: list[Option]) -> str:
    default = default_choices().get(name)
    names = sorted((member.name for member in members), key=lambda option: (option != default, option))
    label = name if default or name == LAUNCHERS else f"+{name}"
    if name == LAUNCHERS:
        names = [*names, "submitit_slurm", "submitit_local"]
    return textwrap.fill(", ".join(names), _WIDTH, initial_indent=f"  {label:<16}", subsequent_indent=" " * 18)


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
