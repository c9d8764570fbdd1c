"""Archives of others; what cannot leave its folder is asked where workspaces arrive (test_sandbox_remote.py)."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from swe_rl.sandbox.archive import unpack_archive


def packed(*members: tarfile.TarInfo) -> tarfile.TarFile:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return tarfile.open(fileobj=io.BytesIO(made.getvalue()))


def member(name: str, kind: bytes = tarfile.REGTYPE, **changes: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.uid, made.uname = kind, 12345, "nobody-we-know"
    for key, value in changes.items():
        setattr(made, key, value)
    return made


@pytest.mark.parametrize(("sent", "kept"), [(0o6777, 0o755), (0o4600, 0o600), (0o066, 0o644), (0o555, 0o755)])
def test_a_program_stays_one_and_others_cannot_change_it(tmp_path: Path, sent: int, kept: int):
    with packed(member("a/./file", mode=sent, size=3, mtime=1_000_000_000)) as archive:
        unpack_archive(archive, tmp_path / "out")
    status = (tmp_path / "out" / "a" / "file").stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_size) == (kept, os.geteuid(), 3)
    assert status.st_mtime == 1_000_000_000


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_only_files_folders_and_links_come_out(tmp_path: Path, kind: bytes):
    with packed(member("odd", kind)) as archive, pytest.raises(tarfile.TarError, match="no file, folder or link"):
        unpack_archive(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_hard_link_is_to_the_archives_own_file_however_it_is_written(tmp_path: Path):
    (tmp_path / "file").write_text("of the host")
    links = [member("out", tarfile.SYMTYPE, linkname="../deep"), member("in", tarfile.LNKTYPE, linkname="out/../file")]
    (tmp_path / "deep").mkdir()
    with packed(member("file", size=1), *links) as archive:
        unpack_archive(archive, tmp_path / "w")
    assert (tmp_path / "w" / "in").samefile(tmp_path / "w" / "file")
