"""How failures read, and which exit status they make."""

import errno
import os

import pytest

from swe_rl.errors import RunError, UserError
from swe_rl.logger.failure import describe_failure, report_failure


def test_user_error_is_a_paragraph(capsys, tmp_path):
    assert report_failure(UserError("the file x is missing; make it"), tmp_path) == 2
    assert capsys.readouterr().err == "error: the file x is missing; make it\n"
    assert list(tmp_path.iterdir()) == []


def test_run_error_shows_the_real_cause(tmp_path, capsys):
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise RunError("cannot write the checkpoint") from error
    except RunError as error:
        assert report_failure(error, tmp_path) == 1
    shown = capsys.readouterr().err
    assert shown == "run failed: cannot write the checkpoint\n  because: OSError: [Errno 28] No space left on device\n"
    assert "Traceback" in (tmp_path / "run.log").read_text()


def test_suppressed_context_is_not_a_cause():
    try:
        try:
            raise ValueError("inner")
        except ValueError:
            raise RunError("outer") from None
    except RunError as error:
        assert "inner" not in describe_failure(error)


def test_our_fault_has_a_traceback_without_secrets(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "abcdefgh1234")
    try:
        raise KeyError("abcdefgh1234")
    except KeyError as error:
        text = describe_failure(error)
    assert "Traceback" in text and "fault of swe_rl" in text
    assert "abcdefgh1234" not in text


def test_interrupt(capsys):
    assert report_failure(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("name", [None, "somewhere/file"])
def test_a_full_disk_is_said_as_one_whoever_wrote(tmp_path, capsys, name):
    """Not every write is of a file of the run: a full disk is nobody's fault, and its way out is the same."""
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
    assert report_failure(error, tmp_path) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said and "free some space" in said and (name or str(tmp_path)) in said
    assert "Traceback" not in said and "fault of swe_rl" not in said
    assert "OSError" in (tmp_path / "run.log").read_text()
    assert report_failure(OSError(errno.ENOENT, "gone"), tmp_path) == 1
    assert "fault of swe_rl" in capsys.readouterr().err
