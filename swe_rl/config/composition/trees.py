"""This module has Hydra compose the tree of a configuration. Options that were chosen before are not composed again.

To compose options takes a tenth of a second, to copy the tree of them and to apply values a fiftieth. A sweep, a check
of several jobs and a process that composes often choose the same options again and again.

Invariants:
- A tree is what Hydra composes for the overrides from the files as they are now; a test compares both.
- What is wrong with an override is found by Hydra's own composition, so each error is the one that it raises.
- A tree is not kept if the environment chose a file of it.
- Nobody changes a tree that is kept: each caller gets a copy.
"""

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.config.composition.answered import answered_job
from swe_rl.config.composition.merged import keep_merges
from swe_rl.config.composition.sweeps import offer_sweeps
from swe_rl.config.folders import conf_dir, option_files, sweeps_dir
from swe_rl.config.hydra_internals import add_config_dir, apply_values, note_overrides

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from swe_rl.config.choices import JobName

_KEPT_TREES = 256  # A tree takes 0.7 MB.
_ANSWERED = "job.of"  # This value decides which options a job that answers for another one has.
_SEARCH_PATH = "hydra.searchpath"  # This key names more folders, which `_state_of` does not look into.

# The state of a folder: a row for each file, with its path, inode, size, and the times of its last change and of that
# of its inode. Programs that copy files set the first time, and nobody can set the second.
_State = tuple[tuple[str, int, int, int, int], ...]


def compose_tree(overrides: list[str], config_dir: Path | None, groups: frozenset[str]) -> "DictConfig":
    """Returns what Hydra composes for `overrides`, its own node `hydra` included. `groups` are the names of the groups
    of options. Raises Hydra's and OmegaConf's errors."""
    choices = choices_of(overrides, groups)
    if not any(choice.lstrip("+~").startswith(_SEARCH_PATH) for choice in choices):
        # Whatever is wrong here is wrong below as well, where the error belongs to all of the overrides.
        with suppress(Exception):
            return _apply_to_copy(overrides, choices, config_dir)
    return _compose_by_hydra(overrides, config_dir)


def choices_of(overrides: Sequence[str], groups: frozenset[str]) -> tuple[str, ...]:
    """Returns the overrides that decide which files are composed, or that are Hydra's own; the others are values."""
    return tuple(override for override in overrides if not _is_value(override, groups))


def _is_value(override: str, groups: frozenset[str]) -> bool:
    key = override.partition("=")[0].lstrip("+~")
    return not (key in groups or key == _ANSWERED or "/" in key or "@" in key or key.partition(".")[0] == "hydra")


def _apply_to_copy(overrides: list[str], choices: tuple[str, ...], config_dir: Path | None) -> "DictConfig":
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if config_dir is None:
        searched = None
    else:
        searched = config_dir.resolve()
    folders = [conf_dir(), sweeps_dir()]
    if searched is not None:
        folders.append(searched)
    kept, answered = _kept_tree(choices, searched, tuple(map(_state_of, folders)))
    tree = copy.deepcopy(kept)
    tree.hydra.runtime.cwd = str(Path.cwd())
    for name in tree.hydra.job.env_copy:
        tree.hydra.job.env_set[name] = os.environ[name]
    if len(overrides) > len(choices):
        parsed = OverridesParser.create().parse_overrides(overrides)
        if any(override.is_sweep_override() for override in parsed):
            raise ValueError("an override has several values")
        apply_values([override for override in parsed if override.input_line not in choices], tree)
        note_overrides(parsed, tree)
    if answered_job(tree) != answered:
        raise ValueError("a value decides which options there are")
    return tree


@lru_cache(maxsize=_KEPT_TREES)
def _kept_tree(
    choices: tuple[str, ...], config_dir: Path | None, states: tuple[_State, ...]
) -> "tuple[DictConfig, JobName | None]":
    """Returns a tree, and the job whose options it brings. `states` only tells trees apart: Hydra reads the files
    themselves."""
    with keep_merges((config_dir, states)):
        tree = _compose_by_hydra(list(choices), config_dir)
    return tree, answered_job(tree)


def _state_of(folder: Path) -> _State:
    """Returns a value that is another one after an option below `folder` was added, changed or taken away."""
    rows: list[tuple[str, int, int, int, int]] = []
    for entry in option_files(folder):
        facts = entry.stat()
        rows.append((entry.path, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns))
    return tuple(rows)


def _compose_by_hydra(overrides: list[str], config_dir: Path | None) -> "DictConfig":
    from hydra import compose as hydra_compose

    with ready_hydra(config_dir):
        return hydra_compose("config", overrides=overrides, return_hydra_config=True)


@contextmanager
def ready_hydra(config_dir: Path | None) -> Iterator[None]:
    """Makes Hydra ready to compose, and puts back what was ready before."""
    from hydra.initialize import initialize_config_dir

    from swe_rl.config.explain import ConfigError
    from swe_rl.config.store import register_schema

    register_schema()
    composing = initialize_config_dir(config_dir=str(conf_dir()), job_name="swe_rl", version_base="1.3")
    with composing, offer_sweeps(sweeps_dir()):
        if config_dir is not None:
            if not config_dir.is_dir():
                raise ConfigError(f"--config-dir {config_dir}: there is no such folder.")
            add_config_dir(conf_dir(), config_dir)
        yield
