import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.files.disk import (
    DiskError,
    as_os_errors,
    disk_error,
    only_shown,
    placed_by,
    write_bytes_atomic,
    write_json_atomic,
    write_text_atomic,
)
from swe_rl.files.json_text import decode_json, encode_json
from swe_rl.rollout.trajectory import Status

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None))
_values = st.recursive(_scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@given(_values)
def test_whatever_is_written_is_strict_json_on_one_line(value):
    encoded = encode_json(value)
    assert b"\n" not in encoded
    json.loads(encoded, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


@given(st.recursive(st.booleans() | st.integers(-(2**60), 2**60) | st.text(), lambda x: st.lists(x), max_leaves=10))
def test_plain_values_come_back(value):
    assert decode_json(encode_json(value)) == value


def test_not_a_number_becomes_null_and_enums_and_paths_become_text():
    encoded = encode_json({"loss": float("nan"), "status": Status.resolved, "path": Path("/a"), 3: {1, 2}})
    assert json.loads(encoded) == {"loss": None, "status": "resolved", "path": "/a", "3": [1, 2]}


def test_lone_surrogates_do_not_stop_a_record():
    assert json.loads(encode_json({"text": "a\ud800b", "nan": float("nan")})) == {"text": "a?b", "nan": None}


def test_foreign_nan_is_read():
    assert decode_json(b'{"a": NaN}')["a"] != decode_json(b'{"a": NaN}')["a"]


def test_write_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "deep" / "status.json"
    write_json_atomic(path, {"a": 1})
    write_text_atomic(path, "second")
    assert path.read_text() == "second"
    assert [entry.name for entry in path.parent.iterdir()] == ["status.json"]


def test_a_private_file_is_never_readable_by_others(tmp_path, monkeypatch):
    modes, fsync = [], os.fsync

    def seen(descriptor):
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    path = tmp_path / "ours" / "key"
    write_bytes_atomic(path, b"1", mode=0o600)
    write_bytes_atomic(path, b"2", mode=0o600)
    assert path.read_bytes() == b"2" and path.stat().st_mode & 0o777 == 0o600 and set(modes) == {0o600, 0o700}
    assert [one.name for one in path.parent.iterdir()] == ["key"]
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "free some space"), (errno.EIO, "hardware or network")])
def test_failed_write_keeps_the_old_file_and_names_the_way_out(tmp_path, monkeypatch, code, words):
    path = tmp_path / "summary.json"
    write_text_atomic(path, "old")

    def full(descriptor):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match=words) as caught:
        write_text_atomic(path, "new" * 100)
    assert str(path) in str(caught.value) and "MB free" in str(caught.value)
    assert caught.value.exit_status == 1
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device_is_a_disk_error(tmp_path):
    from swe_rl.logger.jsonl import JsonlWriter

    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    with pytest.raises(DiskError, match="No space left"), JsonlWriter(tmp_path / "events.jsonl") as writer:
        writer.append({"a": 1})


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "ours"])
def test_the_key_of_the_folder_that_is_full_is_named(tmp_path, wrapped):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DiskError) as caught, placed_by("job.output", tmp_path / "model"):
        if wrapped:
            raise disk_error(tmp_path / ".model.aside" / "config.json", full) from full
        raise full
    said = str(caught.value)
    assert said.startswith(f"cannot write {tmp_path / 'model'}: No space left on device") and caught.value.__cause__
    assert "free some space or point job.output at another disk" in said and "the same command writes it anew" in said
    assert "paths.outputs" not in said and "trainer.resume" not in said
    with pytest.raises(DiskError, match="closed"), placed_by("job.output", tmp_path):
        raise DiskError("closed")


def test_a_file_that_only_shows_is_said_and_ends_nothing(tmp_path, caplog):
    (tmp_path / "report.html").mkdir()
    with only_shown(tmp_path / "report.html"):
        write_text_atomic(tmp_path / "report.html", "page")
    [said] = caplog.messages
    assert said.startswith(f"{tmp_path / 'report.html'} is not written, and the run goes on without it: ")
    with pytest.raises(ValueError, match="a fault"), only_shown(tmp_path / "report.html"):
        raise ValueError("a fault")


def test_a_full_disk_that_a_library_in_rust_met_is_one_of_ours(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught, as_os_errors(tmp_path / "model.safetensors"):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match="other"), as_os_errors(tmp_path):
        raise RuntimeError("other")
