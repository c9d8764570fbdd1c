"""Unpacking archives that others made.

Invariants:
- What an archive holds stays below its folder, whatever its names and links say: a name is there once, leads through
  folders of the archive only, and a hard link joins two of its files. Symbolic links may say anything; nobody follows
  them here. No question to the file system decides that: paths that are long enough make its answers wrong.
- No device, no pipe; what comes out belongs to this user, who may read and write it; others may not write.
- It is the same on every Python from 3.11.0 on: the filters of tarfile came with 3.11.4.
"""

import copy
import os
import posixpath
import re
import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Into `folder`, made where it is missing. Raises TarError and OSError, and ValueError for odd numbers."""
    contents = _Contents()
    # Where Python has filters of its own, it would refuse links that lead out, as every virtual environment has them.
    archive.extraction_filter = lambda member, _: member
    archive.extractall(folder, members=[contents.checked(member) for member in archive])


class _Contents:
    """What was seen of one archive so far."""

    def __init__(self) -> None:
        self._types: dict[str, bytes] = {}

    def checked(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        """The member under its plain name. Raises TarError for one that could touch anything outside."""
        safe = copy.copy(member)
        safe.name = name = posixpath.normpath(member.name)
        if name.startswith("/") or name.split("/")[0] == ".." or not self._is_free(name, member):
            raise tarfile.ExtractError(f"{member.name!r} lies outside, or in the way of another member")
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise tarfile.ExtractError(f"{member.name!r} is no file, folder or link")
        if member.islnk():
            safe.linkname = posixpath.normpath(member.linkname)
            if self._types.get(safe.linkname) != tarfile.REGTYPE:
                raise tarfile.ExtractError(
                    f"{member.name!r} links to {member.linkname!r}, which is no file of the archive"
                )
        self._types[name] = tarfile.REGTYPE if member.isreg() or member.islnk() else member.type
        safe.mode = 0o755 if member.isdir() else member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600
        safe.uid, safe.gid, safe.uname, safe.gname = os.geteuid(), os.getegid(), "", ""
        return safe

    def _is_free(self, name: str, member: tarfile.TarInfo) -> bool:
        above = ["."] + [name[: place.start()] for place in re.finditer("/", name)]
        if any(self._types.get(folder, tarfile.DIRTYPE) != tarfile.DIRTYPE for folder in above):
            return False
        if member.isdir():
            return self._types.get(name, tarfile.DIRTYPE) == tarfile.DIRTYPE
        return name != "." and name not in self._types
