"""Folders that clients sent to the sandbox server, one for each content.

Invariants:
- A folder is named by the digest of its archive and is complete or absent: unpacked aside, then renamed.
"""

import contextlib
import hashlib
import os
import re
import secrets
import tarfile
from pathlib import Path

from swe_rl.sandbox.archive import unpack
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
                    unpack(opened, aside)
            os.rename(aside, self._folder / digest)  # noqa: PTH104
        except (OSError, ValueError, ArithmeticError, RecursionError, tarfile.TarError) as error:
            if self.path(digest) is None:  # not just put there by somebody else
                raise SandboxError(f"the workspace cannot be unpacked: {error}") from error
        finally:
            with contextlib.suppress(OSError):  # it goes with the server's folder
                remove_tree(aside)
