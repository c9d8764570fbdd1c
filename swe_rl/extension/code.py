"""This module brings the user's own code along: it puts the folders of `job.code` on the path of the run.

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

# Files that Python or a tool makes again by itself are not copied, and neither is what is hidden (such as `.git`).
_SKIPPED = ("__pycache__", "*.pyc", ".*", "*.egg-info")
# A folder with more files than this holds more than the user's package, and all of it would be copied.
_MOST_FILES = 20_000
_USED: list[str] = []  # This process has these folders on its path already.


class CodeError(UserError):
    """A folder of `job.code` cannot come along."""


@dataclass(frozen=True, slots=True)
class CodeFolder:
    """This record of a folder holds its path, the number of its files, and one hash of their names and contents."""

    path: str
    files: int
    sha256: str


def search_folders(code: Sequence[str]) -> tuple[str, ...]:
    """Returns the folders where a rule looks first.

    There are none where this process has `job.code`, or its frozen copy, on its path already.
    """
    if _USED:
        return ()
    return tuple(str(Path(folder).expanduser().absolute()) for folder in code)


def is_used() -> bool:
    """Tells whether this process has taken folders of `job.code` onto its path."""
    return bool(_USED)


def use_code(folders: Sequence[Path]) -> None:
    """Puts the folders first on the path of this process and of the processes that it starts.

    Folders that an earlier call put there are taken off again.
    """
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
    """Puts the folders on this process's path for the time of the block, as a check needs it.

    Afterwards the path is as before, but modules that were imported meanwhile stay. The path of processes that this
    one starts does not change at all.
    """
    folders = search_folders(code)
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(folder)


def copy_code(code: Sequence[str], target: Path, leave_out: Path) -> list[Path]:
    """Copies each folder to `target/0`, `target/1` and so on, without the folder `leave_out`. Returns the copies.

    Raises CodeError where a folder is missing or has too many files.
    """
    copies = []
    for number, folder in enumerate(code):
        source = _existing_folder(folder)
        copy = target / str(number)
        names = list(_code_files(source, leave_out))
        for name in names:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, copy / name)
        copy.mkdir(parents=True, exist_ok=True)
        copies.append(copy)
    return copies


def code_facts(folders: Sequence[Path], leave_out: Path) -> list[CodeFolder]:
    """Returns the path, the number of files and the hash of each folder, for the record of a run.

    Raises CodeError where a folder has too many files.
    """
    facts = []
    for folder in folders:
        digest = hashlib.sha256()
        names = list(_code_files(folder, leave_out))
        for name in names:
            digest.update(f"{name}\0".encode())
            digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
        facts.append(CodeFolder(str(folder), len(names), digest.hexdigest()))
    return facts


def _existing_folder(text: str) -> Path:
    """Returns the absolute path of a folder. Raises CodeError where there is none."""
    folder = Path(text).expanduser().absolute()
    if not folder.is_dir():
        raise CodeError(f"job.code: there is no folder {folder}.")
    return folder


def _code_files(source: Path, leave_out: Path) -> Iterator[str]:
    """Yields the sorted relative paths of the files that come along, without those below `leave_out`.

    Raises CodeError where there are too many.
    """
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
    """Tells whether a file or folder of this name comes along."""
    return not any(Path(name).match(pattern) for pattern in _SKIPPED)
