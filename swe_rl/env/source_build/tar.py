"""Writes tar archives of folders and of single files, owned by root, in a fixed order.

Invariants:
- The same content gives the same bytes: names are sorted, times and owners are fixed.
"""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from swe_rl.env.source_build.host_files import links_on_the_way


def write_tar(
    out: IO[bytes],
    *,
    host_files: Iterable[Path] = (),
    folders: Mapping[str, Path] | None = None,
    texts: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    empty: Mapping[str, int] | None = None,
) -> None:
    """Writes a tar archive to `out`.

    `host_files` keep their paths, with all links on the way. The other tables begin with a path in the archive:
    `folders` maps it to a folder, `texts` to a content, `links` to a target, and `empty` an empty folder's path to its
    mode.
    """
    written: set[str] = set()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, mode in sorted((empty or {}).items()):
            _add_folder(tar, name, mode, written)
        for name, target in sorted((links or {}).items()):
            _add_link(tar, name, target, written)
        steps = {step for path in host_files for step in links_on_the_way(path)}
        for step in sorted(steps, key=lambda path: (not path.is_symlink(), str(path))):
            if step.is_symlink():
                _add_link(tar, str(step), str(step.readlink()), written)
            else:
                _add_file(tar, str(step), step, written)
        for inside, folder in (folders or {}).items():
            for path in sorted(folder.rglob("*")):
                name = f"{inside}/{path.relative_to(folder)}"
                if path.is_symlink():
                    _add_link(tar, name, str(path.readlink()), written)
                elif path.is_dir():
                    _add_folder(tar, name, 0o755, written)
                elif path.is_file():
                    _add_file(tar, name, path, written)
        for name, text in sorted((texts or {}).items()):
            _add_bytes(tar, name, text.encode(), 0o644, written)


def _make_member(name: str, mode: int) -> tarfile.TarInfo:
    """Returns the entry of a name, owned by root and with a fixed time."""
    member = tarfile.TarInfo(name.lstrip("/"))
    member.mode, member.mtime, member.uname, member.gname = mode, 946684800, "root", "root"
    return member


def _add_folder(tar: tarfile.TarFile, name: str, mode: int, written: set[str]) -> None:
    if name not in written:
        written.add(name)
        member = _make_member(name, mode)
        member.type = tarfile.DIRTYPE
        tar.addfile(member)


def _add_link(tar: tarfile.TarFile, name: str, target: str, written: set[str]) -> None:
    if name not in written:
        written.add(name)
        member = _make_member(name, 0o777)
        member.type, member.linkname = tarfile.SYMTYPE, target
        tar.addfile(member)


def _add_file(tar: tarfile.TarFile, name: str, path: Path, written: set[str]) -> None:
    if name in written:
        return
    written.add(name)
    status = path.stat()
    member = _make_member(name, (status.st_mode & 0o777) | 0o444)
    member.size = status.st_size
    with path.open("rb") as file:
        tar.addfile(member, file)


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes, mode: int, written: set[str]) -> None:
    if name not in written:
        written.add(name)
        member = _make_member(name, mode)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
