"""job=sft on files and on runs, and job=rft, as commands; a run's own attempts are imitated token by token."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from swe_rl.config.compose import compose
from swe_rl.gateway.store.schema import read_traces
from swe_rl.imitation.data import load_data, survey_data
from swe_rl.imitation.record import DataError
from swe_rl.imitation.run_folder import read_run, require_same_tokens
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_jsonl
from swe_rl.model.load import load_tokenizer, model_folder
from swe_rl.model.make_renderer import make_renderer
from swe_rl.rollout.rows import traced_rows
from swe_rl.rollout.trajectory import Trajectory
from tests.end_to_end.conftest import read
from tests.imitation.conftest import mini_swe_traj, openai_row, swe_agent_traj, swe_smith_row

pytestmark = pytest.mark.slow
VOCABULARY = 10**9  # no size of a vocabulary is compared where both tokenizers are there


SFT = ("job=sft", "name=imitation", "sft.lr=1e-3", "sft.epochs=4", "sft.examples_per_batch=2", "sft.heldout_share=0.2")


def sft_of(*overrides):
    return compose(["job=sft", *overrides]).config.sft


@pytest.fixture(scope="module")
def finished_run(finished):
    return finished.folder()


@pytest.fixture(scope="module")
def renderer():
    model = compose([]).config.model
    return make_renderer(model, load_tokenizer(model))


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_tokens_are_those_that_were_sampled(finished_run, renderer):
    before = snapshot(finished_run)
    sampled = list(read_run(finished_run))
    assert snapshot(finished_run) == before
    records = [record for file in sorted((finished_run / "trajectories").glob("step_*")) for record in read_jsonl(file)]
    attempts = {record["trajectory_id"]: Trajectory.from_record(record) for record in records}
    rows = [
        row
        for attempt in attempts.values()
        for row in traced_rows(attempt, read_traces(finished_run / "traces.db", attempt.trajectory_id, in_use=False))
    ]
    assert len(sampled) == len(rows) > 0
    for ours, row in zip(sampled, rows, strict=True):
        assert np.array_equal(ours.token_ids, row.token_ids) and np.array_equal(ours.loss_mask, row.loss_mask)
    assert {ours.reward for ours in sampled} == {attempt.reward for attempt in attempts.values()}


def test_what_failed_is_what_the_record_says(finished_run):
    for sampled in read_run(finished_run):
        assert not (sampled.failed_mask & ~sampled.loss_mask).any()
    records = read_jsonl(next((finished_run / "trajectories").glob("step_*")))
    failed = any(turn["exit_code"] or turn["format_error"] for record in records for turn in record["turns"])
    assert any(sampled.failed_mask.any() for sampled in read_run(finished_run)) == failed


def test_only_what_resolved_is_imitated_by_default(finished_run, renderer):
    resolved = sum(sampled.reward == 1 for sampled in read_run(finished_run))
    sft = sft_of(f"sft.data=[{finished_run}]", "sft.heldout_share=0")
    assert survey_data(sft).with_reward == survey_data(sft).records > resolved
    if resolved:
        assert len(load_data(sft, renderer, 2048).trained) == resolved
    else:
        with pytest.raises(DataError, match="a lower reward"):
            load_data(sft, renderer, 2048)


def test_a_run_without_tokens_and_one_without_attempts_are_refused(finished_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder, ignore=shutil.ignore_patterns("traces.db*", "checkpoints"))
    with pytest.raises(DataError, match=r"not their tokens.*gateway\.keep_traces=all"):
        list(read_run(folder))
    shutil.rmtree(folder / "trajectories")
    with pytest.raises(DataError, match="has no attempts"):
        list(read_run(folder))


def test_a_run_of_another_tokenizer_is_refused(finished_run, tmp_path):
    ours = model_folder(compose([]).config.model)
    require_same_tokens([str(finished_run)], ours, VOCABULARY)
    other = tmp_path / "other"
    shutil.copytree(ours, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DataError, match=r"has the tokens of another model.*gives .* another id \(2 tokens differ\)"):
        require_same_tokens([str(finished_run)], other, VOCABULARY)
    assert RunFolder(finished_run).config()["model"]["path"].startswith("builtin:")


def rows_file(folder, number=6):
    path = folder / "rows.jsonl"
    rows = [openai_row(instance_id=f"i{place}", resolved=place != 1) for place in range(number)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def losses(folder):
    return [(line["step"], line["loss"], line.get("heldout_loss")) for line in read(folder / "steps.jsonl")]


def test_files_of_any_format_are_imitated_and_the_held_out_loss_falls(command, tmp_path):
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    rows_file(mixed)
    for name, content in (
        ("a.traj", swe_agent_traj()),
        ("b.traj.json", mini_swe_traj()),
        ("c.json", [swe_smith_row()]),
    ):
        (mixed / name).write_text(json.dumps(content))
    done = command.run(*SFT, f"sft.data=[{mixed}]", "sft.mask_errors=true", small=False)
    assert done.exit_status == 0, done.text
    assert (
        "9 records, 6 conversations" in done.stdout
        and "1 left out: a lower reward than sft.min_reward=1.0" in done.stdout
    )
    folder = command.folder("imitation")
    figures = json.loads((command.outputs / "sft" / "tiny" / "warm_start.json").read_text())
    assert figures["heldout_examples"] == 2 and figures["heldout_loss_after"] < figures["heldout_loss_before"]
    measured = [loss for _, _, loss in losses(folder) if loss is not None]
    assert len(measured) == 4 and measured[-1] == figures["heldout_loss_after"]
    assert (folder / "report.html").is_file()


def test_killed_and_resumed_equals_uninterrupted(command, tmp_path):
    data = f"sft.data=[{rows_file(tmp_path)}]"
    often = "sft.checkpoint_every_steps=1"
    whole = command.run(*SFT, data, often, "name=whole", f"sft.output={tmp_path / 'whole'}", small=False)
    assert whole.exit_status == 0, whole.text
    ours = ("name=train", f"sft.output={tmp_path / 'ours'}", "trainer.resume=auto")
    process = command.start(*SFT, data, often, *ours, small=False)
    command.wait_for_checkpoint(process, 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    resumed = command.run(*SFT, data, often, *ours, small=False)
    assert resumed.exit_status == 0 and "continues after step" in resumed.stdout, resumed.text
    assert losses(command.folder("train")) == losses(command.folder("whole"))
    names = ("model.safetensors", "warm_start.json")
    assert [(tmp_path / "ours" / name).read_bytes() for name in names] == [
        (tmp_path / "whole" / name).read_bytes() for name in names
    ]
    rows_file(tmp_path, number=7)
    again = command.run(*SFT, data, often, *ours[:2], f"trainer.resume={command.folder('train')}", small=False)
    assert again.exit_status == 2 and "the examples are others than when this run began" in again.stderr, again.text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"messages": [{"role": "user"}, {"role": "robot"}]}', "rows.jsonl, line 7: messages[1].role is 'robot'"),
        ('{"messages": ', "rows.jsonl, line 7: this is not JSON"),
        ('{"prompt": "p"}', "rows.jsonl, line 7: this is no trajectory of a format that is known"),
    ],
)
def test_a_bad_row_ends_with_one_paragraph_before_a_model_is_loaded(command, tmp_path, line, words):
    path = rows_file(tmp_path)
    path.write_text(path.read_text() + line + "\n")
    done = command.run(*SFT, f"sft.data=[{path}]", small=False)
    said = done.stderr.strip()
    assert done.exit_status == 2 and words in " ".join(said.split()), done.text
    assert "Traceback" not in done.text and "\n\n" not in said and not (command.outputs / "imitation").exists()


def test_attempts_of_a_run_are_imitated(command, finished_run, tmp_path):
    done = command.run(*SFT, f"sft.data=[{finished_run}]", "sft.min_reward=null", small=False)
    assert done.exit_status == 0, done.text
    attempts = sum(1 for _ in read_run(finished_run))
    assert f"data: {attempts} records" in done.stdout
    # What the policy sampled itself is likely to it: far below the loss on foreign words.
    assert losses(command.folder("imitation"))[0][1] < 1.0


def test_rejection_sampling_trains_what_resolved_alone(command):
    done = command.run("job=rft", "trainer.steps=2", "trainer.resume=auto")
    assert done.exit_status == 0, done.text
    folder = command.folder("rft")
    kept = 0
    for step in read(folder / "steps.jsonl"):
        attempts = read(RunFolder(folder).trajectories(step["step"]))
        for attempt in attempts:
            assert attempt["trained"] == (attempt["reward"] == 1.0) == (attempt["advantage"] == 1.0)
        kept += sum(attempt["trained"] for attempt in attempts)
        assert step["trained_rows"] == step["kept_attempts"] == sum(attempt["trained"] for attempt in attempts)
        assert step["clip_fraction"] == 0.0
    assert kept > 0 and len(read(folder / "evals.jsonl")) == 2
    assert "algo rft" in done.stdout


def test_rejection_sampling_killed_and_resumed_equals_uninterrupted(command, tmp_path):
    whole = command.run("job=rft", "name=whole")
    assert whole.exit_status == 0, whole.text
    process = command.start("job=rft", "name=train", "trainer.resume=auto")
    command.wait_for_checkpoint(process, 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    resumed = command.run("job=rft", "name=train", "trainer.resume=auto")
    assert resumed.exit_status == 0, resumed.text
    figures = [
        [(step["step"], step["loss"], step["reward_mean"], step["trained_tokens"]) for step in command.steps(name)]
        for name in ("whole", "train")
    ]
    assert figures[0] == figures[1]


def test_check_answers_for_rejection_sampling(command):
    checked = command.run("job=check", "job.of=rft")
    assert checked.exit_status == 0, checked.text
    refused = command.run("job=rft", "algo=grpo")
    assert refused.exit_status == 2 and "algo=rft, or job=train" in refused.stderr
