"""All that swe_rl takes from Hydra's private modules; nothing else imports them.

Invariants:
- A new version of Hydra is looked at here: each function says what it relies on.
- Hydra is imported inside the functions: `--help` is answered without it.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
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
    - OmegaConf reads files by PyYAML's own parser, which takes seven times as long as libyaml; what was read once is
      not parsed again, since OmegaConf makes its own nodes of it.
    - OmegaConf deep-copies what it notes of each node field by field, though few are ever changed in place.
    - After each file that it merges, OmegaConf visits the whole tree by a slow walk.
    - OmegaConf parses the same `${...}` each time it looks at it, and only visits the tree that comes of it.
    - Hydra makes a table of what is chosen for each file, and reads it only where a defaults list has a `${...}`.
    """
    import omegaconf._utils
    import omegaconf.base
    from hydra._internal import defaults_list
    from hydra.core.config_store import ConfigStore

    if "__deepcopy__" not in vars(ConfigStore):
        ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]
        omegaconf.base.parse = lru_cache(maxsize=4096)(omegaconf.base.parse)  # type: ignore[attr-defined]
        omegaconf.base.Metadata.__deepcopy__ = _copied_note  # type: ignore[attr-defined]
        omegaconf.base.Box._re_parent = _quick_walk(omegaconf.base.Box._re_parent)  # type: ignore[method-assign]
        omegaconf._utils.get_yaml_loader = _quick_reading(omegaconf._utils.get_yaml_loader)  # imported where it reads
        defaults_list._create_interpolation_map = _choices_if_read(defaults_list._create_interpolation_map)


def _choices_if_read(make: Any) -> Any:
    @wraps(make)
    def choices(overrides: Any, defaults: Any, self_added: bool) -> Any:
        read = any(entry.is_interpolation() for entry in defaults)
        return make(overrides, defaults, self_added) if read else None

    return choices


def _copied_note(note: Any, memo: dict[int, Any]) -> Any:
    """A deep copy of OmegaConf's `Metadata`: types, keys and truth values are shared."""
    copied = object.__new__(type(note))
    vars(copied).update(vars(note))
    copied.flags = None if note.flags is None else dict(note.flags)
    copied.resolver_cache = deepcopy(note.resolver_cache, memo) if note.resolver_cache else defaultdict(dict)
    return copied


def _quick_walk(slow: Any) -> Any:
    """`Box._re_parent`, which tells each node below whose it is: without imports and checks of types for each node."""
    from omegaconf.base import UnionNode

    @wraps(slow)
    def walk(box: Any) -> None:
        content = vars(box)["_content"]
        if isinstance(box, UnionNode):
            slow(box)
        elif isinstance(content, dict | list):
            for node in content.values() if isinstance(content, dict) else content:
                if node is None:
                    continue
                facts = node.__dict__
                facts["_parent"] = box
                if facts["_flags_cache"] is not None:
                    node._invalidate_flags_cache()
                if "_content" in facts:
                    walk(node)

    return walk


def _quick_reading(make: Any) -> Any:
    loader = _quick_loader(make())
    return wraps(make)(lambda: loader)


def _quick_loader(slow: Any) -> Any:
    """OmegaConf's loader on libyaml. `slow`, its own one, reads again what has an error: it quotes the line."""
    from yaml import YAMLError, load  # type: ignore[import-untyped, unused-ignore]
    from yaml.constructor import SafeConstructor  # type: ignore[import-untyped, unused-ignore]
    from yaml.resolver import Resolver  # type: ignore[import-untyped, unused-ignore]

    try:
        from yaml.cyaml import CParser  # type: ignore[import-untyped, unused-ignore]
    except ImportError:  # PyYAML was built without libyaml
        return slow

    parsed: dict[str, Any] = {}

    class Loader(CParser, slow):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            self.text = stream if isinstance(stream, str) else stream.read()
            self.label = getattr(stream, "name", None)
            CParser.__init__(self, self.text)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)

        def get_single_data(self) -> Any:
            try:
                if self.text not in parsed:
                    parsed[self.text] = super().get_single_data()
                return deepcopy(parsed[self.text])
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
