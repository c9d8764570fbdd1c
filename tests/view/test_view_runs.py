import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from swe_rl.files.disk import write_text_atomic
from swe_rl.logger.folder import StatusWriter
from swe_rl.logger.jsonl import StepLog, read_jsonl
from swe_rl.view.answers import Answers
from swe_rl.view.files import ViewError
from swe_rl.view.runs import HELD_OUT, RunIndex
from tests.report.conftest import CONFIG, build_run


def test_every_run_is_a_line_newest_first(runs):
    build_run(runs / "multirun" / "tiny" / "2026" / "0", steps=1)
    (runs / "conf").mkdir()
    (runs / "conf" / "config.yaml").write_text("name: no_run\n")
    rows = RunIndex(runs).rows()
    assert [row["run"] for row in rows] == ["train/first", "multirun/tiny/2026/0"]
    assert rows[0]["name"] == "bugs_grpo" and rows[0]["state"]["label"] == "done" and rows[0]["step"] == 3
    assert rows[0]["before"]["step"] == 0 and rows[0]["after"]["step"] == 3


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"agent": {"name": "gold"}}, "gold"),
        ({"engine": {"kind": "endpoint", "model": "theirs"}}, "theirs"),
        ({"agent": {"name": "bash"}, "engine": {"kind": "embedded", "model": ""}}, "tiny"),
    ],
)
def test_a_run_has_the_name_of_what_acts_in_it(runs, monkeypatch, other, name):
    config = {"name": "n", "job": {"name": "eval"}, "model": {"name": "tiny"}} | other
    monkeypatch.setattr(RunIndex, "config", lambda self, folder: config)
    assert RunIndex(runs).rows()[0]["model"] == name


def test_of_too_many_the_last_are_shown_and_it_is_said(runs, monkeypatch):
    build_run(runs / "train" / "second", steps=1)
    monkeypatch.setattr("swe_rl.view.runs._MOST_RUNS", 1)
    look = RunIndex(runs)
    assert ([row["run"] for row in look.rows()], look.left_out) == (["train/second"], True)
    monkeypatch.setattr("swe_rl.view.runs._MOST_RUNS", 2)
    assert (len(look.rows()), look.left_out) == (2, False)


def test_a_run_can_be_given_itself(folder):
    assert list(RunIndex(folder.path).folders()) == ["first"]
    assert RunIndex(folder.path).folder("first").path == folder.path.resolve()


@pytest.mark.parametrize("name", ["..", "../secret", "train", "train/first/..", "/etc", "train/first/trajectories", ""])
def test_only_runs_below_the_root_have_names(runs, name):
    build_run(runs.parent / "secret", steps=1)
    with pytest.raises(ViewError):
        RunIndex(runs).folder(name)


def test_links_are_not_followed(runs, tmp_path):
    secret = build_run(tmp_path / "secret", steps=1)
    (runs / "linked").symlink_to(secret.path)
    assert list(RunIndex(runs).folders()) == ["train/first"]


def test_a_run_that_went_away_is_not_there(runs, folder):
    look = RunIndex(runs)
    look.rows()
    folder.path.rename(runs / "train" / "second")
    with pytest.raises(ViewError, match="no run"):
        look.folder("train/first")
    assert list(look.folders()) == ["train/second"]


def test_curves_have_every_number_of_a_step(runs, folder):
    with StepLog(folder) as log:
        log.append(
            {"step": 4, "loss": float("nan"), "superseded_tokens": 7, "statuses": {"resolved": 3}, "why": "text"}
        )
    curves = RunIndex(runs).curves(["train/first"], ["superseded_tokens", "statuses/resolved", "why", "nothing"])
    assert curves["columns"][0] == HELD_OUT and {"superseded_tokens", "statuses/resolved"} < set(curves["columns"])
    (curve,) = curves["curves"]
    written = [record["statuses"].get("resolved") for record in read_jsonl(folder.steps_jsonl)]
    assert curve["steps"] == [1, 2, 3, 4]
    assert curve["values"] == {"superseded_tokens": [None, None, None, 7], "statuses/resolved": written}


def test_options_that_differ(runs):
    other = build_run(runs / "train" / "second", steps=1)
    write_text_atomic(other.config_yaml, CONFIG.replace("seed: 7", "seed: 8") + "paths: {outputs: /elsewhere}\n")
    look = RunIndex(runs)
    assert look.options(["train/first", "train/second"]) == [{"key": "trainer.seed", "values": ["7", "8"]}]
    assert look.options(["train/first"]) == []


