import importlib.util
import logging

import pytest

from swe_rl.config.choices import WandbMode
from swe_rl.config.schema import LoggerConfig
from swe_rl.errors import UserError
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.wandb import WandbLogger, check_wandb

OFFLINE = LoggerConfig(wandb=WandbMode.offline, project="tests")
ONLINE = LoggerConfig(wandb=WandbMode.online)


def test_disabled_does_nothing_and_needs_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with WandbLogger(LoggerConfig(), "run", RunFolder(tmp_path), {}) as mirror:
        mirror.log({"loss": 1.0}, step=1)
        mirror.summarize({"steps": 1})
    assert list(tmp_path.iterdir()) == []


def test_online_without_a_key_is_refused_and_names_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with pytest.raises(UserError, match="logger.wandb=offline"):
        WandbLogger(ONLINE, "run", RunFolder(tmp_path / "run"), {})
    assert not (tmp_path / "run").exists()


def test_key_is_found_in_the_environment_or_in_netrc(tmp_path):
    pytest.importorskip("wandb")
    check_wandb(ONLINE, {"WANDB_API_KEY": "x" * 40})
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai\n  login user\n  password secret\n")
    check_wandb(ONLINE, {"NETRC": str(netrc)})
    check_wandb(ONLINE, {"HOME": str(tmp_path)})
    with pytest.raises(UserError):
        check_wandb(ONLINE, {"NETRC": str(netrc), "WANDB_BASE_URL": "https://wandb.example.org:8080/"})


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"swe_rl\[wandb\]"):
        check_wandb(OFFLINE, {})


def test_offline_for_real_then_resumed_under_the_same_id(tmp_path):
    pytest.importorskip("wandb")
    folder = RunFolder(tmp_path).create()
    for step in (1, 2):
        with WandbLogger(OFFLINE, "run", folder, {"trainer": {"steps": 2}}) as mirror:
            mirror.log({"loss": 0.5, "statuses": {"resolved": 3}}, step=step)
            mirror.summarize({"steps": step})
    run_id = folder.wandb_id.read_text().strip()
    files = list(tmp_path.glob(f"wandb/offline-run-*/run-{run_id}.wandb"))
    assert len(files) == 2 and all(file.stat().st_size > 0 for file in files)
    assert any(b"statuses/resolved" in file.read_bytes() for file in files)  # a loaded machine may cut one short


def test_failure_in_mid_run_is_one_warning(tmp_path, caplog):
    pytest.importorskip("wandb")

    class Failing:
        def log(self, record, step):
            raise ConnectionError("gone")

    mirror = WandbLogger(OFFLINE, "run", RunFolder(tmp_path), {})
    mirror._run = Failing()
    with caplog.at_level(logging.WARNING):
        mirror.log({}, step=1)
        mirror.log({}, step=2)
        mirror.finish()
    assert [record.getMessage() for record in caplog.records] == [
        "wandb failed to log (ConnectionError: gone); the run goes on without it"
    ]


def test_upload_that_hangs_does_not_hold_the_end(tmp_path, caplog):
    pytest.importorskip("wandb")
    import threading

    class Hanging:
        def finish(self, exit_code):
            threading.Event().wait(5)

    mirror = WandbLogger(OFFLINE, "run", RunFolder(tmp_path), {})
    mirror._run = Hanging()
    mirror.finish(timeout_s=0.05)
    assert "wandb sync" in caplog.text
