"""Going back to the newest checkpoint that counts."""

import json
from types import SimpleNamespace

from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import StepLog
from swe_rl.run.learner import load_newest
from swe_rl.trainer.checkpoint.folder import capture_rng, manifest_content, write_file


def test_what_a_kill_left_beside_the_checkpoints_goes_away_also_after_the_last_step(tmp_path):
    folder = RunFolder(tmp_path).create()
    checkpoint = folder.checkpoints / "step_000001"
    checkpoint.mkdir()
    with StepLog(folder) as steps:
        steps.append({"step": 1})
    written = {name: write_file(checkpoint / name, [b"{}"]) for name in ("shards.json", "state.json")}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest_content(written)))
    for name in (".step_000001.old-7", ".step_000002.tmp-7"):
        (folder.checkpoints / name).mkdir()
    saved = SimpleNamespace(step=1, data_order=None, rng=capture_rng())
    trainer = SimpleNamespace(load=lambda checkpoint, wanted: saved)
    assert load_newest(trainer, folder, "hash", 1) == (1, None)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step_000001"]
