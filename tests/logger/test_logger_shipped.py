"""The loggers that ship, each held against the files of its own library, read by that library."""

import json
import math
import re
import sqlite3
from dataclasses import replace

import pytest

from swe_rl.check.packages import NEEDS
from swe_rl.config.choices import JobName
from swe_rl.config.compose import compose
from swe_rl.config.schema import LoggerConfig
from swe_rl.errors import UserError
from swe_rl.logger.figures import flatten_record, numeric_figures
from swe_rl.logger.folder import RunState
from swe_rl.logger.foreign import Mirrors, make_loggers
from swe_rl.logger.mlflow import _legal_name
from swe_rl.run.session import open_session

RECORD = {"step": 1, "reward": 0.25, "statuses": {"done": 3}, "compiled": True, "kind": "grpo", "nan": math.nan}
EVALUATION = {"time": 9.5, "split": "heldout", "num_samples": 64, "by_instance": {"a": [1, 2]}, "cheating": {"peek": 1}}
EVAL_NAMES = {f"eval/heldout/{name}" for name in ("time", "resolved_rate", "num_samples", "cheating/peek")}
CONFIGURATION = {"trainer.lr": 1e-6, "agent._target_": None, "hardware.env_vars.MY_KEY": "***"}
OF = {name: LoggerConfig(**{name: True}, project="tests") for name in ("tensorboard", "mlflow", "trackio")}


