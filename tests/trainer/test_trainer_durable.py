import errno
import hashlib
import os

import pytest

from swe_rl.trainer.checkpoint.folder import file_sha256, write_file


def test_size_and_hash_are_those_of_the_file(tmp_path):
    size, digest = write_file(tmp_path / "x", [b"ab", memoryview(b"cde"), b""])
    assert (tmp_path / "x").read_bytes() == b"abcde"
    assert (size, digest) == (5, hashlib.sha256(b"abcde").hexdigest())
    assert file_sha256(tmp_path / "x") == digest


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:2]))
    write_file(tmp_path / "x", [b"abcdefg"])
    assert (tmp_path / "x").read_bytes() == b"abcdefg"


def test_an_error_closes_the_file(tmp_path, monkeypatch):
    closed = []
    close = os.close
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(descriptor), close(descriptor)))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "x", [b"a"])
    assert len(closed) == 1


def test_an_existing_file_is_never_overwritten(tmp_path):
    (tmp_path / "x").write_text("old")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "x", [b"new"])
