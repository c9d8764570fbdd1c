"""This module has all that swe_rl takes from Hydra's private modules; nothing else imports them.

Invariants:
- A new version of Hydra is looked at here: each function says what it relies on.
- Hydra is imported inside the functions: `--help` is answered without it.
"""

import argparse
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy, deepcopy
from dataclasses import is_dataclass
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_rl.config.composition.sweeps import SWEEPS, sweep_file
from swe_rl.config.keys import is_text, item_type, type_below, type_of

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

# The target of the sweeper that lists its jobs before the first starts ends so.
BASIC_SWEEPER = ".BasicSweeper"
# Tells references to what no file holds, such as `${oc.env:NAME}`, from those to a choice, such as `${router}`.
_RESOLVER = re.compile(r"\$\{[^{}:]+:")


def speed_up_hydra() -> None:
    """Spares Hydra and OmegaConf work that cannot change a result.

    - Hydra deep-copies its store with each search path, and only reads the copy (its `load` copies what it hands out).
    - Hydra makes a table of what is chosen for each file, and reads it only where a defaults list has a `${...}`.
    - Hydra asks for each file whether a version that is asked for is at least 1.2, and parses that number each time.
    - What OmegaConf is spared, its own module says.
    """
    from hydra import version
    from hydra._internal import defaults_list
    from hydra.core.config_store import ConfigStore

    from swe_rl.config.composition.omegaconf_internals import quicken_omegaconf

    if "__deepcopy__" not in vars(ConfigStore):
        ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]
        version._get_version = lru_cache(version._get_version)
        defaults_list._create_interpolation_map = _choices_if_read(defaults_list._create_interpolation_map)
        quicken_omegaconf()


def _choices_if_read(make: Any) -> Any:
    from swe_rl.config.composition.merged import kept_merges

    @wraps(make)
    def choices(overrides: Any, defaults: Any, self_added: bool) -> Any:
        references = [entry.get_config_path() for entry in defaults if entry.is_interpolation()]
        if not references:
            return None
        if kept_merges() is not None and any(map(_RESOLVER.search, references)):
            raise ValueError(f"{references} may choose other files the next time, so this cannot be kept")
        return make(overrides, defaults, self_added)

    return choices


def arguments_parser() -> argparse.ArgumentParser:
    """Returns the parser of Hydra's own flags and the overrides, which `hydra.main` uses."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser()


def apply_values(values: "Sequence[Override]", tree: "DictConfig") -> None:
    """Sets values in a tree that is composed already, as composing with them would have."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    ConfigLoaderImpl._apply_overrides_to_config(list(values), tree)


def note_overrides(overrides: "Sequence[Override]", tree: "DictConfig") -> None:
    """Has Hydra's own node name `overrides`, as it does for a composition: a sweep's folders may be called by them."""
    from hydra._internal.config_loader_impl import get_overrides_dirname

    task = [override for override in overrides if not override.is_hydra_override()]
    tree.hydra.overrides.task = [override.input_line for override in task]
    form = tree.hydra.job.config.override_dirname
    tree.hydra.job.override_dirname = get_overrides_dirname(task, form.exclude_keys, form.item_sep, form.kv_sep)


def sweep_jobs(overrides: "Sequence[Override]") -> list[list[str]]:
    """Returns the jobs of the basic sweeper, in its order."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    return [list(job) for job in BasicSweeper.split_arguments(list(overrides), None)[0]]


def sweep_as_single_runs_do() -> None:
    """Makes Hydra's basic sweeper merge tables of one key as a single run does. By itself it keeps the last override of
    each key."""
    from hydra.core.plugins import Plugins

    # Hydra looks for plugins once, and imports the sweepers anew as it does. So this comes first.
    Plugins.instance()
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    BasicSweeper.split_arguments = staticmethod(_split_arguments)  # type: ignore[method-assign]


def _split_arguments(overrides: "Sequence[Override]", max_batch_size: int | None) -> list[list[list[str]]]:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.errors import HydraException

    choices: dict[Any, list[str]] = {}
    for number, override in enumerate(overrides):
        key = override.get_key_element()
        if not override.is_sweep_override():
            values = [override.get_value_element_as_str()]
        elif override.is_discrete_sweep():
            values = list(override.sweep_string_iterator())
        else:
            raise HydraException(f"hydra/sweeper=basic cannot list the values of {override.input_line}")
        if not values:
            raise HydraException(f"{override.input_line} stands for no value, so there is no job{_names_to(override)}")
        choices[(key, number) if sets_tables(override) else key] = [f"{key}={value}" for value in values]
    jobs = [list(job) for job in itertools.product(*choices.values())]
    if jobs:
        return list(BasicSweeper.split_overrides_to_chunks(jobs, max_batch_size))
    return []


def _names_to(override: "Override") -> str:
    """Returns how a message goes on that says what an override could have chosen from, or the end of its sentence."""
    from hydra.core.object_type import ObjectType

    loader = override.config_loader
    if loader is not None:
        names = loader.get_group_options(override.key_or_group, ObjectType.CONFIG)
    else:
        names = []
    if names:
        return f": {override.key_or_group} has {', '.join(names[:_NAMED])}{' and more' if len(names) > _NAMED else ''}."
    return ". Write a range, a pattern or a list with at least one value."


def sets_tables(override: "Override") -> bool:
    """Tells whether each value of an override is a table. Two of these are merged; of others the last one counts."""
    value = override.value()
    values = getattr(value, "list", [value])
    return all(isinstance(item, dict) for item in values)


def add_config_dir(conf: Path, config_dir: Path) -> None:
    """Does what `--config-dir` does: the folder `config_dir` comes before the schema, after `conf`."""
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    path = create_config_search_path(str(conf))
    path.prepend("command-line", f"file://{config_dir.resolve()}", SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2(task_name="swe_rl", config_search_path=path)


def decides_as_it_goes(sweeper: Any) -> bool:
    """Tells whether the settings belong to a sweeper that chooses its next jobs by what came of the last ones."""
    return not str(sweeper.get("_target_")).endswith(BASIC_SWEEPER)


# A message names this many options of a group.
_NAMED = 5
# An override that uses one of these functions means its numbers as numbers.
_NUMERIC_FUNCTIONS = frozenset({"int", "float", "bool", "range", "interval"})


def keep_typed_text() -> None:
    """Makes Hydra keep the characters of a value whose key is text: `name=1_0` is not the number ten.

    Hydra reads each value by the grammar alone, whatever its key is. Its visitor of the parsed override is replaced by
    one that knows the key's type.
    """
    from hydra.core.override_parser import overrides_parser

    overrides_parser.HydraOverrideVisitor = _text_keeper(overrides_parser.HydraOverrideVisitor)  # type: ignore[attr-defined]


class _Typed(str):
    """Text on its way through a function of Hydra's, which takes off the quotes of its arguments."""

    __slots__ = ()


