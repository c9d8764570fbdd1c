"""`python -m swe_rl`: answers `--help` at once, everything else goes to `swe_rl.cli.launch`.

Invariants:
- Returns the exit status of the contract: 0 done, 1 failed, 2 wrong configuration, 130 interrupted.
- Nothing heavier than the standard library is imported for `--help`.
"""

import atexit
import gc
import sys

from swe_rl.host.ending import bound_ending
from swe_rl.host.terminal import outlive_readers, status_after_output, terminal_width

COLLECTOR = (50_000, 20, 20)  # thresholds: a composition makes many objects and little garbage


def main() -> int:
    gc.set_threshold(*COLLECTOR)
    atexit.register(gc.freeze)  # else Python's end looks through all that libraries made, and takes it apart
    outlive_readers()
    arguments = _spelled_out(sys.argv[1:])
    if "--help" in arguments or "-h" in arguments:
        return _help(arguments)
    if arguments == ["--version"]:
        from swe_rl.version import __version__

        print(__version__)
        return status_after_output(0)
    try:
        from swe_rl.hardware.slurm.requeue import keep_warnings

        keep_warnings()
        from swe_rl.cli.launch import run_command
    except ModuleNotFoundError as error:
        from swe_rl.host.packages import not_installed

        if str(error.name).startswith("swe_rl"):
            raise
        print(f"error: {not_installed(str(error.name).partition('.')[0])}", file=sys.stderr)
        return 2
    with bound_ending():
        return run_command(arguments)


def _spelled_out(arguments: list[str]) -> list[str]:
    """A first word alone: `train` is `job=train`, `help` is `--help`, `help KEY` is `job=describe job.topic=KEY`."""
    from swe_rl.config.choices import JobName

    first, *others = arguments or [""]
    if first == "help":
        topic = others and not others[0].startswith("-")
        return ["job=describe", f"job.topic={others[0]}", *others[1:]] if topic else ["--help", *others]
    return [f"job={first}", *others] if first in set(JobName) else arguments


def _help(arguments: list[str]) -> int:
    """`--config-dir` counts, wherever it stands; Hydra, which would read the others, stays out."""
    from argparse import ArgumentError, ArgumentParser
    from pathlib import Path

    from swe_rl.cli.help import COLUMNS, help_text
    from swe_rl.errors import UserError

    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config-dir", "-cd", type=Path)
    try:
        print(help_text(parser.parse_known_args(arguments)[0].config_dir, terminal_width(sys.stdout, COLUMNS)))
    except (ArgumentError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status_after_output(0)


if __name__ == "__main__":
    sys.exit(main())
