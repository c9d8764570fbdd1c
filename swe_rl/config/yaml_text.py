"""YAML in and out: safe loading only, order kept.

Invariants:
- No tag can build an object; a broken file raises YamlError, which names line and column.
- `--help` does not import this.
"""

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

YamlError: type[Exception] = yaml.YAMLError
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str) -> Any:
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 (a safe loader)


def read(path: Path) -> dict[str, Any]:
    """The mapping in a file; empty for an empty file."""
    content = parse(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def render(values: Any) -> str:
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
