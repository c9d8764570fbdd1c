"""Who owns a scratch folder, so that the leftovers of a killed run are found and removed.

Invariants:
- A lease names a process for good (`ProcessIdentity`): a pid that was given to another process does not count.
- Only folders of this user that hold a lease of this host whose owner is gone are removed; anything else is left alone,
  links above all.
- What cannot be read or removed stops nobody's start.
"""

import contextlib
import json
import os
import stat
from pathlib import Path

from swe_rl.host.kill_point import kill_point
from swe_rl.host.process_identity import ProcessIdentity
from swe_rl.sandbox.process_tree import kill_marked
from swe_rl.sandbox.working_copy import remove_tree

LEASE_NAME = "lease.json"
_LONGEST_LEASE_CHARS = 10_000


def write_lease(folder: Path) -> None:
    """Marks `folder` as this process's. Raises OSError."""
    kill_point("scratch_made")
    aside = folder / f".{LEASE_NAME}.new"
    aside.write_text(json.dumps(ProcessIdentity.mine().record()))
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
        return isinstance(record, dict) and ProcessIdentity.read(record).is_gone()
    except (OSError, ValueError, KeyError, RecursionError):
        return False
