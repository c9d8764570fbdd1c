"""This module gives Hydra the files of sweeps/ as the options of the group `sweep`. Hydra does not look into that
folder itself: its name is not the group's, and no file there begins with a line for its package.

Invariants:
- A file is read as Hydra reads those of conf/, and as it is now.
- A file with an error is refused where it is chosen. It spoils no other composition.
- The options are in Hydra's store with their values: a launcher hands the store to processes that read no file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any

from swe_rl.config.folders import sweeps_dir
from swe_rl.config.yaml_text import YamlError

# The provider of these options in Hydra's store, which has others too.
SWEEPS = "sweeps"
_GROUP = "sweep"
_FOLDER: ContextVar[Path | None] = ContextVar("sweeps", default=None)
# Has the errors of files by their names.
_ERRORS: dict[str, Exception] = {}


def sweep_file(name: str) -> Path:
    """Returns the file that an option of sweeps/ is read from."""
    return (_FOLDER.get() or sweeps_dir()) / name


@contextmanager
def offer_sweeps(folder: Path) -> Iterator[None]:
    """Makes the files of `folder` options as they are now, and puts back the options that there were before."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    before = store.repo.get(_GROUP, {})
    errors_before = dict(_ERRORS)
    token = _FOLDER.set(folder)
    store.repo[_GROUP] = {}
    _ERRORS.clear()
    try:
        for path in sorted(folder.glob("*.yaml")):
            store.store(group=_GROUP, name=path.stem, node=_read(path), package="_global_", provider=SWEEPS)
        yield
    finally:
        _FOLDER.reset(token)
        store.repo[_GROUP] = before
        _ERRORS.clear()
        _ERRORS.update(errors_before)


def _read(path: Path) -> Any:
    from omegaconf import OmegaConf

    try:
        with path.open(encoding="utf-8") as stream:
            return OmegaConf.load(stream)
    except YamlError as error:
        _ERRORS[path.name] = error
    except (OSError, UnicodeDecodeError) as error:
        _ERRORS[path.name] = ValueError(f"{path}: {error}")
    return {}


def refuse_broken_sweeps() -> None:
    """Has Hydra's store raise the error of a file where its option is chosen."""
    from hydra.core.config_store import ConfigStore

    load = ConfigStore.load

    @wraps(load)
    def load_or_raise(store: Any, config_path: str) -> Any:
        option = load(store, config_path)
        if option.provider == SWEEPS and option.name in _ERRORS:
            raise _ERRORS[option.name]
        return option

    ConfigStore.load = load_or_raise  # type: ignore[assignment, method-assign]
