"""Somebody's own code in real runs: all of examples/ train, on ranks and in frozen sweeps; job=new writes the same."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.compose import compose
from swe_rl.config.folders import examples_dir
from swe_rl.dataset.records import read_instances, write_instances
from swe_rl.env.bugs.env import DATA
from swe_rl.job import new
from tests.end_to_end.conftest import FEW

pytestmark = pytest.mark.slow

KINDS = [str(kind) for kind in ExtensionKind]
ONE = ("trainer.steps=1", "rollout.prompts_per_step=2", "rollout.n=4")
TWO_ATTEMPTS = ("job=rollout", "trainer.steps=1", *FEW)


class Scores(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"score": 0.75}')

    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture
def scores():
    with ThreadingHTTPServer(("127.0.0.1", 0), Scores) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/score"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def one_held_out(command):
    """The evaluations of this module's runs are of one instance: nothing here asks how good a policy is."""
    folder = command.root / "few"
    folder.mkdir()
    for split, number in (("heldout", 1), ("train", 8)):
        write_instances(folder / f"{split}.jsonl", read_instances(DATA / f"{split}.jsonl")[:number])


@pytest.fixture
def options(command):
    """options("agent", "loss"): the words that choose these of examples/, from one folder of options."""

    def chosen(*kinds):
        folder = command.root / "conf"
        for kind in kinds:
            shutil.copytree(examples_dir() / kind / "conf", folder, dirs_exist_ok=True)
        code = ",".join(str(examples_dir() / kind) for kind in kinds)
        return ("--config-dir", str(folder), f"job.code=[{code}]", *(f"{kind}=my_{kind}" for kind in kinds))

    return chosen


def test_no_example_is_longer_than_60_lines():
    for kind in KINDS:
        assert len((examples_dir() / kind / f"my_{kind}.py").read_text().splitlines()) <= 60, kind


def test_all_but_the_environment_train_in_one_run_and_two_ranks_learn_the_same(command, options, scores):
    kinds = [kind for kind in KINDS if kind != "env"]
    words = (*options(*kinds), *ONE, f"reward.params.url={scores}")
    done = command.run(*words, cold=True)
    assert done.exit_status == 0, done.text
    [step] = command.steps()
    assert step["trained_tokens"] > 0 and step["loss"] != 0
    folder = command.folder()
    rewards = {row["reward"] for row in command.read(folder / "trajectories" / "step_000001.jsonl")}
    assert rewards <= {0.0, 0.375, 0.875} and len(rewards) > 1, "score and verdict, half and half"
    header, before, line, after = (folder / "my_logger.csv").read_text().splitlines()
    assert header == "step,reward_mean,resolved_rate,loss,eval/heldout/resolved_rate"
    assert line.startswith(f"1,{step['reward_mean']}")
    rates = [numbers["resolved_rate"] for numbers in command.read(folder / "evals.jsonl")]
    assert [before, after] == [f"0,,,,{rates[0]}", f"1,,,,{rates[1]}"], "a curve of evaluations"
    assert (folder / "my_logger.txt").read_text().startswith("resolved ")
    facts = json.loads((folder / "code.json").read_text())
    assert len(facts) == len(kinds) and all(re.fullmatch("[0-9a-f]{64}", fact["sha256"]) for fact in facts)
    assert '_target_: "my_agent.MyAgent"  # conf/agent/my_agent.yaml' in (folder / "config.yaml").read_text()

    done = command.run(*words, "layout=local2", "hydra.run.dir=ranks")
    assert done.exit_status == 0, done.text
    [on_ranks] = command.read(command.root / "ranks" / "steps.jsonl")
    assert on_ranks["loss"] == pytest.approx(step["loss"], abs=1e-5)
    assert on_ranks["grad_norm"] == pytest.approx(step["grad_norm"], abs=1e-4)


