"""Who owns a scratch folder, so that the leftovers of a killed run are found and removed.

Invariants:
- A lease names a process by host, pid and start time: a pid that was given to another process does not count.
- Only folders that hold a lease of this host whose owner is gone are removed; anything else is left alone.
"""

import json
import os
import socket
from pathlib import Path

import psutil

from swe_rl.sandbox.process_tree import kill_marked
from swe_rl.sandbox.working_copy import remove_tree

LEASE_NAME = "lease.json"
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
    if not scratch_root.is_dir():
        return []
    removed = []
    for lease in sorted(scratch_root.glob(f"*/{LEASE_NAME}")):
        if _owner_is_gone(lease):
            kill_marked(f"{lease.parent}{os.sep}")
            remove_tree(lease.parent)
            removed.append(lease.parent)
    return removed


def _owner_is_gone(lease: Path) -> bool:
    try:
        record = json.loads(lease.read_text())
        host, pid, started_s = str(record["host"]), int(record["pid"]), float(record["started_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if host != socket.gethostname():
        return False
    try:
        return bool(abs(psutil.Process(pid).create_time() - started_s) > _START_TOLERANCE_S)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
