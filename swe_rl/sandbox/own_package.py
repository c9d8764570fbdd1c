"""Where a sandbox could read swe_rl itself, which ships answers and tests of the embedded instances.

Invariants:
- Looked for by place, not by name alone: the package that runs, the checkout that it is run from, and every installed
  one below a folder that commands see, under each name by which they see it.
- A folder that holds the interpreter is never among them.
"""

from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = ("lib*/python3*/*-packages", "local/lib*/python3*/*-packages", "Lib/site-packages")
_OF_A_CHECKOUT = ("tests", ".git", "build", "dist")  # the history has what the package has


def own_places(seen: Iterable[tuple[Path, Path]]) -> list[Path]:
    """Paths in a sandbox that show swe_rl; `seen`: folders of this machine, each with its path in the sandbox."""
    found: set[Path] = set()
    for folder, path in seen:
        real = folder.resolve()
        for own in _own_folders(real):
            if real in own.parents:
                found.add(path / own.relative_to(real))
    return sorted(place for place in found if not found.intersection(place.parents))


def _own_folders(prefix: Path) -> list[Path]:
    """Links resolved: a mount over a link would be a mount over what it leads to, or none."""
    folders = [_PACKAGE]
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        folders += [_PACKAGE.parent / name for name in _OF_A_CHECKOUT]
    for pattern in _INSTALLED:
        folders += prefix.glob(f"{pattern}/{_PACKAGE.name}")
    return [folder.resolve() for folder in folders if folder.is_dir()]
