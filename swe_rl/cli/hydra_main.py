"""This module calls `hydra.main` as this program wants it: without secrets in its arguments, and with its errors left
to us.

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
from swe_rl.config.composition.sweeps import offer_sweeps
from swe_rl.config.explain import ConfigError, explain_errors
from swe_rl.config.folders import conf_dir, sweeps_dir
from swe_rl.config.hydra_internals import arguments_parser
from swe_rl.config.keys import is_legal, nearest_keys
from swe_rl.config.spelling.foreign_keys import describe_unit, our_key
from swe_rl.config.store import register_schema
from swe_rl.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run_jobs(arguments: Sequence[str], overrides: list[str], config_dir: Path | None, conf: Path | None = None) -> int:
    """Runs all jobs through Hydra. Returns the worst exit status. Raises UserError for a folder that cannot be made."""
    here = os.getpid()
    statuses = [0]

    def task(tree: "DictConfig") -> float | None:
        """Runs a job for Hydra, here or on another machine, where only its figure and an exception come back."""
        ended = run_in_folder(tree)
        if os.getpid() == here:
            statuses.append(ended.status)
        elif ended.status:
            said = f"a job of the sweep ended with exit status {ended.status}; its folder's run.log has the reason"
            raise JobFailed(said)
        return ended.objective

    try:
        through_hydra(task, arguments, overrides, config_dir, conf=conf)
    except OSError as error:
        # The error is Hydra's own, as a job reports its errors itself.
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
    """Calls `hydra.main` with the secrets taken out of its arguments and its errors left to us."""
    import hydra

    register_schema()
    given = set(parse_arguments(arguments).overrides)
    argv = [sys.argv[0], *(text for text in arguments if text not in given), *overrides]
    if conf is not None and config_dir is not None:
        argv[1:1] = ["--config-dir", str(config_dir)]
    if checked is None:
        checked = overrides
    # Frozen sweeps are beside the frozen conf/.
    sweeps = offer_sweeps(conf.parent / sweeps_dir().name if conf else sweeps_dir())
    with _set_argv(argv), _set_variable("HYDRA_FULL_ERROR", "1"), sweeps, explain_errors(checked, config_dir):
        hydra.main(config_path=str(conf or conf_dir()), config_name="config", version_base="1.3")(task)()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        flags = [word.partition("=") for word in message.split() if word.startswith("--")]
        known = {flag: key for flag, _, _ in flags if (key := _key_of(flag))}
        meant = [f"{known[flag]}={value or 'VALUE'}" for flag, _, value in flags if flag in known]
        units = "".join(describe_unit(key) for key in known.values())
        hint = ""
        if meant:
            hint = f" Did you mean {' '.join(meant)}?{units}"
        raise ConfigError(f"{message[0].upper()}{message[1:]}.{hint} `python -m swe_rl --help` lists what there is.")


def _key_of(flag: str) -> str | None:
    """Returns the key that somebody means who writes a flag, as other programs have them, or None."""
    key = flag.lstrip("-").replace("-", "_")
    if is_legal(key):
        return key
    return our_key(flag) or next(iter(nearest_keys(key, 1)), None)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns flags and overrides. Raises ConfigError."""
    parser = arguments_parser()
    parser.__class__ = _Parser
    return parser.parse_intermixed_args(list(arguments))


@contextmanager
def _set_argv(argv: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = argv
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _set_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
