"""Code of the user's own that comes along: the folders of `job.code`, on the path of the run and of all that it starts.

Invariants:
- A folder is used as it was when the job was submitted: a frozen sweep has copies, and its jobs use those.
- `use_code` is called once a process, before anything of the user's is imported; processes that this one starts find
  the same through PYTHONPATH.
- What is left out of a copy is left out of its hash.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from swe_rl.errors import UserError

_SKIPPED = ("__pycache__", "*.pyc", ".*", "*.egg-info")
_MOST_FILES = 20_000
_USED: list[str] = []  # what this process has taken onto its path


class CodeError(UserError):
    """A folder of `job.code` that cannot come along."""


@dataclass(frozen=True, slots=True)
class CodeFolder:
    """`sha256`: of the names and contents of its files."""

    path: str
    files: int
    sha256: str


def search_folders(code: Sequence[str]) -> tuple[str, ...]:
    """Where a rule looks first; none where this process has `job.code` on its path already, or its frozen copy."""
    return () if _USED else tuple(str(Path(folder).expanduser().absolute()) for folder in code)


def is_used() -> bool:
    return bool(_USED)


def use_code(folders: Sequence[Path]) -> None:
    """Puts them on this process's path and on that of those that it starts, first of all."""
    texts = [str(folder.expanduser().absolute()) for folder in folders]
    for former in _USED:
        if former in sys.path:
            sys.path.remove(former)
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part not in _USED]
    _USED[:] = texts
    sys.path[:0] = texts
    if texts:
        os.environ["PYTHONPATH"] = os.pathsep.join([*texts, *(part for part in others if part not in texts)])


@contextmanager
def on_path(code: Sequence[str]) -> Iterator[None]:
    """For a check: what has been imported stays, the path and what this process starts do not change."""
    folders = search_folders(code)
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(folder)


def copy_code(code: Sequence[str], target: Path, leave_out: Path) -> list[Path]:
    """Copies each folder to `target/0`, `target/1`, ...; `leave_out`: a folder that lies in none of the copies.

    Raises CodeError.
    """
    copies = []
    for number, folder in enumerate(code):
        source, copy = _folder(folder), target / str(number)
        names = list(_files(source, leave_out))
        for name in names:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, copy / name)
        copy.mkdir(parents=True, exist_ok=True)
        copies.append(copy)
    return copies


def code_facts(folders: Sequence[Path], leave_out: Path) -> list[CodeFolder]:
    """For the record of a run. Raises CodeError."""
    facts = []
    for folder in folders:
        digest, names = hashlib.sha256(), list(_files(folder, leave_out))
        for name in names:
            digest.update(f"{name}\0".encode())
            digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
        facts.append(CodeFolder(str(folder), len(names), digest.hexdigest()))
    return facts


def _folder(text: str) -> Path:
    folder = Path(text).expanduser().absolute()
    if not folder.is_dir():
        raise CodeError(f"job.code: there is no folder {folder}.")
    return folder


def _files(source: Path, leave_out: Path) -> Iterator[str]:
    """Relative paths, sorted; without what is hidden or made by Python, and without the runs of `leave_out`."""
    left_out = leave_out.absolute()
    count = 0
    for folder, folders, files in os.walk(source):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if is_taken(name) and not left_out.is_relative_to(here / name))
        for name in sorted(filter(is_taken, files)):
            count += 1
            if count > _MOST_FILES:
                raise CodeError(
                    f"job.code: {source} has more than {_MOST_FILES} files, which all would come along. Name the "
                    "folder that holds your package and little else."
                )
            if (here / name).is_file():
                yield str((here / name).relative_to(source))


def is_taken(name: str) -> bool:
    """Whether a file or folder of this name comes along."""
    return not any(Path(name).match(pattern) for pattern in _SKIPPED)