def test_news_is_a_step_and_no_heartbeat(runs, folder):
    look = RunIndex(runs)
    before = look.stamp("train/first"), look.stamp(None)
    clock = [time.time()]
    status = StatusWriter(folder.status_json, config_hash="h", step=3, clock=lambda: clock[0])
    running = look.stamp("train/first")
    assert running != before[0]
    clock[0] += 60
    status.heartbeat()
    assert look.stamp("train/first") == running
    with StepLog(folder) as log:
        log.append({"step": 4, "reward_mean": 1.0})
    assert look.stamp("train/first") != running and look.stamp(None) != before[1]
    assert RunIndex(runs).curves(["train/first"], ["step"])["curves"][0]["steps"][-1] == 4
    assert look.curves(["train/first"], ["step"])["curves"][0]["steps"][-1] == 4


def test_what_has_not_changed_is_not_parsed_again(runs, folder, monkeypatch):
    look = RunIndex(runs)
    first = look.rows(), look.curves(["train/first"], ["loss"])
    monkeypatch.setattr("swe_rl.logger.folder.parse_yaml", None)
    monkeypatch.setattr("swe_rl.view.runs.read_jsonl", None)
    monkeypatch.setattr("swe_rl.view.runs.read_evals", None)
    assert (look.rows(), look.curves(["train/first"], ["loss"])) == first


@pytest.mark.parametrize("name", ["status.json", "steps.jsonl", "evals.jsonl", "config.yaml"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]\n", b'{"step": "x"}\n', b"name: [\n", b"\x00\xff"])
def test_a_broken_file_takes_only_its_part(runs, folder, name, content):
    (folder.path / name).write_bytes(content)
    look = RunIndex(runs)
    (row,) = look.rows()
    assert row["run"] == "train/first"
    look.curves(["train/first"], ["loss"])
    look.options(["train/first"])


@pytest.mark.parametrize(
    ("call", "refused", "reason"),
    [
        ("open", "closed/evals.jsonl", "evals.jsonl cannot be read (Permission denied)"),
        ("scandir", "closed", "its folder cannot be read (Permission denied)"),
    ],
)
def test_what_one_may_not_read_is_listed_with_its_reason(runs, monkeypatch, call, refused, reason):
    """The refusal is made up: tests may run as root, who may read everything."""
    build_run(runs / "closed", steps=1)
    real = getattr(os, call)

    def refusing(path, *args, **named):
        if Path(path) == runs / refused:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **named)

    monkeypatch.setattr(os, call, refusing)
    look = RunIndex(runs)
    assert {row["run"]: row["damaged"] for row in look.rows()} == {"train/first": "", "closed": reason}
    assert look.stamp(None)


def test_a_folder_that_may_not_be_entered_may_be_a_run(runs, monkeypatch):
    (runs / "closed").mkdir()
    real = os.scandir

    def refusing(path="."):
        if Path(path) == runs / "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert [row["run"] for row in RunIndex(runs).rows() if row["damaged"]] == ["closed"]


@pytest.mark.parametrize(
    "name", ["traces.db", "config.yaml", "rows/step_000002.bin", "programs", "trajectories/step_000009.jsonl"]
)
def test_a_file_of_a_run_that_leads_elsewhere_is_not_shown(runs, folder, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder.path, elsewhere)
    path = folder.path / name
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    target = elsewhere / name if (elsewhere / name).exists() else elsewhere / "steps.jsonl"
    path.symlink_to(target)
    look = RunIndex(runs)
    [row] = look.rows()
    assert row["damaged"] == f"{name} is a link out of the run's folder, and is not followed"
    answers = Answers(runs).by_name
    asked = {"run": ["train/first"], "set": ["step_000002"], "id": ["x"]}
    for question in ("run", "trajectories", "trajectory", "tokens", "prompt"):
        with pytest.raises(ViewError, match="link out"):
            answers[question](asked)
    curves = answers["curves"]({"run": ["train/first"], "column": ["loss"]})
    assert curves["columns"] == [] and curves["curves"][0]["points"] == []


def test_checkpoints_may_be_on_another_disk(runs, folder, tmp_path):
    folder.checkpoints.rename(tmp_path / "large")
    folder.checkpoints.symlink_to(tmp_path / "large")
    assert RunIndex(runs).folder("train/first").path == folder.path
