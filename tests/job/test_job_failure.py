"""How failures read, and which exit status they make."""

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
