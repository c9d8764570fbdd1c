"""Extensions that installed packages offer: entry points of the groups `swe_rl.agent`, `swe_rl.env`, ...

Invariants:
- Nothing of such a package is imported: its metadata say names and import paths.
- Where two packages offer one name of a kind, the first in the order of their names has it; ours come before all.
- Standard library only.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.folders import option_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_KINDS = {f"swe_rl.{kind}": kind for kind in ExtensionKind}
_MARK = b"[swe_rl."


@dataclass(frozen=True, slots=True)
class Offered:
    """`target`: the import path, with dots alone. `package`: who offers it, as `NAME VERSION`."""

    name: str
    target: str
    package: str


@cache
def offered() -> dict[ExtensionKind, dict[str, Offered]]:
    """By kind and name; kinds that nobody offers are left out."""
    table: dict[ExtensionKind, dict[str, Offered]] = {}
    ours = option_names()
    for package, points in sorted(_distributions(), key=lambda pair: pair[0], reverse=True):
        for point in points:
            kind = _KINDS.get(point.group)
            if kind is not None and point.name not in ours[kind]:
                target = point.value.replace(":", ".")
                table.setdefault(kind, {})[point.name] = Offered(point.name, target, package)
    return table


def extension_names() -> dict[str, list[str]]:
    return {kind: sorted(rows) for kind, rows in offered().items()}


def _distributions() -> Iterator[tuple[str, "Sequence[EntryPoint]"]]:
    """Those with entry points of ours; a name that comes twice is the first on the path, as for an import.

    `importlib.metadata.entry_points()` reads all of every package, which takes four times as long as composing.
    """
    seen: set[str] = set()
    for folder in sys.path:
        for info in _metadata_folders(folder):
            with suppress(OSError):
                if _MARK in (info / "entry_points.txt").read_bytes():
                    from importlib.metadata import PathDistribution

                    distribution = PathDistribution(info)
                    if distribution.name not in seen:
                        seen.add(distribution.name)
                        yield f"{distribution.name} {distribution.version}", tuple(distribution.entry_points)


def _metadata_folders(folder: str) -> list[Path]:
    with suppress(OSError), os.scandir(folder or ".") as entries:
        return [Path(entry.path) for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
    return []
