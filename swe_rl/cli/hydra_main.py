"""`hydra.main` as this program wants it: without secrets in its arguments, and with its errors left to us.

Invariants:
- No error of Hydra's reaches the user as a traceback.
- A job of the sweep that fails in a process of its own comes back as an exception, its exit status with it.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from swe_rl.cli.dispatch import JobFailed, run_in_folder
from swe_rl.config.explain import ConfigError, explained
from swe_rl.config.folders import conf_dir
from swe_rl.config.foreign_keys import ours
from swe_rl.config.hydra_internals import arguments_parser
from swe_rl.config.store import register
from swe_rl.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run_jobs(arguments: Sequence[str], overrides: list[str], config_dir: Path | None, conf: Path | None = None) -> int:
    """All jobs through Hydra. Returns the worst exit status. Raises UserError for a folder that cannot be made."""
    here, statuses = os.getpid(), [0]

    def task(tree: "DictConfig") -> float | None:
        """What Hydra calls for each job, here or on another machine, where only this and an exception come back."""
        ended = run_in_folder(tree)
        if os.getpid() == here:
            statuses.append(ended.status)
        elif ended.status:
            said = f"a job of the sweep ended with exit status {ended.status}; its folder's run.log has the reason"
            raise JobFailed(said)
        return ended.objective

    try:
        through_hydra(task, arguments, overrides, config_dir, conf=conf)
    except OSError as error:  # Hydra's own: a job reports its errors itself
        raise UserError(
            f"the folder of the run cannot be made: {error.filename or error} ({error.strerror}). Name one that you "
            "may write to with paths.outputs=FOLDER, or with hydra.run.dir=FOLDER where you have set that"
        ) from error
    return max(statuses)


def no_task(_: "DictConfig") -> None:
    raise AssertionError("inspection starts no job")


def through_hydra(
    task: Callable[[Any], float | None],
    arguments: Sequence[str],
    overrides: list[str],
    config_dir: Path | None,
    checked: list[str] | None = None,
    conf: Path | None = None,
) -> None:
    """`hydra.main` with the secrets taken out of its arguments and its errors left to us."""
    import hydra

    register()
    given = set(parse(arguments).overrides)
    argv = [sys.argv[0], *(text for text in arguments if text not in given), *overrides]
    if conf is not None and config_dir is not None:
        argv[1:1] = ["--config-dir", str(config_dir)]
    checked = overrides if checked is None else checked
    with _argv(argv), _environment("HYDRA_FULL_ERROR", "1"), explained(checked, config_dir):
        hydra.main(config_path=str(conf or conf_dir()), config_name="config", version_base="1.3")(task)()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        flags = [word.partition("=") for word in message.split() if word.startswith("--")]
        meant = [f"{known}={value or 'VALUE'}" for flag, _, value in flags if (known := ours(flag))]
        hint = f" Did you mean {' '.join(meant)}?" if meant else ""
        raise ConfigError(f"{message[0].upper()}{message[1:]}.{hint} `python -m swe_rl --help` lists what there is.")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Flags and overrides. Raises ConfigError."""
    parser = arguments_parser()
    parser.__class__ = _Parser
    return parser.parse_intermixed_args(list(arguments))


@contextmanager
def _argv(argv: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, argv
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
