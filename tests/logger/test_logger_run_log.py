import io
import logging
import warnings
from pathlib import Path

import pytest

from swe_rl.files.disk import DiskError
from swe_rl.files.redactor import Redactor
from swe_rl.logger.run_log import RunLog

ENVIRON = {
    "WANDB_API_KEY": "k1234567890",
    "MY_SECRET": "hunter2",
    "TOKENIZERS_PARALLELISM": "false",
    "MAX_TOKENS": "4096",
    "HF_TOKEN_PATH": "/tmp",
    "HOME": "plain-value",
    "EMPTY_TOKEN": "",
}


def test_file_has_everything_console_has_each_warning_once(tmp_path):
    console = io.StringIO()
    log = logging.getLogger("swe_rl.test")
    with RunLog(tmp_path / "run.log", console=console):
        log.info("all is well")
        for _ in range(3):
            log.warning("disk %s", "slow")
        log.error("broken")
    assert console.getvalue() == "WARNING: disk slow\nERROR: broken\n"
    text = (tmp_path / "run.log").read_text()
    assert text.count("disk slow") == 3 and "INFO swe_rl.test: all is well" in text


def test_secrets_appear_nowhere_tracebacks_included(tmp_path):
    console = io.StringIO()
    with RunLog(tmp_path / "run.log", console=console, redactor=Redactor.from_environ(ENVIRON)):
        try:
            raise ValueError("key k1234567890 refused")
        except ValueError:
            logging.getLogger("x").exception("login with %s failed", "hunter2")
    for text in (console.getvalue(), (tmp_path / "run.log").read_text()):
        assert "login with *** failed" in text and "key *** refused" in text
        assert "k1234567890" not in text and "hunter2" not in text


def test_what_cannot_be_a_secret_is_left_alone():
    text = "false 4096 /tmp plain-value"
    assert Redactor.from_environ(ENVIRON).text(text) == text
    assert Redactor.from_environ({}).text(text) == text


def test_longer_secret_wins_over_the_one_inside_it():
    redactor = Redactor.from_environ({"A_KEY": "abcd", "B_KEY": "abcdefgh"})
    assert redactor.text("abcdefgh abcd") == "*** ***"


def test_root_logger_is_given_back(tmp_path):
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    hydra_like = logging.StreamHandler(io.StringIO())
    root.addHandler(hydra_like)
    try:
        with pytest.raises(RuntimeError), RunLog(tmp_path / "run.log", console=io.StringIO()):
            assert hydra_like not in root.handlers
            raise RuntimeError
        assert hydra_like in root.handlers
    finally:
        root.removeHandler(hydra_like)
    assert (root.level, list(root.handlers)) == before


def test_python_warnings_go_into_the_log(tmp_path):
    with RunLog(tmp_path / "run.log", console=io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old option", stacklevel=1)
    assert "old option" in (tmp_path / "run.log").read_text()


def test_resumed_run_appends(tmp_path):
    for word in ("first", "second"):
        with RunLog(tmp_path / "run.log", console=io.StringIO()):
            logging.getLogger("x").info(word)
    assert len((tmp_path / "run.log").read_text().splitlines()) == 2


def test_unwritable_log_is_a_disk_error(tmp_path):
    (tmp_path / "run.log").mkdir()
    with pytest.raises(DiskError, match=r"run\.log"):
        RunLog(tmp_path / "run.log")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_once_and_ends_nothing(tmp_path, capsys):
    (tmp_path / "run.log").symlink_to("/dev/full")
    with RunLog(tmp_path / "run.log", console=io.StringIO()):
        for number in range(3):
            logging.getLogger("x").info("line %d", number)
    said = capsys.readouterr().err
    assert said.count("No space left") == 1 and "run.log" in said and "Traceback" not in said
