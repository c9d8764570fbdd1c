import importlib.util
import json
import logging
import struct

import pytest

from swe_rl.config.choices import WandbMode
from swe_rl.config.schema import LoggerConfig
from swe_rl.errors import UserError
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.foreign import Mirrors
from swe_rl.logger.wandb import WandbLogger, check_wandb, mode_of
from tests.support.waiting import wait_until

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


def test_a_server_of_ones_own_that_login_has_noted(tmp_path):
    pytest.importorskip("wandb")
    (tmp_path / ".netrc").write_text("machine wandb.corp.example\n  login user\n  password secret\n")
    with pytest.raises(UserError, match=r"api\.wandb\.ai"):
        check_wandb(ONLINE, {"HOME": str(tmp_path)})
    (tmp_path / ".config" / "wandb").mkdir(parents=True)
    (tmp_path / ".config" / "wandb" / "settings").write_text("[default]\nbase_url = https://wandb.corp.example:8443\n")
    check_wandb(ONLINE, {"HOME": str(tmp_path)})
    with pytest.raises(UserError, match=r"entry for other\.example"):
        check_wandb(ONLINE, {"HOME": str(tmp_path), "WANDB_BASE_URL": "https://other.example"})
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "settings").write_text("not settings at all")
    with pytest.raises(UserError, match=r"api\.wandb\.ai"):
        check_wandb(ONLINE, {"HOME": str(tmp_path), "WANDB_CONFIG_DIR": str(tmp_path / "moved")})


def test_the_environment_may_ask_for_less(tmp_path):
    pytest.importorskip("wandb")
    for wish in ("offline", "disabled", "dryrun"):
        check_wandb(ONLINE, {"HOME": str(tmp_path), "WANDB_MODE": wish})
    assert mode_of(ONLINE, {"WANDB_MODE": "Offline"}) is WandbMode.offline
    assert mode_of(OFFLINE, {"WANDB_MODE": "disabled"}) is WandbMode.disabled
    assert mode_of(OFFLINE, {"WANDB_MODE": "online"}) is WandbMode.offline
    assert mode_of(LoggerConfig(), {"WANDB_MODE": "offline"}) is WandbMode.disabled


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"swe_rl\[wandb\]"):
        check_wandb(OFFLINE, {})


@pytest.mark.slow
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


def test_an_evaluation_beside_training_is_a_curve_over_its_own_steps(tmp_path):
    """Its step is behind those that are logged already; read from what is written for the upload."""
    pytest.importorskip("wandb")
    with WandbLogger(OFFLINE, "run", RunFolder(tmp_path).create(), {}) as mirror:
        mirrors = Mirrors([mirror])
        for step, evaluated in enumerate((0, None, None, 2, 4)):
            if step:
                mirrors.log({"loss": step / 4}, step)
            if evaluated is not None:
                rate = {"step": evaluated, "resolved_rate": evaluated / 8, "by_instance": {"a": [1, 2]}}
                mirrors.evaluated({"split": "heldout", **rate})
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    wait_until(lambda: any(record.HasField("exit") for record in offline_records(file)), 60)  # another process writes
    rows, axes = [], {}
    for record in offline_records(file):
        if items := record.history.item:
            rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
        if record.metric.glob_name:
            axes[record.metric.glob_name] = record.metric.step_metric
    curve = {row["eval/step"]: row["eval/heldout/resolved_rate"] for row in rows if "eval/step" in row}
    assert curve == {0: 0.0, 2: 0.25, 4: 0.5} and axes == {"eval/*": "eval/step"}
    assert {row["_step"]: row["loss"] for row in rows if "loss" in row} == {1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0}
    assert not any("by_instance" in name for row in rows for name in row)


def test_evaluations_that_end_within_one_step_are_all_logged(tmp_path):
    """A row has one value of a name: the last evaluation would replace those before."""
    pytest.importorskip("wandb")
    with WandbLogger(OFFLINE, "run", RunFolder(tmp_path).create(), {}) as mirror:
        mirrors = Mirrors([mirror])
        mirrors.log({"loss": 0.5}, 1)
        for step in (1, 2, 3):
            mirrors.evaluated({"split": "heldout", "step": step, "resolved_rate": step / 8})
            mirrors.evaluated({"split": "other", "step": step, "resolved_rate": step / 4})
        mirrors.log({"loss": 0.25}, 2)
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    wait_until(lambda: any(record.HasField("exit") for record in offline_records(file)), 60)  # another process writes
    items = [record.history.item for record in offline_records(file) if record.history.item]
    rows = [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row} for row in items]
    for split, share in (("heldout", 1 / 8), ("other", 1 / 4)):
        name = f"eval/{split}/resolved_rate"
        curve = [(row["eval/step"], row[name]) for row in rows if name in row]
        assert curve == [(step, step * share) for step in (1, 2, 3)]
    assert {row["_step"]: row["loss"] for row in rows if "loss" in row} == {1: 0.5, 2: 0.25}


def offline_records(path):
    """What `wandb sync` would send: LevelDB's log format, blocks of 32 KiB after seven bytes of a header."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


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
