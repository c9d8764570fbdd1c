"""Every legal key of an override, its type and what is written about it, and the nearest to a wrong one.

Invariants:
- The schema is the only source: nothing here lists a key by hand.
- The documentation is read where it is written, in comments of conf/ and beside the schema's fields; that of the option
  file wins. Nothing is documented twice.
- Standard library only.
"""

import difflib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from enum import EnumMeta
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from swe_rl.config import schema
from swe_rl.config.schema import Config


@cache
def fields_of(schema: type) -> dict[str, Any]:
    """Field name to resolved type, in order of declaration."""
    return get_type_hints(schema)


@cache
def key_types() -> dict[str, Any]:
    """Full key to its type, groups included (`rollout`, `rollout.n`)."""
    return dict(_walk(Config, ""))


def is_legal(key: str) -> bool:
    """True for a key of the schema and for any name inside a table (`hardware.env_vars.NAME`)."""
    hint: Any = Config
    for name in key.split("."):
        if isinstance(hint, type) and is_dataclass(hint):
            hint = fields_of(hint).get(name)
        elif get_origin(hint) is dict:
            hint = get_args(hint)[1]
        else:
            return hint is Any  # inside of a `params` table
        if hint is None:
            return False
    return True


def row_table(key: str) -> str:
    """The table of rows that a key lies in (`rollout.outcomes` for `rollout.outcomes.resolved.trained`), or nothing."""
    for name, hint in key_types().items():
        if key.startswith(f"{name}.") and get_origin(hint) is dict and is_dataclass(get_args(hint)[1]):
            return name
    return ""


def nearest(word: str, candidates: Iterable[str], count: int = 3) -> list[str]:
    """Best first, by spelling; a candidate that starts with `word` is near however long it is."""
    pool = list(dict.fromkeys(candidates))
    starts = [name for name in pool if len(word) > 2 and name.startswith(word)]
    return list(dict.fromkeys([*difflib.get_close_matches(word, pool, n=count, cutoff=0.6), *starts]))[:count]


def nearest_keys(key: str, count: int = 3) -> list[str]:
    """Same last part first (`n` for `rollout.n`), then the same group's keys, then every key."""
    pool = [name for name in key_types() if "." in name]
    parent, _, leaf = key.rpartition(".")
    same_leaf = [name for name in pool if name.rpartition(".")[2] == leaf]
    siblings = {name.rpartition(".")[2]: name for name in pool if name.rpartition(".")[0] == parent}
    close = [siblings[name] for name in nearest(leaf, siblings)]
    return list(dict.fromkeys([*same_leaf, *close, *([] if close else nearest(key, pool))]))[:count]


def describe_type(hint: Any) -> str:
    """`a whole number`, `one of grpo, dr_grpo, rloo`, ...: how a person would ask for a value of this type."""
    if isinstance(hint, EnumMeta):
        return f"one of {', '.join(str(name) for name in hint.__members__)}"
    if get_origin(hint) in (Union, UnionType):
        return f"{describe_type(get_args(hint)[0])} or null"
    if get_origin(hint) is tuple:
        return f"a list, each item {describe_type(get_args(hint)[0])}"
    if is_dataclass(hint) or get_origin(hint) is dict:
        return "a table of keys"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(hint, str(hint))


def _walk(schema: type, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, hint in fields_of(schema).items():
        key = f"{prefix}{name}"
        yield key, hint
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _walk(hint, f"{key}.")


_YAML_LINE = re.compile(r"^(\w+):.*?\s{2,}#\s*(.+)$")
_FIELD_LINE = re.compile(r"^    (\w+)\s*:")


def comment_of(key: str, option: Path | None = None) -> str:
    """The comment beside a full key, from the chosen option's file or else from the schema; empty if there is none."""
    group, _, leaf = key.rpartition(".")
    if option is not None and (comment := yaml_comments(option).get(leaf)):
        return comment
    return next((text for name in _classes_of(group) if (text := schema_comments().get((name, leaf)))), "")


def yaml_comments(path: Path) -> dict[str, str]:
    """Top-level key of an option file to its trailing comment; files it builds on are read first."""
    comments: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if parent := re.match(r"^  - (\w+)$", line):
            file = path.with_name(f"{parent.group(1)}.yaml")
            comments |= yaml_comments(file) if file.is_file() and file != path else {}
        elif match := _YAML_LINE.match(line):
            comments[match.group(1)] = match.group(2)
    return comments


@cache
def schema_comments() -> dict[tuple[str, str], str]:
    """(class, field) to the trailing comment in schema.py."""
    comments: dict[tuple[str, str], str] = {}
    current, field = "", ""
    source = Path(schema.__file__).read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if header := re.match(r"class (\w+)", token.line):
            current = header.group(1)
        elif name := _FIELD_LINE.match(token.line):
            field = name.group(1)
            if token.type == tokenize.COMMENT:
                comments[(current, field)] = token.string.lstrip("# ")
    return comments


def _classes_of(group: str) -> list[str]:
    """The dataclass of a group and those that it builds on."""
    hint = key_types().get(group) if group else Config
    return [base.__name__ for base in getattr(hint, "__mro__", ())]


def keys_of(group: str) -> list[str]:
    """Full keys of one group, in order of declaration."""
    hint = key_types()[group]
    return [f"{group}.{name}" for name in fields_of(hint)]
