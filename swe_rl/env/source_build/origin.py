"""Finds what a tree is made of: a source distribution, an archive, a folder, or a git repository.

Invariants:
- The same row and the same content give the same `key`, and no key needs anything unpacked.
- The tree takes only the base commit's files of a git repository: no history, no change that was not committed.
"""

import hashlib
import re
import shutil
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.repository import clone_at, git_output, is_address
from swe_rl.env.source_build.sdist import ENDINGS, fetch_sdist, release_time, split_name, unpack_sdist
from swe_rl.sandbox.archive import unpack_archive as unpack_tar

# Files are hashed in blocks, so that large ones do not fill the memory.
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Origin:
    """Says what a tree is made of. `path` is an archive or a folder, and `commit` is of the folder's repository."""

    name: str  # This is the name of the distribution.
    version: str  # The tree calls itself by this version.
    key: str
    path: Path
    commit: str = ""

    def unpack(self, destination: Path) -> None:
        """Writes the tree as it was published. Raises BuildError."""
        if self.commit:
            _unpack_commit(self.path, self.commit, destination)
        elif self.path.is_dir():
            shutil.copytree(self.path, destination, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        else:
            unpack_sdist(self.path, destination)

    def released(self) -> datetime | None:
        """Returns when its files were made, and None where they do not say it. Raises BuildError."""
        if self.commit:
            text = git_output(self.path, "show", "--no-patch", "--format=%cI", self.commit)
            return datetime.fromisoformat(text.strip()).astimezone(UTC)
        if self.path.is_dir():
            newest = max((path.lstat().st_mtime for path in self.path.rglob("*")), default=0.0)
            return datetime.fromtimestamp(newest, tz=UTC)
        return release_time(self.path)


def origin_of(instance: Instance, cache: Path) -> Origin:
    """Returns the origin that the instance's source names, and fetches what is not here.

    Raises InstanceError, BuildError.
    """
    source = instance.source
    if source is None:
        raise InstanceError(
            f"{instance.instance_id} has neither a column 'source' nor a folder: it needs its container image "
            f"({instance.image or 'env.image_template names it'}) and sandbox=docker or podman"
        )
    if source.sdist:
        name, version = split_name(source.sdist)
        return Origin(name, version, source.sdist.lower(), fetch_sdist(source.sdist, cache))
    path = Path(source.archive or source.tree).expanduser().resolve()
    where = f"{instance.instance_id}: source.{'archive' if source.archive else 'tree'}={source.origin}"
    version = instance.version if re.fullmatch(r"[\d.]+", instance.version) else "0"
    if source.archive:
        if not path.is_file() or not path.name.endswith(ENDINGS):
            raise InstanceError(f"{where} is no file of this machine that ends with {', '.join(ENDINGS)}")
        return Origin(path.name, version, f"{_make_slug(path.name)}-{hash_of_file(path)[:12]}", path)
    if is_address(source.tree):
        path = clone_at(source.tree, instance.base_commit, cache)
    elif not path.is_dir():
        raise InstanceError(f"{where} is no folder of this machine")
    elif not (path / ".git").exists():
        return Origin(path.name, version, f"{_make_slug(path.name)}-{_hash_of_folder(path)[:12]}", path)
    try:
        commit = git_output(path, "rev-parse", "--verify", "--quiet", f"{instance.base_commit}^{{commit}}").strip()
    except BuildError as error:
        raise InstanceError(f"{where} is a git repository without base_commit={instance.base_commit}") from error
    return Origin(path.name.removesuffix(".git"), version, f"{_make_slug(path.name)}-{commit[:12]}", path, commit)


def _unpack_commit(repository: Path, commit: str, destination: Path) -> None:
    packed = destination.with_name(f".{destination.name}.tar")
    try:
        git_output(repository, "archive", "--format=tar", f"--output={packed}", commit)
        with tarfile.open(packed) as tar:
            unpack_tar(tar, destination)
    except (OSError, tarfile.TarError) as error:
        raise BuildError(f"{repository}: commit {commit[:12]} cannot be unpacked ({error})") from error
    finally:
        with suppress(OSError):  # The folder may take no change any more; the error above says so then.
            packed.unlink()


@cache
def hash_of_file(path: Path) -> str:
    """Returns the hash of a file's content, which is read once in a process."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _hash_of_folder(folder: Path) -> str:
    """Returns a hash of the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or path.is_file():
            content = str(path.readlink()) if path.is_symlink() else hash_of_file(path)
            digest.update(f"{path.relative_to(folder)}\0{content}\0".encode())
    return digest.hexdigest()


def _make_slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).lower()
