"""This module finds conf/, sweeps/, launchers/ and examples/, beside the package in a checkout and inside it in a
wheel. It also lists the options there are, in files and in other packages.

Invariants:
- The answer does not depend on the working directory.
- Standard library only: `--help` is answered from here before Hydra is imported.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from swe_rl.config.choices import ExtensionKind
from swe_rl.errors import UserError
from swe_rl.files.lines import lines_of
from swe_rl.host.entry_points import Offered, offered_by_packages

PACKAGE = Path(__file__).resolve().parent.parent
LAUNCHERS = "hydra/launcher"
_OPTION = ".yaml"


class InstallationError(UserError):
    """The package was installed without its configuration files."""


@dataclass(frozen=True, slots=True)
class Option:
    """Names one file of a group, such as `router=tr`. `summary` is its first comment line."""

    group: str
    name: str
    path: Path
    summary: str


def conf_dir() -> Path:
    return _find_folder("conf")


def sweeps_dir() -> Path:
    return _find_folder("sweeps")


def launchers_dir() -> Path:
    return _find_folder("launchers")


def examples_dir() -> Path:
    return _find_folder("examples")


def list_options(root: Path | None = None) -> dict[str, list[Option]]:
    """Returns every group of conf/ with its options, both sorted by name; sweeps are the group `sweep`, launchers come
    last."""
    root = root or conf_dir()
    groups = {folder.name: _options_in(folder, folder.name) for folder in sorted(root.iterdir()) if folder.is_dir()}
    more = {"sweep": _options_in(sweeps_dir(), "sweep"), LAUNCHERS: _options_in(root / LAUNCHERS, LAUNCHERS)}
    return {name: members for name, members in {**groups, **more}.items() if members}


def option_names(root: Path | None = None) -> dict[str, list[str]]:
    """Returns the names of `list_options` alone: no file is opened. Ours are looked for once."""
    if root is None or root == conf_dir():
        return {group: list(names) for group, names in _shipped_names(conf_dir(), sweeps_dir()).items()}
    return _names_in(root, {})


@cache
def _shipped_names(conf: Path, sweeps: Path) -> dict[str, list[str]]:
    return _names_in(conf, {"sweep": sweeps})


def _names_in(root: Path, more: dict[str, Path]) -> dict[str, list[str]]:
    folders = {folder.name: folder for folder in sorted(root.iterdir()) if folder.is_dir()}
    folders = {**folders, LAUNCHERS: root / LAUNCHERS, **more}
    names = {group: sorted(path.stem for path in folder.glob("*.yaml")) for group, folder in folders.items()}
    return {group: stems for group, stems in names.items() if stems}


@cache
def find_offered() -> dict[str, dict[str, Offered]]:
    """Returns the options of installed packages by kind and name, without names that are ours. If two packages have a
    name, the first in the order of the packages' names has it."""
    table: dict[str, dict[str, Offered]] = {}
    ours = option_names()
    for row in sorted(offered_by_packages(), key=lambda row: row.package, reverse=True):
        if row.group in list(ExtensionKind) and row.name not in ours[row.group]:
            table.setdefault(row.group, {})[row.name] = row
    return table


def extension_names() -> dict[str, list[str]]:
    return {kind: sorted(rows) for kind, rows in find_offered().items()}


def own_options(folder: Path) -> dict[str, list[Option]]:
    """Returns the options of a `--config-dir` in the form of `list_options`. Raises UserError if there is no such
    folder.
    """
    if not folder.is_dir():
        raise UserError(f"--config-dir {folder}: there is no such folder.")
    groups = {child.name: _options_in(child, child.name) for child in sorted(folder.iterdir()) if child.is_dir()}
    groups[LAUNCHERS] = _options_in(folder / LAUNCHERS, LAUNCHERS)
    return {name: members for name, members in groups.items() if members}


def option_files(root: Path, *, skipped: Path | None = None) -> list["os.DirEntry[str]"]:
    """Returns the files below `root`, a folder of groups, that Hydra may read, in the order of their paths.

    They are called `*.yaml`, and a group's folder is called as one of ours, or has such a file at most one folder
    deeper. What else there is may be large, as where `root` is the folder of a whole project. `skipped` is a folder
    that is not looked into.
    """
    groups = {"sweep", *(folder.name for folder in conf_dir().iterdir())}
    around = [_inode(folder) for folder in (root, skipped) if folder is not None]
    files: list[os.DirEntry[str]] = []
    for entry in _entries_of(root):
        if not entry.is_dir():
            files += [entry] if _is_option(entry) else []
        elif entry.name in groups or _has_option(entry.path, depth=1):
            files += _files_below(entry.path, around)
    return files


def _is_option(entry: "os.DirEntry[str]") -> bool:
    return entry.name.endswith(_OPTION) and entry.is_file()


def _has_option(folder: str, depth: int) -> bool:
    entries = _entries_of(folder)
    if any(map(_is_option, entries)):
        return True
    return depth > 0 and any(_has_option(entry.path, depth - 1) for entry in entries if entry.is_dir())


def _files_below(folder: str, around: list[tuple[int, int]]) -> Iterator["os.DirEntry[str]"]:
    """Yields the options below `folder`. `around` are the folders that it is in: a link may lead back to one."""
    inode = _inode(folder)
    if inode in around:
        return
    for entry in _entries_of(folder):
        if entry.is_dir():
            yield from _files_below(entry.path, [*around, inode])
        elif _is_option(entry):
            yield entry


def _inode(folder: Path | str) -> tuple[int, int]:
    facts = Path(folder).stat()
    return facts.st_dev, facts.st_ino


def _entries_of(folder: Path | str) -> list["os.DirEntry[str]"]:
    """Returns what is in a folder and not hidden, by name; nothing if nobody may look into it."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
    except PermissionError:
        return []


def is_ours(option: Option) -> bool:
    return any(option.path.is_relative_to(folder) for folder in (conf_dir(), sweeps_dir()))


def describe_clash(option: Option) -> str:
    """Says what becomes of an option of the user's own that is called as one of ours; empty if none is.

    Hydra searches conf/ first, then the user's folder, then what is in its store: sweeps/.
    """
    swept = option.group == "sweep"
    ours = (sweeps_dir() if swept else conf_dir() / option.group) / f"{option.name}.yaml"
    if not ours.is_file():
        return ""
    if swept:
        label = f"sweeps/{ours.name}"
    else:
        label = f"conf/{option.group}/{ours.name}"
    if swept:
        return f"(read instead of {label})"
    return f"(never read: {label} has the name)"


def summary_of(path: Path) -> str:
    """Returns the first comment line of a YAML file that is not a package header; empty if there is none."""
    # A listing must not fail for one file, so bytes that are no UTF-8 are replaced.
    for line in lines_of(path.read_text(encoding="utf-8", errors="replace"), ends=False):
        if not line.startswith("#"):
            return ""
        text = line.lstrip("# ").strip()
        if text and not text.startswith("@package"):
            return text
    return ""


def _options_in(folder: Path, group: str) -> list[Option]:
    return [Option(group, path.stem, path, summary_of(path)) for path in sorted(folder.glob("*.yaml"))]


def _find_folder(name: str) -> Path:
    for parent in (PACKAGE, PACKAGE.parent):
        if (parent / name).is_dir():
            return parent / name
    raise InstallationError(
        f"The folder {name}/ is neither in {PACKAGE} nor beside it: this copy of swe_rl is incomplete. "
        "Install the wheel again, or run from a complete checkout."
    )
