"""Going back to the newest checkpoint that counts."""

import json
import os
from types import SimpleNamespace

import pytest

from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import StepLog
from swe_rl.run.learner import load_newest
from swe_rl.trainer.checkpoint.folder import capture_rng, manifest_content, write_file


def made(folder, step):
    checkpoint = folder.checkpoints / f"step_{step:06d}"
    checkpoint.mkdir()
    written = {name: write_file(checkpoint / name, [b"{}"]) for name in ("shards.json", "state.json")}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest_content(written)))
    return checkpoint


class Told:
    """What a run's session is told."""

    def __init__(self, folder):
        self.folder, self.lines, self.events = folder, [], []

    def warn(self, text):
        self.lines.append(text)

    def record(self, event, fields):
        self.events.append((event, dict(fields)))


def trainer_at(step):
    saved = SimpleNamespace(step=step, data_order=None, rng=capture_rng())
    return SimpleNamespace(load=lambda checkpoint, wanted: saved)


def without_state(checkpoint):
    (checkpoint / "state.json").unlink()


def cut(checkpoint):
    (checkpoint / "shards.json").write_bytes(b"{")


def deep(checkpoint):
    (checkpoint / "manifest.json").write_text("[" * 100_000)


def piped(checkpoint):
    (checkpoint / "manifest.json").unlink()
    os.mkfifo(checkpoint / "manifest.json")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (without_state, "state.json is missing"),
        (cut, "shards.json has"),
        (deep, "manifest.json cannot be read"),
        (piped, "manifest.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_named_with_the_one_that_is_taken(tmp_path, damage, reason):
    folder = RunFolder(tmp_path).create()
    checkpoints = [made(folder, step) for step in (1, 2, 3)]
    with StepLog(folder) as steps:
        for step in (1, 2, 3):
            steps.append({"step": step})
    session = Told(folder)
    assert load_newest(trainer_at(3), session, "hash", 0) == (3, None) and not session.lines + session.events
    for checkpoint in checkpoints[1:]:
        damage(checkpoint)
    assert load_newest(trainer_at(1), session, "hash", 0) == (1, None)
    assert [line.split(" (")[0] for line in session.lines] == [
        "warning: checkpoint step_000003 is skipped",
        "warning: checkpoint step_000002 is skipped",
    ]
    assert all(line.endswith("the run continues from step_000001") and reason in line for line in session.lines)
    kinds, fields = zip(*session.events, strict=True)
    assert set(kinds) == {"checkpoint_skipped"} and fields[0]["checkpoint"] == "step_000003"
    assert reason in fields[0]["reason"] and fields[0]["continued_from"] == "step_000001"


def test_a_whole_checkpoint_whose_step_has_no_record_is_named_too(tmp_path):
    folder = RunFolder(tmp_path).create()
    made(folder, 1)
    made(folder, 2)
    with StepLog(folder) as steps:
        steps.append({"step": 1})
    session = Told(folder)
    load_newest(trainer_at(1), session, "hash", 0)
    assert "step_000002 is skipped (steps.jsonl has no record of its step)" in session.lines[0]


def test_surplus_checkpoints_go_before_the_next_one_is_written(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path).create()
    for step in (1, 2, 3):
        made(folder, step)
    with StepLog(folder) as steps:
        for step in (1, 2, 3):
            steps.append({"step": step})
    saved = SimpleNamespace(step=3, data_order=None, rng=capture_rng())
    trainer = SimpleNamespace(load=lambda checkpoint, wanted: saved)
    with monkeypatch.context() as patch:
        patch.setattr("os.rename", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
        assert load_newest(trainer, Told(folder), "hash", 1) == (3, None)
    assert len(list(folder.checkpoints.iterdir())) == 3
    assert load_newest(trainer, Told(folder), "hash", 1) == (3, None)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step_000003"]


def test_what_a_kill_left_beside_the_checkpoints_goes_away_also_after_the_last_step(tmp_path):
    folder = RunFolder(tmp_path).create()
    made(folder, 1)
    with StepLog(folder) as steps:
        steps.append({"step": 1})
    for name in (".step_000001.old-7", ".step_000002.tmp-7"):
        (folder.checkpoints / name).mkdir()
    saved = SimpleNamespace(step=1, data_order=None, rng=capture_rng())
    trainer = SimpleNamespace(load=lambda checkpoint, wanted: saved)
    assert load_newest(trainer, Told(folder), "hash", 1) == (1, None)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step_000001"]
