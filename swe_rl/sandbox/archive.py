"""This module unpacks archives that others made.

Invariants:
- What an archive holds stays below its folder, whatever its names and links say: a name is there once, leads through
  folders of the archive only, and a hard link joins two of its files. Symbolic links may say anything; nobody follows
  them here. No question to the file system decides that: paths that are long enough make its answers wrong.
- No device and no pipe comes out. What comes out belongs to this user, who may read and write it; others may not write.
- All of this holds on every Python from 3.11.0 on, while the filters of tarfile came with 3.11.4.
- A folder is named by the digest of its archive. It is complete or absent, because it is unpacked aside, then renamed.
"""

import contextlib
import copy
import hashlib
import os
import posixpath
import re
import secrets
import tarfile
from pathlib import Path

from swe_rl.sandbox.sandbox import SandboxError
from swe_rl.sandbox.working_copy import remove_tree


def unpack_archive(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpacks an archive into `folder`, which is made where it is missing.

    Raises TarError for a member that is refused, OSError, and ValueError where the archive has odd numbers.
    """
    contents = _Contents()
    # Where Python has filters of its own, it would refuse links that lead out, as every virtual environment has them.
    archive.extraction_filter = lambda member, _: member
    archive.extractall(folder, members=[contents.checked(member) for member in archive])


class _Contents:
    """This remembers what was seen of one archive so far."""

    def __init__(self) -> None:
        self._types: dict[str, bytes] = {}

    def checked(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        """Returns a copy of the member under its plain name. Raises TarError for one that could touch the outside."""
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
        if member.isreg() or member.islnk():
            self._types[name] = tarfile.REGTYPE
        else:
            self._types[name] = member.type
        if member.isdir():
            safe.mode = 0o755
        else:
            safe.mode = member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600
        safe.uid, safe.gid, safe.uname, safe.gname = os.geteuid(), os.getegid(), "", ""
        return safe

    def _is_free(self, name: str, member: tarfile.TarInfo) -> bool:
        above = ["."] + [name[: place.start()] for place in re.finditer("/", name)]
        if any(self._types.get(folder, tarfile.DIRTYPE) != tarfile.DIRTYPE for folder in above):
            return False
        if member.isdir():
            return self._types.get(name, tarfile.DIRTYPE) == tarfile.DIRTYPE
        return name != "." and name not in self._types


_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest_of(archive: bytes) -> str:
    """Returns the digest by which an archive, and the folder that is unpacked from it, are named."""
    return hashlib.sha256(archive).hexdigest()


class Workspaces:
    """This keeps the unpacked folders that clients sent, each under the digest of its archive."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path | None:
        """Returns the folder, or None where it was not sent yet. Raises SandboxError for what is no digest."""
        if not _DIGEST.fullmatch(digest):
            raise SandboxError("a workspace is named by the SHA-256 of its archive")
        folder = self._folder / digest
        if folder.is_dir():
            return folder
        return None

    def add(self, digest: str, archive: Path) -> None:
        """Unpacks an archive under its digest. Raises SandboxError when it is another one or cannot be unpacked."""
        if self.path(digest) is not None:
            return
        aside = self._folder / f".{digest}.{secrets.token_hex(4)}"
        try:
            with archive.open("rb") as reader:
                if hashlib.file_digest(reader, "sha256").hexdigest() != digest:
                    raise SandboxError("the workspace's archive arrived damaged")
                reader.seek(0)
                with tarfile.open(fileobj=reader, mode="r:") as opened:
                    unpack_archive(opened, aside)
            os.rename(aside, self._folder / digest)  # noqa: PTH104
        except (OSError, ValueError, ArithmeticError, RecursionError, tarfile.TarError) as error:
            # Somebody else may just have put the same folder there, and then there is nothing to complain about.
            if self.path(digest) is None:
                raise SandboxError(f"the workspace cannot be unpacked: {error}") from error
        finally:
            # Whatever is left goes with the server's folder.
            with contextlib.suppress(OSError):
                remove_tree(aside)
