"""Whose scratch folder it is."""

import os
from pathlib import Path

import pytest

from swe_rl.host.scratch import ScratchRefusedError, make_scratch, scratch_path, scratch_refusal

as_root = pytest.mark.skipif(os.getuid() != 0, reason="gives folders to somebody else")


def test_each_user_has_one_of_the_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mine = scratch_path(str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert scratch_path(str(tmp_path)) == tmp_path / "swe_rl-4711" != mine
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert scratch_path(None) == tmp_path / "temporary/swe_rl-4711"


def test_it_is_made_for_nobody_else(tmp_path: Path):
    path = scratch_path(str(tmp_path / "deep" / "er"))
    before = os.umask(0)
    try:
        make_scratch(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o777)
    make_scratch(path)
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_link_is_refused_and_what_it_leads_to_stays_as_it_is(tmp_path: Path):
    (tmp_path / "foreign").mkdir(mode=0o755)
    scratch_path(str(tmp_path)).symlink_to(tmp_path / "foreign")
    with pytest.raises(ScratchRefusedError, match="is a link"):
        make_scratch(scratch_path(str(tmp_path)))
    assert (tmp_path / "foreign").stat().st_mode & 0o777 == 0o755


@as_root
def test_somebody_elses_is_refused(tmp_path: Path):
    path = scratch_path(str(tmp_path))
    path.mkdir()
    os.chown(path, 65534, 65534)
    assert scratch_refusal(path) == f"{path} belongs to somebody else (uid 65534)"
    with pytest.raises(ScratchRefusedError, match="somebody else"):
        make_scratch(path)


def test_a_file_is_refused(tmp_path: Path):
    scratch_path(str(tmp_path)).write_text("")
    with pytest.raises(ScratchRefusedError, match="is no folder"):
        make_scratch(scratch_path(str(tmp_path)))
    with pytest.raises(ScratchRefusedError, match=r"cannot be made: (Not a directory|File exists)"):
        make_scratch(scratch_path(str(tmp_path / scratch_path(str(tmp_path)).name / "below")))


def test_a_new_one_is_no_reason(tmp_path: Path):
    assert scratch_refusal(scratch_path(str(tmp_path / "nothing"))) is None
