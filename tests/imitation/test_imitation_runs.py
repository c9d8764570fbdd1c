"""Attempts of our own runs: which of them are imitated, and what is masked in them."""

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from swe_rl.agent.agent import Turn
from swe_rl.algo.row import Row
from swe_rl.config.compose import compose
from swe_rl.files.json_text import encode_json
from swe_rl.imitation.data import NO_REWARD, Data, Survey, load_data, survey_data
from swe_rl.imitation.formats import read_record
from swe_rl.job.sft import _tell_of_data
from swe_rl.logger.folder import RunFolder, RunState, StatusWriter
from swe_rl.rollout.rows import with_current_advantages
from swe_rl.rollout.trajectory import Status, Trajectory, TrajectoryId
from swe_rl.trainer.ranks.rows_file import keep_rows
from tests.imitation.conftest import atif, mini_swe_traj, openai_row

TURNS = [Turn(0, "m", "false", "", exit_code=1), Turn(1, "m", "true", "", exit_code=0)]


def attempt_of(instance_id, *, number=0, split="train", **values):
    name = TrajectoryId(split, 1, instance_id, 0, number)
    given = {"status": Status.resolved, "reward": 1.0, "trained": True, "in_baseline": True, "turns": TURNS}
    return Trajectory(trajectory_id=str(name), group_id=name.group_id, **asdict(name), **given | values)


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run").create()
    folder.config_yaml.write_text("model: {path: 'builtin:tiny'}\n")
    StatusWriter(folder.status_json, config_hash="a", job="train").finish(RunState.done)
    return folder


def keep(run, attempts, rows=None):
    """Writes a step as a run with gateway.keep_traces=rows does."""
    made = [
        Row(it.trajectory_id, it.group_id, [1, 2, 3, 4], [0, 1, 1, 1], [0, -1, -1, -1], 1.0, [0] * 3, turns=[0, 1, 1])
        for it in attempts
    ]
    run.trajectories(1).write_bytes(b"".join(encode_json(it.to_record()) + b"\n" for it in attempts))
    run.rows_folder.mkdir()
    keep_rows(with_current_advantages(rows or made, attempts), run.rows(1))


def sft_of(*overrides):
    return compose(["job=sft", "sft.heldout_share=0", *overrides]).config.sft


@pytest.mark.parametrize("least", ["1.0", "null"])
def test_attempts_that_were_masked_or_replaced_or_broken_are_not_imitated(run, renderer, least):
    masked = attempt_of("cheated", reward=None, trained=False, cheating={"edits_tests": 1})
    replaced = attempt_of("twice", status=Status.agent_crashed)
    broken = attempt_of("broken", status=Status.infra_error, reward=None)
    keep(run, [attempt_of("good"), masked, replaced, attempt_of("twice", number=1), broken])
    data = load_data(sft_of(f"sft.data=[{run.path}]", f"sft.min_reward={least}"), renderer, 2048)
    assert [one.instance_id for one in data.trained] == ["good", "twice"]
    assert data.trained[1].where.endswith("line 4") and data.left_out == {NO_REWARD: 1}


@pytest.mark.parametrize("record", [atif(), mini_swe_traj()])
def test_our_own_files_tell_what_got_no_reward_and_those_of_others_tell_nothing(record):
    outcome = {"instance_id": "one", "status": "resolved", "reward": None}
    place = record.get("extra", record)
    place.update(outcome)
    assert read_record(record, "f").is_worthless
    place["reward"] = 0.0
    assert not read_record(record, "f").is_worthless
    del place["reward"]
    assert not read_record(record, "f").is_worthless


def test_a_reward_that_is_no_number_is_too_low(write, renderer):
    rows = [openai_row(instance_id="a"), openai_row(instance_id="b", reward=float("nan"))]
    data = load_data(sft_of(f"sft.data=[{write('rows.jsonl', rows)}]"), renderer, 2048)
    assert [one.instance_id for one in data.trained] == ["a"] and data.left_out == {"a lower reward": 1}


def test_kept_rows_tell_which_replies_failed(run, renderer):
    keep(run, [attempt_of("good")])
    sft = sft_of(f"sft.data=[{run.path}]", "sft.mask_errors=true")
    assert survey_data(sft).with_exits == 1
    (example,) = load_data(sft, renderer, 2048).trained
    assert np.flatnonzero(example.loss_mask).tolist() == [2, 3], "the first turn's command failed"


def test_the_warning_counts_the_records_that_do_not_tell_how_commands_ended():
    """One source that tells it must not hide that another one does not."""
    config = compose(["job=sft", "sft.data=[x]", "sft.mask_errors=true"]).config
    said = []
    session = SimpleNamespace(
        warn=said.append,
        progress=SimpleNamespace(message=lambda _: None),
        events=SimpleNamespace(write=lambda *_, **__: None),
    )
    for with_exits in (5, 3):
        survey = Survey(records=5, with_reward=0, with_exits=with_exits, calls_without_tools=0, with_reasoning=0)
        _tell_of_data(config, session, survey, Data())
    assert len(said) == 1 and "masks nothing of 2 of the 5 records" in said[0]
