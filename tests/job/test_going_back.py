"""Going back to the newest checkpoint that counts."""

import json
from types import SimpleNamespace

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
        assert load_newest(trainer, folder, "hash", 1) == (3, None)
    assert len(list(folder.checkpoints.iterdir())) == 3
    assert load_newest(trainer, folder, "hash", 1) == (3, None)
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
    assert load_newest(trainer, folder, "hash", 1) == (1, None)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step_000001"]
