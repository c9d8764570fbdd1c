"""Folders that clients sent to the sandbox server, one for each content.

Invariants:
- A folder is named by the digest of its archive and is complete or absent: unpacked aside, then renamed.
- What an archive holds stays below its folder, whatever its names and links say: a name is there once, leads through
  folders of the archive only, and a hard link joins two of its files. Symbolic links may say anything; nobody follows
  them here. No question to the file system decides that: paths that are long enough make its answers wrong.
"""

import contextlib
import hashlib
import os
import posixpath
import re
import secrets
import tarfile
from pathlib import Path

from swe_rl.sandbox.protocol import SandboxError
from swe_rl.sandbox.working_copy import remove_tree

_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest_of(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()


class Workspaces:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path | None:
        """The folder, or None where it was not sent yet. Raises SandboxError for what is no digest."""
        if not _DIGEST.fullmatch(digest):
            raise SandboxError("a workspace is named by the SHA-256 of its archive")
        found = self._folder / digest
        return found if found.is_dir() else None

    def add(self, digest: str, archive: Path) -> None:
        """Raises SandboxError when the archive is another one or cannot be unpacked."""
        if self.path(digest) is not None:
            return
        aside = self._folder / f".{digest}.{secrets.token_hex(4)}"
        try:
            with archive.open("rb") as reader:
                if hashlib.file_digest(reader, "sha256").hexdigest() != digest:
                    raise SandboxError("the workspace's archive arrived damaged")
                reader.seek(0)
                with tarfile.open(fileobj=reader, mode="r:") as opened:
                    opened.extractall(aside, filter=_Contents())
            os.rename(aside, self._folder / digest)  # noqa: PTH104
        except (OSError, ValueError, ArithmeticError, RecursionError, tarfile.TarError) as error:
            if self.path(digest) is None:  # not just put there by somebody else
                raise SandboxError(f"the workspace cannot be unpacked: {error}") from error
        finally:
            with contextlib.suppress(OSError):  # it goes with the server's folder
                remove_tree(aside)


class _Contents:
    """The filter of one archive. Raises FilterError for a member that could touch anything outside."""

    def __init__(self) -> None:
        self._types: dict[str, bytes] = {}

    def __call__(self, member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        name = posixpath.normpath(member.name)
        if name.startswith("/") or name.split("/")[0] == ".." or not self._is_free(name, member):
            raise tarfile.FilterError(f"{member.name!r} lies outside, or in the way of another member")
        if member.islnk() and self._types.get(posixpath.normpath(member.linkname)) != tarfile.REGTYPE:
            raise tarfile.FilterError(f"{member.name!r} is a hard link to {member.linkname!r}, no file of the archive")
        self._types[name] = tarfile.REGTYPE if member.isreg() or member.islnk() else member.type
        # The filter "data" refuses links that lead out, which every virtual environment has.
        return tarfile.tar_filter(member, folder) if member.issym() else tarfile.data_filter(member, folder)

    def _is_free(self, name: str, member: tarfile.TarInfo) -> bool:
        above = ["."] + [name[: place.start()] for place in re.finditer("/", name)]
        if any(self._types.get(folder, tarfile.DIRTYPE) != tarfile.DIRTYPE for folder in above):
            return False
        if member.isdir():
            return self._types.get(name, tarfile.DIRTYPE) == tarfile.DIRTYPE
        return name != "." and name not in self._types
