"""All that swe_rl takes from Hydra's private modules; nothing else imports them.

Invariants:
- A new version of Hydra is looked at here: each function says what it relies on.
- Hydra is imported inside the functions: `--help` is answered without it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

BASIC_SWEEPER = ".BasicSweeper"  # how the target of the sweeper ends that lists its jobs before the first starts


def arguments_parser() -> argparse.ArgumentParser:
    """Hydra's own flags and the overrides, as `hydra.main` reads them."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser()


def apply_values(values: "Sequence[Override]", tree: "DictConfig") -> None:
    """Sets values in a tree that is composed already, as composing with them would have."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    ConfigLoaderImpl._apply_overrides_to_config(list(values), tree)


def combinations(overrides: "Sequence[Override]") -> list[list[str]]:
    """The jobs of the basic sweeper, in its order."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    return [list(job) for job in BasicSweeper.split_arguments(list(overrides), None)[0]]


def search(conf: Path, own: Path) -> None:
    """What `--config-dir` does: the folder `own` comes before the schema, after `conf`."""
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    path = create_config_search_path(str(conf))
    path.prepend("command-line", f"file://{own.resolve()}", SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2(task_name="swe_rl", config_search_path=path)


def decides_as_it_goes(sweeper: Any) -> bool:
    """Whether the settings are those of a sweeper that chooses its next jobs by what came of the last ones."""
    return not str(sweeper.get("_target_")).endswith(BASIC_SWEEPER)
