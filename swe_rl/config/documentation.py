"""The documentation of keys, read where it is written: comments in conf/ and beside the schema's fields.

Invariants:
- Nothing is documented twice; a comment in the option file wins over the schema's.
- Reads files only; Hydra is not imported.
"""

import io
import re
import tokenize
from functools import cache
from pathlib import Path

from swe_rl.config import schema
from swe_rl.config.keys import key_types
from swe_rl.config.schema import Config
from swe_rl.config.store import fields_of

_YAML_LINE = re.compile(r"^(\w+):.*?\s{2,}#\s*(.+)$")
_FIELD_LINE = re.compile(r"^    (\w+)\s*:")


def comment_of(key: str, option: Path | None = None) -> str:
    """The comment beside a full key, from the chosen option's file or else from the schema; empty if there is none."""
    group, _, leaf = key.rpartition(".")
    if option is not None and (found := yaml_comments(option).get(leaf)):
        return found
    return schema_comments().get((_class_of(group), leaf), "")


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


def _class_of(group: str) -> str:
    hint = key_types().get(group) if group else Config
    return str(getattr(hint, "__name__", ""))


def keys_of(group: str) -> list[str]:
    """Full keys of one group, in order of declaration."""
    hint = key_types()[group]
    return [f"{group}.{name}" for name in fields_of(hint)]
