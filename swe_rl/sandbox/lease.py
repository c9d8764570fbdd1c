"""This module says who owns a scratch folder, so that the leftovers of a killed run are found and removed.

Invariants:
- A lease names a process for good (`ProcessIdentity`): a pid that was given to another process does not count.
- Only folders of this user that hold a lease of this host whose owner is gone are removed. Anything else is left alone,
  links above all.
- A folder is locked against others while another is made in it. So an empty folder of ours without a lease there is
  that of a killed process.
- What cannot be read or removed stops nobody's start.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from swe_rl.files.kill_point import kill_point
from swe_rl.host.process_identity import ProcessIdentity
from swe_rl.sandbox.process_tree import kill_marked
from swe_rl.sandbox.working_copy import LEASE_NAME, remove_tree

_HALF_LEASE = f".{LEASE_NAME}.new"  # A lease is written under this name, then renamed, so that no half of one is read.
_OURS = re.compile(r"\.?[a-z]+-\d+-[0-9a-f]{8,}")  # `make_leased` makes names like this.
# A lease is much shorter. Others may put anything there, and no more than this is read of it.
_LONGEST_LEASE_CHARS = 10_000


def make_leased(root: Path, kind: str) -> Path:
    """Returns a new folder of this process, with a lease, below `root`, which is there already. Raises OSError."""
    folder = root / f"{kind}-{os.getpid()}-{secrets.token_hex(4)}"
    with _lock_root(root):
        folder.mkdir(mode=0o700)
        kill_point("scratch_made")
        write_lease(folder)
    return folder


def make_scratch(root: Path, kind: str) -> Path:
    """Returns a new folder of this process, with a lease, below `root`, which is made where it is missing.

    What killed processes left there is removed first. Raises OSError.
    """
    root = root.absolute()
    root.mkdir(parents=True, exist_ok=True)
    reap_stale(root)
    return make_leased(root, kind)


@contextlib.contextmanager
def made_aside(destination: Path) -> Iterator[Path]:
    """Yields a path at which to build what gets the name `destination` at the end.

    What a killed process built there before is removed. Where another process has made the same thing meanwhile, that
    one stays. Raises OSError.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    _reap_once(destination.parent)
    folder = make_leased(destination.parent, ".making")
    try:
        yield folder / destination.name
        kill_point("workspace_aside")
        try:
            (folder / destination.name).replace(destination)
        except OSError:
            if not destination.is_dir():
                raise
    finally:
        # Whoever makes the next one finds what is left by its lease.
        with contextlib.suppress(OSError):
            remove_tree(folder)


def write_lease(folder: Path) -> None:
    """Marks `folder` as this process's. Raises OSError."""
    aside = folder / _HALF_LEASE
    aside.write_text(json.dumps(ProcessIdentity.mine().record()))
    os.replace(aside, folder / LEASE_NAME)  # noqa: PTH105


def reap_stale(scratch_root: Path) -> list[Path]:
    """Removes the folders right below `scratch_root` whose owner is gone, and ends what still runs there.

    Returns the removed folders. What cannot be read or removed is left alone.
    """
    removed = _remove_unleased(scratch_root)
    for folder in _own_folders(scratch_root):
        if _owner_is_gone(folder / LEASE_NAME):
            kill_marked(f"{folder}{os.sep}")
            with contextlib.suppress(OSError):
                remove_tree(folder)
                removed.append(folder)
    return removed


@cache
def _reap_once(root: Path) -> None:
    """Reaps a folder once in a process: many are made there one by one, and ten thousand may have to be looked at."""
    reap_stale(root)


def _remove_unleased(root: Path) -> list[Path]:
    """Removes the folders of processes that were killed before they wrote a lease, and returns them.

    Nothing is in such a folder yet.
    """
    removed = []
    with contextlib.suppress(OSError), _lock_root(root) as alone:
        for folder in _own_folders(root) if alone else []:
            if not _OURS.fullmatch(folder.name) or {path.name for path in folder.iterdir()} - {_HALF_LEASE}:
                continue
            (folder / _HALF_LEASE).unlink(missing_ok=True)
            folder.rmdir()
            removed.append(folder)
    return removed


@contextlib.contextmanager
def _lock_root(root: Path) -> Iterator[bool]:
    """Keeps others from making a leased folder in `root` for the time of the block.

    Yields False where the file system has no such locks. Raises OSError where `root` cannot be opened.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        held = False
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            held = True
        yield held
    finally:
        os.close(descriptor)


def _own_folders(root: Path) -> list[Path]:
    """Returns the folders right below `root` that belong to this user, without links."""
    try:
        with os.scandir(root) as scanned:
            entries = [(Path(entry.path), entry.stat(follow_symlinks=False)) for entry in scanned]
    except OSError:
        return []
    return sorted(path for path, status in entries if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid())


def _owner_is_gone(lease: Path) -> bool:
    try:
        with os.fdopen(os.open(lease, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as reader:
            record = json.loads(reader.read(_LONGEST_LEASE_CHARS))
        return isinstance(record, dict) and ProcessIdentity.read(record).is_gone()
    except (OSError, ValueError, KeyError, RecursionError):
        return False
