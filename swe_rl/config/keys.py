"""This module knows every legal key of an override, its type and its documentation, and the nearest key to a wrong one.

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
from swe_rl.files.lines import lines_of

# One wrong, missing or exchanged letter in a word of five is nearer than this.
NEAR_SPELLING = 0.8
_RESEMBLES = 0.6


@cache
def fields_of(schema: type) -> dict[str, Any]:
    """Maps field names to resolved types, in order of declaration."""
    return get_type_hints(schema)


@cache
def key_types() -> dict[str, Any]:
    """Maps full keys to their types, groups included (`rollout`, `rollout.n`)."""
    return dict(_walk_schema(Config, ""))


def is_legal(key: str) -> bool:
    """Tells whether a key is in the schema or names an entry of a table (`hardware.env_vars.NAME`)."""
    return type_of(key) is not None


@cache
def type_of(key: str) -> Any:
    """Returns the type of a legal key, or None if there is no such key."""
    hint: Any = Config
    for name in key.split("."):
        hint = type_below(hint, name)
    return hint


def type_below(hint: Any, name: str) -> Any:
    """Returns the type of the entry `name` in a value of type `hint`, or None if there can be none."""
    if isinstance(hint, type) and is_dataclass(hint):
        return fields_of(hint).get(name)
    if get_origin(hint) is dict:
        return get_args(hint)[1]
    # Any: inside of a `params` table
    if hint is Any:
        return hint
    return None


def item_type(hint: Any) -> Any:
    """Returns the type of a list's items. Any other type is returned itself, since options are chosen as one or as a
    list."""
    if get_origin(hint) in (tuple, list):
        return get_args(hint)[0]
    return hint


def is_text(hint: Any) -> bool:
    return hint is str or (get_origin(hint) in (Union, UnionType) and get_args(hint)[0] is str)


def row_table(key: str) -> str:
    """Returns the table of rows that a key lies in (`rollout.outcomes` for `rollout.outcomes.resolved.trained`), or an
    empty text."""
    for name, hint in key_types().items():
        if key.startswith(f"{name}.") and get_origin(hint) is dict and is_dataclass(get_args(hint)[1]):
            return name
    return ""


def nearest_words(word: str, candidates: Iterable[str], count: int = 3) -> list[str]:
    """Returns the nearest candidates by spelling, best first. A candidate that starts with `word` is near however long
    it is."""
    pool = list(dict.fromkeys(candidates))
    starts = [name for name in pool if len(word) > 2 and name.startswith(word)]
    return list(dict.fromkeys([*difflib.get_close_matches(word, pool, n=count, cutoff=_RESEMBLES), *starts]))[:count]


def nearest_keys(key: str, count: int = 3) -> list[str]:
    """Returns the nearest keys: same last part first (`n` for `rollout.n`), those of a group that is spelled alike and
    of few parts before others, then the same group's keys, then every key by its last part, then by the whole."""
    pool = [name for name in key_types() if "." in name]
    parent, _, leaf = key.rpartition(".")
    same_leaf = sorted(
        (name for name in pool if name.rpartition(".")[2] == leaf),
        key=lambda name: (-_nearness(parent, name.rpartition(".")[0]), name.count(".")),
    )
    siblings = {name.rpartition(".")[2]: name for name in pool if name.rpartition(".")[0] == parent}
    close = [siblings[name] for name in nearest_words(leaf, siblings)]
    if not close:
        leaves = [name.rpartition(".")[2] for name in pool]
        near_leaves = difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.75)
        close = [name for name in pool if name.rpartition(".")[2] in near_leaves] or nearest_words(key, pool)
    return list(dict.fromkeys([*same_leaf, *close]))[:count]


def keys_spelled_like(key: str) -> list[str]:
    """Returns the keys whose group and last word are spelled alike, as with a wrong letter, the nearest word first."""
    parent, _, leaf = key.rpartition(".")
    named: dict[str, list[str]] = {}
    for name in key_types():
        group, _, word = name.rpartition(".")
        if _nearness(parent, group):
            named.setdefault(word, []).append(name)
    return [name for word in difflib.get_close_matches(leaf, named, cutoff=NEAR_SPELLING) for name in named[word]]


def describe_type(hint: Any) -> str:
    """Says how a person would ask for a value of this type: `a whole number`, `one of grpo, dr_grpo, rloo`, ..."""
    if isinstance(hint, EnumMeta):
        return f"one of {', '.join(str(name) for name in hint.__members__)}"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join("null" if part is type(None) else describe_type(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list, each item {describe_type(get_args(hint)[0])}"
    if is_dataclass(hint) or get_origin(hint) is dict:
        return "a table of keys"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(hint, str(hint))


def _nearness(typed: str, name: str) -> float:
    """Returns how alike two names are, from 0 to 1, and 0 where they are hardly."""
    ratio = difflib.SequenceMatcher(None, typed, name).ratio()
    return ratio if ratio >= _RESEMBLES else 0.0


def _walk_schema(schema: type, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, hint in fields_of(schema).items():
        key = f"{prefix}{name}"
        yield key, hint
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _walk_schema(hint, f"{key}.")


_YAML_LINE = re.compile(r"^(\w+):.*?\s{2,}#\s*(.+)$")
_FIELD_LINE = re.compile(r"^    (\w+)\s*:")


def comment_of(key: str, option: Path | None = None) -> str:
    """Returns the comment beside a full key, from the chosen option's file or else from the schema; empty if there is
    none."""
    group, _, leaf = key.rpartition(".")
    if option is not None and (comment := yaml_comments(option).get(leaf)):
        return comment
    return next((text for name in _classes_of(group) if (text := schema_comments().get((name, leaf)))), "")


def yaml_comments(path: Path) -> dict[str, str]:
    """Maps each top-level key of an option file to its trailing comment; files it builds on are read first."""
    comments: dict[str, str] = {}
    for line in lines_of(path.read_text(encoding="utf-8"), ends=False):
        if parent := re.match(r"^  - (\w+)$", line):
            file = path.with_name(f"{parent.group(1)}.yaml")
            if file.is_file() and file != path:
                comments |= yaml_comments(file)
        elif match := _YAML_LINE.match(line):
            comments[match.group(1)] = match.group(2)
    return comments


@cache
def schema_comments() -> dict[tuple[str, str], str]:
    """Maps (class, field) to the trailing comment in schema.py."""
    comments: dict[tuple[str, str], str] = {}
    current = ""
    field = ""
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
    """Returns the names of a group's dataclass and of those that it builds on."""
    if group:
        hint = key_types().get(group)
    else:
        hint = Config
    return [base.__name__ for base in getattr(hint, "__mro__", ())]


def keys_of(group: str) -> list[str]:
    """Returns the full keys of one group, in order of declaration."""
    hint = key_types()[group]
    return [f"{group}.{name}" for name in fields_of(hint)]
