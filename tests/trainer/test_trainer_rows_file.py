"""Rows that all ranks read from one file: the same rows, nothing executed, nothing left."""

import errno
import json
import os
import resource
import signal
import stat
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.algo.row import Row
from swe_rl.errors import RunError
from swe_rl.hardware.sync import Copier
from swe_rl.trainer.ranks.rows_file import RowsFile, keep_rows, lend_rows, remove_left
from swe_rl.trainer.trainer import TrainerError

_ids = st.lists(st.integers(0, 2**31 - 1), max_size=7)
_routes = st.sampled_from([None, "uint8", "uint16"])
_float32 = st.floats(width=32, allow_nan=False)


@st.composite
def rows(draw) -> Row:
    """Malformed ones too: lengths that do not fit are for the trainer to name."""
    logprobs = draw(st.none() | st.lists(_float32, max_size=7))
    mask = draw(st.lists(st.booleans(), max_size=7))
    names = draw(st.text(max_size=4)), draw(st.text(max_size=4))
    advantage, rewards = draw(st.lists(_float32, max_size=7)), draw(st.none() | st.lists(_float32, max_size=7))
    shape, kind = draw(st.tuples(st.integers(0, 5), st.integers(1, 2), st.integers(1, 3))), draw(_routes)
    routes = None if kind is None else np.arange(np.prod(shape), dtype=kind).reshape(shape)
    return Row(
        *names,
        draw(_ids),
        mask,
        logprobs,
        advantage,
        draw(_ids),
        draw(st.booleans()),
        rewards,
        routes=routes,
        segment=draw(st.integers(0, 3)),
        turns=draw(st.none() | _ids),
    )


@given(st.lists(rows(), max_size=5))
def test_any_rows_come_back_and_the_file_is_gone(written):
    with lend_rows(written, None) as file:
        read = file.rows()
        assert read == written
    assert not file.path.exists()
    assert read == written  # what is mapped stays


def test_an_advantage_that_is_no_number_comes_back():
    with lend_rows([Row("t", "g", [1, 2], [0, 1], None, float("nan"), [0])], None) as file:
        assert np.isnan(file.rows()[0].advantage).all()


def test_a_file_of_0_4_has_one_advantage_a_row():
    old = Row("t", "g", [1, 2, 3], [0, 1, 1], [0.0, -1.0, -2.0], 0.25, [0, 0], trained=False)
    with lend_rows([old], None) as file:
        content = file.path.read_bytes()
        header = json.loads(content[16 : 16 + struct.unpack_from("<8sq", content)[1]])
        header[0][2], kept = 0.25, json.dumps([[*header[0][:2], 0.25, *header[0][3:8]]]).encode()
        start = 16 + len(json.dumps([[*header[0][:2], 2, *header[0][3:]]]).encode())
        values = content[start + -start % 4 : -8]  # without the two advantages
        file.path.write_bytes(struct.pack("<8sq", b"swe_rows", len(kept)) + kept + bytes(-len(kept) % 4) + values)
        assert file.rows() == [old]


def test_rows_that_stay_are_for_whom_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        keep_rows([], tmp_path / "step_000001.bin")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "step_000001.bin").stat().st_mode) == 0o640
    with lend_rows([], None) as file:
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_what_is_read_cannot_be_changed():
    with lend_rows([Row("t", "g", [1, 2], [0, 1], None, 1.0, [0])], None) as file:
        [row] = file.rows()
    with pytest.raises(ValueError, match="read-only"):
        row.token_ids[0] = 9


@pytest.mark.parametrize("damage", ["gone", "cut", "short", "empty", "other"])
def test_a_file_that_is_not_whole_is_an_error_and_never_fewer_rows(tmp_path, damage):
    with lend_rows([Row("t", "g", range(100), [1] * 100, None, 1.0, [0] * 100)] * 3, tmp_path) as file:
        whole = file.path.read_bytes()
    path = tmp_path / "rows.bin"
    contents = {"cut": whole[:-1], "short": whole[:40], "empty": b"", "other": b"no rows " + whole[8:]}
    if damage != "gone":
        path.write_bytes(contents[damage])
    with pytest.raises(TrainerError, match=r"cannot be read from .*rows\.bin.*paths\.outputs"):
        RowsFile(path).rows()


def test_an_error_while_they_are_lent_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError), lend_rows([], tmp_path / "new") as file:
        raise ZeroDivisionError
    assert not file.path.exists() and (tmp_path / "new").is_dir()


def test_a_full_disk_is_one_error_and_leaves_no_file(tmp_path):
    row = Row("t", "g", range(100_000), [0] * 100_000, None, 1.0, [])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))  # as a disk of that size, but for the number of the error
    try:
        with pytest.raises(RunError) as failed, lend_rows([row], tmp_path):
            raise AssertionError("it was written")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert os.strerror(errno.EFBIG) in str(failed.value) and list(tmp_path.iterdir()) == []


def test_a_copy_of_the_run_is_made_without_it(tmp_path):
    with lend_rows([], tmp_path / "trainer") as file:
        Copier(file.path.parent, tmp_path / "copy", rsync=None).copy()
        assert file.path.exists() and list((tmp_path / "copy").iterdir()) == []


def test_what_a_killed_driver_left_is_removed(tmp_path):
    program = (
        "import sys, time; from pathlib import Path\n"
        "from swe_rl.trainer.ranks.rows_file import lend_rows\n"
        f"with lend_rows([], Path({str(tmp_path / 'restart1')!r})): print('lent', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "lent\n"
        process.kill()
    (tmp_path / "rank0.log").touch()
    assert len(list(tmp_path.rglob(".rows.*"))) == 1
    remove_left(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["rank0.log"]
