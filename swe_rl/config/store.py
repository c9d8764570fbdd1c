"""This module gives Hydra the schema, checks what files may hold for it, and freezes the composed tree for the program.

Invariants:
- Hydra sees mutable twins of the frozen dataclasses (a frozen one refuses to be overridden); one base node types the
  whole tree, so that unknown keys and wrong types are refused in every file and on the command line.
- Text of a file whose characters YAML keeps (`account: 12345`) is text as it stands; any other that YAML reads as a
  number or a truth value is refused, with the form in quotes. It is never guessed.
- What leaves here holds no OmegaConf object: lists are tuples, tables are dicts of frozen dataclasses.
"""

import dataclasses
import types
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml  # type: ignore[import-untyped, unused-ignore]

from swe_rl.config.composition.sweeps import refuse_broken_sweeps
from swe_rl.config.folders import extension_names
from swe_rl.config.hydra_internals import (
    answer_for_other_jobs,
    keep_merged_groups,
    keep_typed_text,
    look_into_files,
    read_defaults_once,
    speed_up_hydra,
    sweep_as_single_runs_do,
    type_of_override,
)
from swe_rl.config.keys import fields_of, is_text, item_type, type_below
from swe_rl.config.schema import Config
from swe_rl.config.secrets import mask_value
from swe_rl.config.yaml_text import LOADER
from swe_rl.files.redactor import MASK

T = TypeVar("T")


@cache
def register_schema() -> None:
    """Puts the schema and the resolvers into Hydra's store, once a process."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    from swe_rl.config.environment import read_variable
    from swe_rl.config.known_hardware import value_here
    from swe_rl.config.known_models import resolve_fact

    speed_up_hydra()
    keep_typed_text()
    look_into_files(refuse_changed_text)
    keep_merged_groups()
    read_defaults_once()
    answer_for_other_jobs()
    refuse_broken_sweeps()
    sweep_as_single_runs_do()
    OmegaConf.register_new_resolver("swe_rl.words", split_words, replace=True)
    OmegaConf.register_new_resolver("swe_rl.here", value_here, replace=True)
    OmegaConf.register_new_resolver("swe_rl.model", resolve_fact, replace=True)
    OmegaConf.register_new_resolver("swe_rl.env", read_variable, replace=True)
    OmegaConf.register_new_resolver("swe_rl.if_equal", if_equal, replace=True)
    OmegaConf.register_new_resolver("swe_rl.from_home", from_home, replace=True)
    store = ConfigStore.instance()
    store.store(name="base_config", node=thaw_schema(Config), provider="swe_rl")
    # `agent=mine` names an option of an installed package.
    for kind, names in extension_names().items():
        for name in names:
            store.store(group=kind, name=name, node={"name": name}, provider="entry_points")


def split_words(text: str) -> list[str]:
    """Resolves `${swe_rl.words:...}` in conf/: a list of what stands between commas or spaces, as environments hold
    it."""
    return str(text or "").replace(",", " ").split()


def if_equal(value: Any, known: Any, then: Any, otherwise: Any) -> Any:
    """Resolves `${swe_rl.if_equal:...}` in conf/: what suits the published value, or what suits any other."""
    if value == known:
        return then
    return otherwise


def from_home(path: str) -> str:
    """Resolves `${swe_rl.from_home:...}` in conf/: a path that begins with `~`, as a shell reads it; quotes keep it."""
    # There may be no such user.
    with suppress(RuntimeError):
        if path.startswith("~"):
            return str(Path(path).expanduser())
        return path
    return path


@cache
def thaw_schema(schema: type) -> type:
    """Makes a mutable dataclass with the fields and defaults of `schema`, nested ones included."""
    types_of = fields_of(schema)
    columns = [
        (field.name, _thawed_type(types_of[field.name]), _thawed_field(field)) for field in _schema_fields(schema)
    ]
    # What Hydra does not need is left out: a dataclass without text for `__doc__` works it out from its signature.
    shown = {"__doc__": schema.__doc__}
    return dataclasses.make_dataclass(schema.__name__, columns, namespace=shown, eq=False, repr=False)


def _thawed_type(hint: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return thaw_schema(hint)  # type: ignore[arg-type]
    if get_origin(hint) is dict:
        key, value = get_args(hint)
        return types.GenericAlias(dict, (key, _thawed_type(value)))
    return hint


def _thawed_field(field: dataclasses.Field[Any]) -> Any:
    if isinstance(field.default_factory, type) and dataclasses.is_dataclass(field.default_factory):
        return dataclasses.field(default_factory=thaw_schema(field.default_factory))
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory)
    return dataclasses.field(default=field.default)


def freeze_tree(schema: type[T], tree: dict[str, Any], prefix: str = "") -> T:
    """Makes a `schema` of plain values as OmegaConf resolved them. `tree` has no keys that `schema` lacks.

    Raises ValueError for a reference to something of another kind, which OmegaConf lets through.
    """
    values: dict[str, Any] = {}
    for name, hint, is_single in _field_hints(schema):  # type: ignore[arg-type]
        value = tree[name]
        if is_single and value is not None and not isinstance(value, dict | list):
            values[name] = value
        else:
            values[name] = _freeze_value(hint, value, f"{prefix}{name}")
    return schema(**values)


@cache
def _field_hints(schema: type) -> tuple[tuple[str, Any, bool], ...]:
    """Returns each field's name and type, and whether its value is a single one, or None, and so is kept as it is."""
    rows: list[tuple[str, Any, bool]] = []
    hints: dict[str, Any] = fields_of(schema)
    for field in _schema_fields(schema):
        hint = hints[field.name]
        parts = [hint]
        if get_origin(hint) in (Union, types.UnionType):
            parts = list(get_args(hint))
        rows.append((field.name, hint, all(isinstance(part, type) and not _has_parts(part) for part in parts)))
    return tuple(rows)