def test_an_environment_trains(command, options):
    done = command.run(*options("env"), *ONE, "rollout.eval_n=1", small=False)
    assert done.exit_status == 0, done.text
    rows = command.read(command.folder() / "trajectories" / "step_000001.jsonl")
    assert {row["instance_id"].partition("__")[0] for row in rows} == {"my_env"} and len(rows) == 8


def test_a_gold_patch_of_it_is_graded_as_resolved(command, options):
    done = command.run(*options("env"), "job=eval", "agent=gold", "rollout.eval_n=1", small=False)
    assert done.exit_status == 0 and "100.0 %" in done.stdout, done.text


def code_that_goes(command):
    """Words for an agent whose folder is removed by its first import; and that folder."""
    given = command.root / "given"
    shutil.copytree(examples_dir() / "agent", given)
    agent = (given / "my_agent.py").read_text()
    gone = f"import shutil; shutil.rmtree({str(given)!r}, ignore_errors=True)"
    (given / "my_agent.py").write_text(agent.replace("class MyAgent:", f"{gone}\n\n\nclass MyAgent:"))
    return ("--config-dir", str(given / "conf"), f"job.code=[{given}]", "agent=my_agent"), given


def each_job_had_its_copy(sweep, given):
    assert not given.exists()
    assert (sweep / "frozen" / "code" / "0" / "my_agent.py").is_file()
    for job in ("0", "1"):
        [fact] = json.loads((sweep / job / "code.json").read_text())
        assert fact["path"] == str(sweep / "frozen" / "code" / "0")
        assert json.loads((sweep / job / "status.json").read_text())["status"] == "done"


def test_a_frozen_sweep_has_its_own_copy_of_the_code_and_ends_with_its_comparison(command):
    """The second job runs after the folder that was given is gone."""
    words, given = code_that_goes(command)
    done = command.run("--multirun", *words, "router=default,cap", "layout.engines=2", *TWO_ATTEMPTS)
    assert done.exit_status == 0, done.text
    [sweep] = (command.outputs / "multirun" / "rollout").iterdir()
    each_job_had_its_copy(sweep, given)
    assert "# DP=2 Rollout Tokens/sec Comparison (router=default vs router=cap)" in done.stdout
    assert json.loads((sweep / "compare" / "compare.json").read_text())["pairs"]


def test_trials_of_a_sweeper_have_their_own_copy_of_the_code(command):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="the extra optuna is not installed")
    given = command.root / "given"
    shutil.copytree(examples_dir() / "agent", given)
    words = ["--multirun", "--config-dir", str(given / "conf"), f"job.code=[{given}]", "agent=my_agent"]
    optuna = (
        "hydra/sweeper=optuna",
        "hydra/sweeper/sampler=grid",
        "hydra.sweeper.n_trials=2",
        "hydra.sweeper.n_jobs=1",
    )
    few = (*TWO_ATTEMPTS, "job.objective=tokens_per_s")
    done = command.run(*words, *optuna, "trainer.seed=choice(0,1)", *few)
    assert done.exit_status == 0, done.text
    [sweep] = (command.outputs / "multirun" / "rollout").iterdir()
    assert (sweep / "frozen" / "code" / "0" / "my_agent.py").is_file()
    for trial in ("0", "1"):
        [fact] = json.loads((sweep / trial / "code.json").read_text())
        assert fact["path"] == str(sweep / "frozen" / "code" / "0")


def test_what_raises_at_its_import_starts_nothing(command):
    (command.root / "theirs.py").write_text("1 / 0\n\n\nclass Mine:\n    async def run(self, work): ...\n")
    done = command.run("agent._target_=theirs.Mine", f"job.code=[{command.root}]", *ONE)
    assert done.exit_status == 2 and "Traceback" not in done.text
    assert "importing theirs raised ZeroDivisionError" in " ".join(done.stderr.split())
    assert not list(command.outputs.glob("train/*"))


