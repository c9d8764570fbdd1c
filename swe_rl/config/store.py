"""The schema as Hydra wants it, and the composed tree as the program wants it.

Invariants:
- Hydra sees mutable twins of the frozen dataclasses (a frozen one refuses to be overridden); one base node types the
  whole tree, so that unknown keys and wrong types are refused in every file and on the command line.
- What leaves here holds no OmegaConf object: lists are tuples, tables are dicts of frozen dataclasses.
"""

import dataclasses
import types
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from swe_rl.config.folders import extension_names, sweeps_dir
from swe_rl.config.hydra_internals import quicken
from swe_rl.config.keys import fields_of
from swe_rl.config.schema import Config

T = TypeVar("T")


@cache
def register() -> None:
    """Puts the schema, the sweeps and the resolvers into Hydra's store, once a process."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    from swe_rl.config.environment import variable
    from swe_rl.config.known_hardware import here
    from swe_rl.config.known_models import fact
    from swe_rl.config.yaml_text import read

    quicken()
    OmegaConf.register_new_resolver("swe_rl.words", words, replace=True)
    OmegaConf.register_new_resolver("swe_rl.here", here, replace=True)
    OmegaConf.register_new_resolver("swe_rl.model", fact, replace=True)
    OmegaConf.register_new_resolver("swe_rl.env", variable, replace=True)
    OmegaConf.register_new_resolver("swe_rl.if_equal", if_equal, replace=True)
    OmegaConf.register_new_resolver("swe_rl.from_home", from_home, replace=True)
    store = ConfigStore.instance()
    store.store(name="base_config", node=thaw(Config), provider="swe_rl")
    for kind, names in extension_names().items():  # of installed packages: agent=mine names one
        for name in names:
            store.store(group=kind, name=name, node={"name": name}, provider="entry_points")
    for path in sorted(sweeps_dir().glob("*.yaml")):
        node = read(path)
        store.store(group="sweep", name=path.stem, node=node, package="_global_", provider="sweeps")


def words(text: str) -> list[str]:
    """`${swe_rl.words:...}` in conf/: a list of what stands between commas or spaces, as environments hold it."""
    return str(text or "").replace(",", " ").split()


def if_equal(value: Any, known: Any, then: Any, otherwise: Any) -> Any:
    """`${swe_rl.if_equal:...}` in conf/: what suits the published value, or what suits any other."""
    return then if value == known else otherwise


def from_home(path: str) -> str:
    """`${swe_rl.from_home:...}` in conf/: a path that begins with `~`, as a shell reads it; quotes keep it."""
    with suppress(RuntimeError):  # there is no such user
        return str(Path(path).expanduser()) if path.startswith("~") else path
    return path


@cache
def thaw(schema: type) -> type:
    """A mutable dataclass with the fields and defaults of `schema`, nested ones included."""
    types_of = fields_of(schema)
    columns = [(field.name, _thawed_type(types_of[field.name]), _thawed_field(field)) for field in _fields(schema)]
    # What Hydra does not need is left out: a dataclass without text for `__doc__` works it out from its signature.
    shown = {"__doc__": schema.__doc__}
    return dataclasses.make_dataclass(schema.__name__, columns, namespace=shown, eq=False, repr=False)


def _thawed_type(hint: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return thaw(hint)  # type: ignore[arg-type]
    if get_origin(hint) is dict:
        key, value = get_args(hint)
        return types.GenericAlias(dict, (key, _thawed_type(value)))
    return hint


def _thawed_field(field: dataclasses.Field[Any]) -> Any:
    if isinstance(field.default_factory, type) and dataclasses.is_dataclass(field.default_factory):
        return dataclasses.field(default_factory=thaw(field.default_factory))
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory)
    return dataclasses.field(default=field.default)


def freeze(schema: type[T], tree: dict[str, Any], prefix: str = "") -> T:
    """`tree` holds plain values as OmegaConf resolved them; keys that `schema` lacks are not expected.

    Raises ValueError for a reference to something of another kind, which OmegaConf lets through.
    """
    hints: dict[str, Any] = fields_of(schema)  # type: ignore[arg-type]
    names = [field.name for field in _fields(schema)]
    return schema(**{name: _frozen(hints[name], tree[name], f"{prefix}{name}") for name in names})


def _frozen(hint: Any, value: Any, key: str) -> Any:
    if hint is Any:
        return _plain(value)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _frozen(get_args(hint)[0], value, key)
    wanted = dict if dataclasses.is_dataclass(hint) or origin is dict else list if origin is tuple else None
    if value is None or (type(value) if isinstance(value, dict | list) else None) is not wanted:
        raise ValueError(other_kind(key, value))
    if dataclasses.is_dataclass(hint):
        return freeze(hint, value, f"{key}.")  # type: ignore[arg-type]
    if origin is tuple:
        return tuple(_frozen(get_args(hint)[0], item, key) for item in value)
    if origin is dict:
        return {name: _frozen(get_args(hint)[1], item, f"{key}.{name}") for name, item in value.items()}
    return value


def _plain(value: Any) -> Any:
    """What a `params` table holds: of any kind, lists as tuples."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def other_kind(key: str, value: Any) -> str:
    kinds = {dict: "a table of keys", list: "a list", type(None): "null"}
    kind = kinds.get(type(value), repr(str(value)[:60]))
    return f"{key} refers to a value of another kind ({kind}): write the value itself."


def _fields(schema: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(schema)