def _text_keeper(visitor: Any) -> Any:
    from hydra.core.override_parser.types import Quote, QuotedString

    class TextKeeper(visitor):  # type: ignore[misc]
        hint: Any = None  # This is the type of the value that is being read. None means that the grammar decides.
        in_function = False

        def visitKey(self, ctx: Any) -> Any:  # noqa: N802 (as the next ones: Hydra's names)
            key = super().visitKey(ctx)
            self.hint = type_of_override(key.key_or_group)
            return key

        def visitPrimitive(self, ctx: Any) -> Any:  # noqa: N802
            value = super().visitPrimitive(ctx)
            chooses = is_dataclass(self.hint)  # An option's name may look like a number: `env=2026`.
            if not (chooses or is_text(self.hint)):
                return value
            if self.in_function and isinstance(value, QuotedString):
                return _Typed(value.text)
            raw = ctx.getText().strip()
            if not isinstance(value, int | float) or (str(value) == raw and not chooses):
                return value
            return _Typed(raw) if self.in_function else QuotedString(raw, Quote.single)

        def visitListContainer(self, ctx: Any) -> Any:  # noqa: N802
            with self._reading(item_type(self.hint)):
                return super().visitListContainer(ctx)

        def visitDictKeyValuePair(self, ctx: Any) -> Any:  # noqa: N802
            key = self.visitDictKey(ctx.dictKey())
            if type_below(self.hint, str(key)) not in (None, Any):
                key = ctx.dictKey().getText().strip()
            with self._reading(type_below(self.hint, str(key))):
                return key, self.visitElement(ctx.element())

        def visitFunction(self, ctx: Any) -> Any:  # noqa: N802
            inner = self.in_function
            hint = None if ctx.getChild(0).getText() in _NUMERIC_FUNCTIONS else self.hint
            with self._reading(hint, in_function=True):
                made = super().visitFunction(ctx)
            return made if inner else _quote_made(made)

        def visitElement(self, ctx: Any) -> Any:  # noqa: N802
            before = ctx.parentCtx.children[: ctx.parentCtx.children.index(ctx)]
            is_flag = bool(before) and before[-1].getText() == "reverse="  # sort(...) wants true or false.
            with self._reading(None if is_flag else self.hint, in_function=self.in_function):
                return super().visitElement(ctx)

        @contextmanager
        def _reading(self, hint: Any, *, in_function: bool | None = None) -> Iterator[None]:
            before = self.hint, self.in_function
            self.hint = hint
            self.in_function = self.in_function if in_function is None else in_function
            try:
                yield
            finally:
                self.hint, self.in_function = before

    return TextKeeper


def _quote_made(made: Any) -> Any:
    """Puts quotes around the text that a function of Hydra's made: sweepers write it down, and it is read again."""
    from hydra.core.override_parser.types import ChoiceSweep, Quote, QuotedString

    if isinstance(made, ChoiceSweep):
        made.list = [_quote_made(item) for item in made.list]
    elif isinstance(made, list):
        return [_quote_made(item) for item in made]
    elif isinstance(made, dict):
        return {name: _quote_made(item) for name, item in made.items()}
    if isinstance(made, _Typed):
        return QuotedString(str(made), Quote.single)
    return made


