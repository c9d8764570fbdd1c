"""The scratch folder has what a run needs while it lasts: each user of a machine has one.

Invariants:
- It lies below paths.scratch, or else the folder for temporary files, which all users of a machine share: its name has
  the user's number, nobody else may enter it, and one that is somebody else's, or a link, is not used.
- Standard library only: a batch script tidies up with it.
"""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


class ScratchRefusedError(Exception):
    """The folder cannot be used; the text says which and why."""


def scratch_path(parent: str | None) -> Path:
    return Path(parent or tempfile.gettempdir()).resolve() / f"swe_rl-{os.getuid()}"


def scratch_refusal(path: Path) -> str | None:
    """Says why `path` cannot be this user's, or returns None if it is, or is still to be made."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link"
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is no folder"
    if status.st_uid == os.getuid():
        return None
    return f"{path} belongs to somebody else (uid {status.st_uid})"


def make_scratch(path: Path) -> None:
    """Makes the folder for this user alone. Raises ScratchRefusedError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        refusal = scratch_refusal(path)
        if refusal is None and path.lstat().st_mode & 0o777 != 0o700:
            # The folder is our own, in a place where nobody else can put another one.
            path.chmod(0o700)
    except OSError as error:
        raise ScratchRefusedError(f"{path} cannot be made: {error.strerror or error}") from error
    if refusal is not None:
        raise ScratchRefusedError(refusal)