@pytest.fixture(autouse=True)
def nowhere_else(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def written(config, folder, *, steps=(1, 2), exit_status=0):
    """What a run does with its mirrors, from its start to its end."""
    folder.mkdir(exist_ok=True)
    [logger] = make_loggers(config, folder, "night", CONFIGURATION)
    logger.start()
    for step in steps:
        logger.log({**RECORD, "step": step, "reward": step / 4}, step)
    Mirrors([logger]).evaluated({**EVALUATION, "step": steps[0] - 1, "resolved_rate": steps[0] / 8})
    logger.summarize({"resolved_rate_after": 0.5, "job": "train"})
    logger.finish(exit_status)
    assert logger.failure == ""


def test_a_record_s_figures_are_its_numbers_by_their_path():
    assert flatten_record({"a": {"b": {"c": 1}}, "d": None, "begun": {"7": {"trajectories": 2}}}) == {
        "a/b/c": 1,
        "d": None,
    }
    assert numeric_figures({"a": {"b": 2}, "t": True, "s": "x", "n": None, "l": [1]}) == {"a/b": 2.0, "t": 1.0}


def test_tensorboard_reads_the_curves_of_a_resumed_run_as_one(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    for steps in ((1, 2), (3,)):
        written(OF["tensorboard"], tmp_path / "run", steps=steps)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    values = {event.step: float(make_ndarray(event.tensor_proto)) for event in events.Tensors("reward")}
    assert values == {1: 0.25, 2: 0.5, 3: 0.75}
    assert set(events.Tags()["tensors"]) == {
        "step", "reward", "statuses/done", "compiled", "nan", "summary/resolved_rate_after", *EVAL_NAMES,
    }  # fmt: skip
    rates = events.Tensors("eval/heldout/resolved_rate")
    assert {rate.step: float(make_ndarray(rate.tensor_proto)) for rate in rates} == {0: 0.125, 2: 0.375}
    [summary, _] = events.Tensors("summary/resolved_rate_after")
    assert summary.step == 2  # of the last step, not of an evaluation that came after it


def test_tensorboard_forgets_the_steps_that_a_resumed_run_took_back(tmp_path):
    """Only a mark tells a reader that a step which comes again is made anew."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    [first] = make_loggers(OF["tensorboard"], tmp_path, "night", CONFIGURATION)
    [second] = make_loggers(OF["tensorboard"], tmp_path, "night", CONFIGURATION)
    for logger, steps, factor in ((first, (1, 2, 3), 1), (second, (2, 3), -1)):
        logger.start()
        Mirrors([logger]).evaluated({**EVALUATION, "step": steps[0] - 1, "resolved_rate": 0.5})
        for step in steps:
            logger.log({"reward": factor * step / 4}, step)
        logger.finish(0)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    values = [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors("reward")]
    assert values == [(1, 0.25), (2, -0.5), (3, -0.75)]
    assert [event.step for event in events.Tensors("eval/heldout/resolved_rate")] == [0, 1]


@pytest.mark.slow
def test_mlflow_has_one_run_with_its_configuration_curves_and_end(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    folder = tmp_path / "run"
    written(OF["mlflow"], folder, exit_status=130)
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")

    def ended():
        [run] = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
        return run

    assert (ended().info.run_name, ended().info.status) == ("night", "KILLED")
    written(OF["mlflow"], folder, steps=(2, 3))
    run = ended()
    assert run.info.status == "FINISHED"
    assert run.data.params == {"trainer.lr": "1e-06", "agent._target_": "None", "hardware.env_vars.MY_KEY": "***"}
    points = client.get_metric_history(run.info.run_id, "reward")
    assert {metric.step: metric.value for metric in points} == {1: 0.25, 2: 0.5, 3: 0.75}
    before, after = (metric for metric in points if metric.step == 2)
    assert before.timestamp < after.timestamp, "the step was made twice, and the times tell the points apart"
    rates = client.get_metric_history(run.info.run_id, "eval/heldout/resolved_rate")
    assert {metric.step: metric.value for metric in rates} == {0: 0.125, 1: 0.25}
    assert {name for name in run.data.metrics if name.startswith("eval/")} == EVAL_NAMES
    assert run.data.metrics["statuses/done"] == 3 and run.data.metrics["summary/resolved_rate_after"] == 0.5


def test_names_that_differ_only_in_what_mlflow_refuses_stay_apart():
    names = ["env/a+b", "env/a=b", "env/a_b", "env/a[0]", "env/a(0)"]
    legal = [_legal_name(name) for name in names]
    assert len(set(legal)) == len(names) and legal[2] == "env/a_b"
    assert all(re.fullmatch(r"[\w\-./ :]+", name) for name in legal)


def test_mlflow_s_server_that_is_not_there_is_said_before_the_start(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing-that-mlflow-knows://x")
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI"):
        written(OF["mlflow"], tmp_path)


def test_trackio_s_database_has_each_folder_as_one_run(tmp_path, monkeypatch, capsys):
    trackio = pytest.importorskip("trackio")
    home = tmp_path / "trackio"
    for module in (trackio.utils, trackio.sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", home)
    monkeypatch.setattr(trackio.utils, "MEDIA_DIR", home / "media")
    written(OF["trackio"], tmp_path / "a")
    written(OF["trackio"], tmp_path / "a", steps=(2, 3))
    written(OF["trackio"], tmp_path / "b", steps=(1,))
    assert capsys.readouterr().out == ""
    with sqlite3.connect(home / "tests.db") as database:
        rows = database.execute("select run_name, step, json_extract(metrics, '$.reward') from metrics").fetchall()
        lines = database.execute("select run_name, step, metrics from metrics").fetchall()
        of_step = "step = 2 and json_extract(metrics, '$.reward') is not null"
        twice = f"select timestamp from metrics where {of_step} order by id"
        [before], [after] = database.execute(twice).fetchall()
    assert before < after, "the step was made twice, and the times tell the points apart"
    names = {folder: (tmp_path / folder / "trackio_run.txt").read_text().strip() for folder in "ab"}
    assert names["a"] != names["b"] and all(name.startswith("night-") for name in names.values())
    rates = [(name, step, record) for name, step, line in lines if (record := json.loads(line)).keys() >= EVAL_NAMES]
    assert {(name, step, record["eval/heldout/resolved_rate"]) for name, step, record in rates} == {
        (names["a"], 0, 0.125), (names["a"], 1, 0.25), (names["b"], 0, 0.125),
    }  # fmt: skip
    curves = {(name, step): reward for name, step, reward in rows if reward is not None}
    assert curves == {
        (names["a"], 1): 0.25, (names["a"], 2): 0.5, (names["a"], 3): 0.75, (names["b"], 1): 0.25,
    }  # fmt: skip


def test_a_run_goes_on_without_the_one_that_fails_and_says_it_once(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tmp_path / "of_a_test.py").write_text(
        "class Broken:\n    def log(self, record, step):\n        raise OSError(28)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    overrides = [f"paths.outputs={tmp_path}", "logger=[wandb,tensorboard]", "logger.wandb=disabled"]
    config = compose([*overrides, "logger._target_=of_a_test.Broken"]).config
    folder = tmp_path / "train" / "night"
    folder.mkdir(parents=True)
    with open_session(config, folder, total_steps=3) as run:
        for step in (1, 2, 3):
            run.mirrors.log({"reward": step}, step)
    assert run.folder.status().status is RunState.done
    assert (folder / "run.log").read_text().count("the run goes on without it") == 1
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [event.step for event in events.Tensors("reward")] == [1, 2, 3]


@pytest.mark.parametrize("job", ["serve", "runtime"])
def test_what_has_no_figures_starts_no_logger(tmp_path, job):
    asked_for = ["logger=[wandb,tensorboard]", "logger.wandb=offline"]
    config = compose([f"paths.outputs={tmp_path}", f"job={job}", *asked_for]).config
    folder = tmp_path / job
    folder.mkdir()
    with open_session(config, folder, total_steps=0, reports=False) as run:
        run.mirrors.log({"reward": 1}, 1)
    assert not {"wandb", "wandb_id.txt", "tensorboard"} & {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", OF)
def test_each_has_an_option_an_extra_and_our_own_contract(name):
    composed = compose([f"logger=[wandb,{name}]", "logger.wandb=offline"])
    assert getattr(composed.config.logger, name) and composed.choices["logger"] == f"[wandb,{name}]"
    assert composed.origins.of(f"logger.{name}") == f"conf/logger/{name}.yaml"
    assert composed.origins.of("logger.wandb") == "command line: logger.wandb=offline"
    [need] = [need for need in NEEDS if need.key == f"logger.{name}"]
    assert need.extra == name
    config = composed.config
    of_job = {job: replace(config, job=replace(config.job, name=JobName(job))) for job in JOBS}
    assert {job: need.wanted(other, None, None) for job, other in of_job.items()} == JOBS


JOBS = {"train": True, "rollout": True, "eval": True, "sft": True, "serve": False, "runtime": False, "export": False}