@lru_cache(maxsize=4096)
def type_of_override(key: str) -> Any:
    """Returns the type of an override's value, also for Hydra's own keys; None if nothing is known of it."""
    if "/" in key or key in ("experiment", "sweep"):
        return str  # The value is the name of an option.
    first, *names = key.split(".")
    if first != "hydra":
        return type_of(key)
    if names[:2] == ["sweeper", "params"]:
        return str  # The values are overrides, which are read when the sweep begins.
    from hydra.conf import HydraConf

    hint: Any = HydraConf
    for name in names:
        hint = type_below(hint, name)
    return hint


def keep_merged_groups() -> None:
    """Has Hydra merge the options of a group once for all compositions that are made inside of `keep_merges`."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from omegaconf import flag_override

    from swe_rl.config.composition.merged import kept_merges

    by_hydra = ConfigLoaderImpl._compose_config_from_defaults_list

    @wraps(by_hydra)
    def compose_from_defaults(loader: Any, defaults: Any, repo: Any) -> Any:
        kept = kept_merges()
        if kept is None:
            return by_hydra(loader, defaults, repo)
        # A merge changes nodes of the repository, which by_hydra has to find as they were read.
        own_repo = copy(repo)
        own_repo.cache = deepcopy(repo.cache)

        def merge(tree: Any, entries: Sequence[Any]) -> None:
            with flag_override(tree, "no_deepcopy_set_nodes", True):
                for entry in entries:
                    tree.merge_with(loader._load_single_config(default=entry, repo=own_repo).config)

        with suppress(Exception):  # Hydra's own merge raises the error again, with its own words.
            tree = kept.compose(defaults, merge)
            _strip_defaults(tree)
            return tree
        return by_hydra(loader, defaults, repo)

    ConfigLoaderImpl._compose_config_from_defaults_list = compose_from_defaults  # type: ignore[assignment, method-assign]


def read_defaults_once() -> None:
    """Has Hydra read each file once for all lists of defaults that are made inside of `keep_merges`. It only reads what
    it is given for these lists; for its merges it loads the files itself, as it changes them then."""
    from hydra._internal import config_loader_impl

    from swe_rl.config.composition.answered import with_answered_options
    from swe_rl.config.composition.merged import kept_merges

    by_hydra = config_loader_impl.create_defaults_list  # type: ignore[attr-defined]

    @wraps(by_hydra)
    def create_list(repo: Any, *arguments: Any, **named: Any) -> Any:
        kept = kept_merges()
        if kept is not None:
            repo = copy(repo)
            repo.cache = kept.read
        return by_hydra(with_answered_options(repo), *arguments, **named)

    config_loader_impl.create_defaults_list = create_list  # type: ignore[attr-defined]


def answer_for_other_jobs() -> None:
    """Has Hydra choose what the job brings that `check` or `plan` answers for, whoever asks it to compose."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    from swe_rl.config.composition.answered import compose_as_answered

    load = ConfigLoaderImpl.load_configuration

    @wraps(load)
    def load_as_answered(loader: Any, *arguments: Any, **named: Any) -> Any:
        return compose_as_answered(lambda: load(loader, *arguments, **named))

    ConfigLoaderImpl.load_configuration = load_as_answered  # type: ignore[assignment, method-assign]


def _strip_defaults(node: Any) -> None:
    """Removes the lists of defaults, as Hydra does after its merges. A node inherits the flag, but only from a node
    above it, which lost it before."""
    from omegaconf import DictConfig, flag_override

    facts = vars(node)
    if not isinstance(node, DictConfig) or not isinstance(facts["_content"], dict):
        return
    if (facts["_metadata"].flags or {}).get("HYDRA_REMOVE_TOP_LEVEL_DEFAULTS"):
        with flag_override(node, ["readonly", "struct"], False):
            node._set_flag("HYDRA_REMOVE_TOP_LEVEL_DEFAULTS", None)
            node.pop("defaults", None)
    for below in facts["_content"].values():
        _strip_defaults(below)


def look_into_files(look: Callable[[dict[str, Any], Path, tuple[str, ...]], None]) -> None:
    """Has `look` called with what Hydra reads from a file for a composition: values, file, names of the table for it.
    If `look` raises, the composition ends."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from omegaconf import OmegaConf

    load = ConfigLoaderImpl._load_single_config

    @wraps(load)
    def load_and_look(loader: Any, default: Any, repo: Any) -> Any:
        loaded = load(loader, default, repo)
        scheme, _, folder = str(loaded.path).partition("://")
        file = Path(folder, f"{default.config_path}.yaml")
        if loaded.provider == SWEEPS:
            file = sweep_file(file.name)
        if scheme == "file" or loaded.provider == SWEEPS:
            package = tuple(name for name in str(default.package or "").split(".") if name)
            values: Any = OmegaConf.to_container(loaded.config, resolve=False)
            for name in package:
                values = values[name]
            look(values, file, package)
        return loaded

    ConfigLoaderImpl._load_single_config = load_and_look  # type: ignore[assignment, method-assign]
