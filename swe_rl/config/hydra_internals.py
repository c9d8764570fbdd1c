"""All that swe_rl takes from Hydra's private modules; nothing else imports them.

Invariants:
- A new version of Hydra is looked at here: each function says what it relies on.
- Hydra is imported inside the functions: `--help` is answered without it.
"""

import argparse
from collections.abc import Sequence
from functools import lru_cache, wraps
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

BASIC_SWEEPER = ".BasicSweeper"  # how the target of the sweeper ends that lists its jobs before the first starts


def quicken() -> None:
    """Spares Hydra and OmegaConf work that cannot change a result.

    - Hydra deep-copies its store with each search path, and only reads the copy (its `load` copies what it hands out).
    - OmegaConf reads files by PyYAML's own parser, which takes seven times as long as libyaml.
    - OmegaConf parses the same `${...}` each time it looks at it, and only visits the tree that comes of it.
    - Hydra makes a table of what is chosen for each file, and reads it only where a defaults list has a `${...}`.
    """
    import omegaconf.base
    import omegaconf.omegaconf
    from hydra._internal import defaults_list
    from hydra.core.config_store import ConfigStore

    if "__deepcopy__" not in vars(ConfigStore):
        ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]
        omegaconf.base.parse = lru_cache(maxsize=4096)(omegaconf.base.parse)  # type: ignore[attr-defined]
        omegaconf.omegaconf.get_yaml_loader = lru_cache(_quick_loader)  # type: ignore[attr-defined]
        defaults_list._create_interpolation_map = _choices_if_read(defaults_list._create_interpolation_map)


def _choices_if_read(make: Any) -> Any:
    @wraps(make)
    def choices(overrides: Any, defaults: Any, self_added: bool) -> Any:
        read = any(entry.is_interpolation() for entry in defaults)
        return make(overrides, defaults, self_added) if read else None

    return choices


def _quick_loader() -> Any:
    """OmegaConf's loader on libyaml. Its own one reads what has an error again, since its message quotes the line."""
    from omegaconf._utils import get_yaml_loader
    from yaml import YAMLError, load  # type: ignore[import-untyped, unused-ignore]
    from yaml.constructor import SafeConstructor  # type: ignore[import-untyped, unused-ignore]
    from yaml.resolver import Resolver  # type: ignore[import-untyped, unused-ignore]

    slow: Any = get_yaml_loader()
    try:
        from yaml.cyaml import CParser  # type: ignore[import-untyped, unused-ignore]
    except ImportError:  # PyYAML was built without libyaml
        return slow

    class Loader(CParser, slow):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            self.text = stream if isinstance(stream, str) else stream.read()
            self.label = getattr(stream, "name", None)
            CParser.__init__(self, self.text)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

        def get_single_data(self) -> Any:
            try:
                return super().get_single_data()
            except YAMLError:
                stream = StringIO(self.text)
                stream.name = self.label or "<text>"
                return load(stream, Loader=slow)

    return Loader


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


def search(conf: Path, config_dir: Path) -> None:
    """What `--config-dir` does: the folder `config_dir` comes before the schema, after `conf`."""
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    path = create_config_search_path(str(conf))
    path.prepend("command-line", f"file://{config_dir.resolve()}", SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2(task_name="swe_rl", config_search_path=path)


def decides_as_it_goes(sweeper: Any) -> bool:
    """Whether the settings are those of a sweeper that chooses its next jobs by what came of the last ones."""
    return not str(sweeper.get("_target_")).endswith(BASIC_SWEEPER)