def test_a_reward_that_raises_stops_the_run_and_names_the_class(command):
    (command.root / "theirs.py").write_text(
        "class Mine:\n    async def reward(self, attempt):\n        raise OSError('the judge is away')\n"
    )
    others = "advantage._target_=nowhere.Mine"  # which rollouts alone do not start
    words = ("agent=gold", others, *TWO_ATTEMPTS)  # an attempt without a patch has no reward
    done = command.run("reward._target_=theirs.Mine", f"job.code=[{command.root}]", *words)
    said = " ".join(done.stderr.split())
    assert done.exit_status == 1 and "grade_error: reward=Mine (theirs.Mine): its method reward raised OSError" in said


def test_a_router_that_raises_stops_the_run_and_names_the_class(command):
    (command.root / "theirs.py").write_text(
        "class Mine:\n    def initial(self, engines):\n        return {}\n\n"
        "    def step(self, state, event, now_s):\n        raise IndexError('no such engine')\n"
    )
    done = command.run("router._target_=theirs.Mine", f"job.code=[{command.root}]", *TWO_ATTEMPTS)
    said = " ".join(done.stderr.split())
    assert done.exit_status == 1 and "router=Mine (theirs.Mine): its method step raised IndexError" in said, said


def test_a_whole_package_is_written_passes_its_tests_and_trains(command):
    folder = command.root / "our_kit"
    assert new.run(compose(["job=new", "job.kind=package", f"job.output={folder}"]).config, None) == 0
    texts = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert not any("my_package" in text or "MyPackage" in text for text in texts.values())
    entries = tomllib.loads(texts[folder / "pyproject.toml"])["project"]["entry-points"]
    assert entries["swe_rl.loss"] == {"our_kit": "our_kit.loss:OurKitLoss"} and len(entries) == 5
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    words = [sys.executable, "-m", "pytest", *alone, str(folder)]
    done = subprocess.run(words, env=environ, cwd=command.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "9 passed" in done.stdout, done.stdout[-3000:]
    chosen = ("--config-dir", str(folder / "conf"), f"job.code=[{folder}]", "+experiment=our_kit")
    done = command.run(*chosen, "trainer.steps=1", "rollout.n=2", "rollout.eval_n=1", small=False)
    assert done.exit_status == 0 and "warning" not in done.stderr, done.text
    config = (command.folder("our_kit") / "config.yaml").read_text()
    for kind in ("Agent", "Env", "Reward", "Advantage", "Loss"):
        assert f"our_kit.{kind.lower()}.OurKit{kind}" in config
    rows = command.read(command.folder("our_kit") / "trajectories" / "step_000001.jsonl")
    assert {row["instance_id"].partition("__")[0] for row in rows} == {"our_kit"} and len(rows) == 8
    assert {row["reward"] for row in rows if row["status"] != "resolved"} <= {0.0}


def test_what_job_new_writes_passes_its_own_test(command):
    for kind in KINDS:
        words = ("job=new", f"job.kind={kind}", f"job.output={command.root / f'our_{kind}'}")
        if kind == KINDS[0]:
            done = command.run(*words, small=False)
            assert done.exit_status == 0, done.text
        else:  # the command does no more with them
            assert new.run(compose(words).config, None) == 0
        texts = [path.read_text() for path in (command.root / f"our_{kind}").rglob("*") if path.is_file()]
        assert not any(re.search(rf"my_{kind}|My{kind.capitalize()}", text) for text in texts)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    folders = [str(command.root / f"our_{kind}") for kind in KINDS]
    alone = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(command.root)]
    words = [sys.executable, "-m", "pytest", *alone, *folders]
    done = subprocess.run(words, env=environ, cwd=command.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    again = command.run("job=new", f"job.output={command.root / 'our_env'}", small=False)
    assert again.exit_status == 2 and "is there already" in " ".join(again.stderr.split())
    with pytest.raises(new.NewError, match="names a Python package"):
        new.run(compose(["job=new", "job.output=My-Agent"]).config, None)
    with pytest.raises(new.NewError, match="null/my_env cannot be written"):
        new.run(compose(["job=new", "job.output=/dev/null/my_env"]).config, None)
