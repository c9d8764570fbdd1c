"""Who owns a scratch folder, so that the leftovers of a killed run are found and removed.

Invariants:
- A lease names a process by host, pid and start time: a pid that was given to another process does not count.
- Only folders of this user that hold a lease of this host whose owner is gone are removed; anything else is left alone,
  links above all.
- What cannot be read or removed stops nobody's start.
"""

import contextlib
import json
import os
import socket
import stat
from pathlib import Path

import psutil

from swe_rl.sandbox.process_tree import kill_marked
from swe_rl.sandbox.working_copy import remove_tree

LEASE_NAME = "lease.json"
_LONGEST_LEASE_CHARS = 10_000
_START_TOLERANCE_S = 5.0  # the start time is computed from the wall clock, which may be stepped


def write_lease(folder: Path) -> None:
    """Marks `folder` as this process's. Raises OSError."""
    process = psutil.Process()
    lease = {"host": socket.gethostname(), "pid": process.pid, "started_s": process.create_time()}
    aside = folder / f".{LEASE_NAME}.new"
    aside.write_text(json.dumps(lease))
    os.replace(aside, folder / LEASE_NAME)  # noqa: PTH105


def reap_stale(scratch_root: Path) -> list[Path]:
    """Removes the folders right below `scratch_root` whose owner is gone, with what still runs there; returns them."""
    removed = []
    for folder in _folders(scratch_root):
        if _owner_is_gone(folder / LEASE_NAME):
            kill_marked(f"{folder}{os.sep}")
            with contextlib.suppress(OSError):
                remove_tree(folder)
                removed.append(folder)
    return removed


def _folders(root: Path) -> list[Path]:
    """This user's own, no links."""
    try:
        with os.scandir(root) as found:
            entries = [(Path(entry.path), entry.stat(follow_symlinks=False)) for entry in found]
    except OSError:
        return []
    return sorted(path for path, status in entries if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid())


def _owner_is_gone(lease: Path) -> bool:
    try:
        with os.fdopen(os.open(lease, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as reader:
            record = json.loads(reader.read(_LONGEST_LEASE_CHARS))
        host, pid, started_s = str(record["host"]), int(record["pid"]), float(record["started_s"])
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        return False
    if host != socket.gethostname():
        return False
    try:
        return bool(abs(psutil.Process(pid).create_time() - started_s) > _START_TOLERANCE_S)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