def _has_parts(hint: Any) -> bool:
    return hint is Any or dataclasses.is_dataclass(hint) or get_origin(hint) is not None


def _freeze_value(hint: Any, value: Any, key: str) -> Any:
    if hint is Any:
        return _plain_value(value)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _freeze_value(get_args(hint)[0], value, key)
    wanted: type | None = None
    if dataclasses.is_dataclass(hint) or origin is dict:
        wanted = dict
    elif origin is tuple:
        wanted = list
    if value is None or (type(value) if isinstance(value, dict | list) else None) is not wanted:
        raise ValueError(other_kind(key, value))
    if dataclasses.is_dataclass(hint):
        return freeze_tree(hint, value, f"{key}.")  # type: ignore[arg-type]
    if origin is tuple:
        return tuple(_freeze_value(get_args(hint)[0], item, key) for item in value)
    if origin is dict:
        return {name: _freeze_value(get_args(hint)[1], item, f"{key}.{name}") for name, item in value.items()}
    return value


def _plain_value(value: Any) -> Any:
    """Returns what a `params` table holds: values of any kind, lists as tuples."""
    if isinstance(value, dict):
        return {str(name): _plain_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return tuple(map(_plain_value, value))
    return value


def other_kind(key: str, value: Any) -> str:
    kinds = {dict: "a table of keys", list: "a list", type(None): "null"}
    kind = kinds.get(type(value), repr(str(value)[:60]))
    return f"{key} refers to a value of another kind ({kind}): write the value itself."


def _schema_fields(schema: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(schema)


# This table has overrides by their keys.
_SWEPT = ("hydra", "sweeper", "params")


def refuse_changed_text(content: dict[str, Any], file: Path, package: tuple[str, ...]) -> None:
    """Raises ConfigError for the first value of a key of text whose characters reading it changed.

    `content` is what was read from `file`, as plain values; `package` has the names of the table that it fills.
    """
    from swe_rl.config.explain import ConfigError

    for names, value in _iter_scalars(content):
        if isinstance(value, str) or value is None or not _is_text((*package, *names)):
            continue
        node = _node_at(yaml.compose(file.read_text(encoding="utf-8"), Loader=LOADER), names)
        # Where nothing has that name, the name itself is no text (`yes: 5`), and OmegaConf refuses it.
        if isinstance(node, yaml.ScalarNode) and node.value != str(value):
            raise ConfigError(_type_problem(file, node, ".".join((*package, *names)), value))


def _type_problem(file: Path, node: Any, key: str, value: Any) -> str:
    place = f"{file}, line {node.start_mark.line + 1}"
    if isinstance(value, bool):
        kind = "true or false"
    else:
        kind = f"the number {value}"
    if mask_value(key, value) == MASK:
        return f"{place}: {key} is text, and YAML reads what stands there as a number. Write it in quotes."
    return f'{place}: {key} is text, and YAML reads {node.value} as {kind}. Write it in quotes: "{node.value}".'


def _iter_scalars(node: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the names on the way to each value that is neither table nor list, and the value."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _iter_scalars(value, (*names, str(name)))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _iter_scalars(value, (*names, str(number)))
    else:
        yield names, node


@lru_cache(maxsize=4096)
def _is_text(names: tuple[str, ...]) -> bool:
    if names[:3] == _SWEPT:
        return is_text(type_of_override(".".join(names[3:])))
    hint = type_of_override(names[0])
    for name in names[1:]:
        below = type_below(hint, name)
        if below is None and name.isdecimal():
            hint = item_type(hint)
        else:
            hint = below
    return is_text(hint)


def _node_at(node: Any, names: tuple[str, ...]) -> Any:
    """Returns the node of YAML that these names lead to, or None."""
    for name in names:
        if isinstance(node, yaml.MappingNode):
            node = _node_below(node, name)
        elif isinstance(node, yaml.SequenceNode):
            node = node.value[int(name)]
    return node


def _node_below(node: Any, name: str) -> Any:
    """Returns the node of a value in a mapping, or in one that it merges (`<<`): the first of several counts."""
    pairs = {key.value: value for key, value in node.value}
    if name in pairs:
        return pairs[name]
    merged = pairs.get("<<")
    tables = merged.value if isinstance(merged, yaml.SequenceNode) else [merged]
    nodes = (_node_below(table, name) for table in tables if isinstance(table, yaml.MappingNode))
    return next((below for below in nodes if below is not None), None)
