"""MLPerf's log of a run: its lines, its end, and what the checker of MLCommons says of it."""

import json
import subprocess
import sys

import pytest

from swe_rl.config.compose import compose
from swe_rl.config.composition.values import flatten_config
from swe_rl.logger.mllog import FILE, MllogLogger

RULES = ("rollout.prompts_per_step=16", "rollout.n=16", "trainer.lr=1e-6", "trainer.grad_clip=0.125")


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def logged(tmp_path):
    def make(*overrides, target=0.69, **changed):
        flat = flatten_config(compose(["+experiment=mlperf_swe_grpo_tiny", *RULES, *overrides]).config) | changed
        return MllogLogger(tmp_path, flat, target, Clock())

    return make


def evaluate(folder, logger, step, solved, tasks=4):
    by_instance = {f"task-{number}": [int(number < solved), 4] for number in range(tasks)}
    event = {"step": step, "split": "heldout", "eval_s": 30.0, "by_instance": by_instance}
    with (folder / "evals.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    logger.evaluated({}, step)


def test_a_task_whose_attempts_were_all_broken_is_no_failure(logged, tmp_path):
    event = {"step": 1, "split": "heldout", "eval_s": 30.0, "by_instance": {"a": [1, 4], "b": [0, 4], "c": [0, 0]}}
    (tmp_path / "evals.jsonl").write_text(json.dumps(event) + "\n")
    logged().evaluated({}, 1)
    assert (value_of(tmp_path, "eval_accuracy"), value_of(tmp_path, "eval_samples")) == (0.5, 2)


def lines_of(folder):
    lines = (folder / FILE).read_text().splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def value_of(folder, key):
    [line] = [line for line in lines_of(folder) if line["key"] == key]
    return line["value"]


def test_the_log_ends_where_the_target_is_passed(logged, tmp_path):
    logger = logged()
    logger.log({"step_s": 100.0, "loss": 0.5, "reward_mean": 0.25, "grad_norm": None, "train_s": 9.0}, 1)
    evaluate(tmp_path, logger, 1, solved=2)
    logger.log({"step_s": 100.0}, 2)
    evaluate(tmp_path, logger, 2, solved=3)
    logger.log({"step_s": 100.0}, 3)
    evaluate(tmp_path, logger, 3, solved=0)
    logger.finish(0)
    events = [line for line in lines_of(tmp_path) if "_" in line["key"] and line["event_type"] != "POINT_IN_TIME"]
    assert [line["key"] for line in events] == [
        *("init_start", "init_stop", "run_start", "block_start"),
        *("block_stop", "eval_start", "eval_stop", "block_start"),
        *("block_stop", "eval_start", "eval_stop", "run_stop"),
    ]
    assert events[-1]["metadata"]["status"] == "success" and events[-1]["metadata"]["samples_count"] == 512
    accuracies = [line["value"] for line in lines_of(tmp_path) if line["key"] == "eval_accuracy"]
    assert accuracies == [0.5, 0.75], "a task counts that any of its attempts solved"
    stats = [line["value"] for line in lines_of(tmp_path) if line["key"] == "tracked_stats"]
    assert stats[0] == {"reduced_train_loss": 0.5, "reward": 0.25, "grad_norm": None}
    assert value_of(tmp_path, "eval_samples") == 4 and value_of(tmp_path, "global_batch_size") == 256
    assert value_of(tmp_path, "cache_clear") is False and value_of(tmp_path, "submission_division") == "open"


def test_a_run_that_misses_the_target_is_aborted(logged, tmp_path, monkeypatch):
    monkeypatch.setenv("MLPERF_SUBMITTER", "Somebody")
    logger = logged()
    evaluate(tmp_path, logger, 0, solved=1)
    logger.finish(1)
    assert lines_of(tmp_path)[-1]["metadata"]["status"] == "aborted"
    assert value_of(tmp_path, "submission_org") == "Somebody"


def test_a_run_that_did_nothing_did_not_run(logged, tmp_path):
    logged().finish(2)
    assert "run_stop" not in (tmp_path / FILE).read_text()


def test_a_rate_that_falls_has_another_end(logged, tmp_path):
    logged("trainer.lr_schedule=cosine", "trainer.lr_final_fraction=0.1")
    assert value_of(tmp_path, "opt_end_learning_rate") == pytest.approx(1e-7)


def test_the_checker_of_mlcommons_passes_a_log_at_the_scale_of_the_rules(logged, tmp_path):
    pytest.importorskip("mlperf_logging")
    logger = logged(**{"rollout.max_trajectory_tokens": 65536})
    for step in range(1, 19):
        logger.log({"step_s": 10.0, "loss": 0.1, "reward_mean": 0.3, "grad_norm": 0.1}, step)
    evaluate(tmp_path, logger, 18, solved=200, tasks=251)
    logger.finish(0)
    words = ["--usage", "training", "--ruleset", "6.1.0", str(tmp_path / FILE)]
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "SUCCESS" in done.stdout + done.stderr, done.stdout + done.stderr
