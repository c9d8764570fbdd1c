"""This module reads and writes YAML: safe loading only, order kept.

Invariants:
- No tag can build an object; a broken file raises YamlError, which names line and column.
- `--help` does not import this.
"""

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

YamlError: type[Exception] = yaml.YAMLError
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=LOADER)  # noqa: S506 (a safe loader)


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the mapping in a file, or an empty one for an empty file."""
    content = parse_yaml(path.read_text(encoding="utf-8"))
    if isinstance(content, dict):
        return content
    return {}


def render_yaml(values: Any) -> str:
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
