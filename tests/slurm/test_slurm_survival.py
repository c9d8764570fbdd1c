"""A run whose job has to end early is queued again and goes on; it ends where an uninterrupted one does."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.conftest import SMALL, children_of_runs, read, root_list
from tests.slurm.sweep import SLURM, Sweep

pytestmark = pytest.mark.slurm
TIMES = ("_s", "per_s")
STEPS = 5
FEW = (*SMALL, "rollout.prompts_per_step=2", "rollout.n=2", f"trainer.steps={STEPS}")
HOME = Path(__file__).parents[2]


def without_times(steps):
    return [{key: value for key, value in step.items() if not key.endswith(TIMES)} for step in steps]


def assert_same(ours, theirs):
    """Sums of floats may be in another order: which sequences share a batch depends on timing."""
    assert [one["step"] for one in ours] == [one["step"] for one in theirs]
    for one, two in zip(without_times(ours), without_times(theirs), strict=True):
        assert one.keys() == two.keys()
        differ = {key: (one[key], two[key]) for key in one if not same(one[key], two[key])}
        assert not differ, (one["step"], differ)


def same(one, two):
    return one == pytest.approx(two, abs=1e-5) if isinstance(one, float) else one == two


class Run:
    """`python -m swe_rl` in a folder of its own, by hand or as a batch job."""

    def __init__(self, root, cluster=None):
        self.root, self.cluster = root, cluster
        self.outputs = root / "outputs"

    def command(self, *overrides):
        paths = (f"paths.outputs={self.outputs}", f"paths.scratch={self.root / 'scratch'}")
        return [sys.executable, "-m", "swe_rl", *FEW, *root_list(self.root), *paths, *overrides]

    def environ(self):
        return {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(self.root / "cache"), "PYTHONPATH": str(HOME)}

    def here(self, *overrides):
        environ = {**os.environ, **self.environ()}
        done = subprocess.run(
            self.command(*overrides), cwd=self.root, env=environ, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def submit(self, *overrides, step="srun ", **options):
        exports = [f"export {key}={shlex.quote(value)}" for key, value in self.environ().items()]
        line = f"exec {step}{shlex.join(self.command(*overrides))}"
        flags = {"cpus_per_task": "1", "open_mode": "append", "partition": "cpu", **options}
        name = f"run{time.monotonic_ns()}"
        self.log = self.cluster.root / f"{name}.sh.out"
        self.job = self.cluster.script(name, *exports, f"cd {self.root}", line, **flags)
        return self.job

    @property
    def folder(self):
        [folder] = (self.outputs / "train").iterdir()
        return folder

    def status(self):
        return json.loads((self.folder / "status.json").read_text())

    def record(self):
        return json.loads((self.folder / "requeue.json").read_text())

    def steps(self):
        return read(self.folder / "steps.jsonl")

    def wait_for_step(self, step, timeout_s=90, name="train"):
        def reached():
            found = list(self.outputs.glob(f"{name}/*/steps.jsonl"))
            assert self.cluster.state(self.job) not in ("FAILED", "COMPLETED"), self.log.read_text()
            return found and len(read(found[0])) >= step

        self.cluster.wait_until(reached, f"step {step}", timeout_s)

    def wait_for_end(self, timeout_s=120):
        def ended():
            self.cluster.start_now(self.job)
            return self.cluster.state(self.job) in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")

        self.cluster.wait_until(ended, "the run's end", timeout_s, 0.5)
        assert self.cluster.state(self.job) == "COMPLETED", self.log.read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The steps of a run that nothing interrupted."""
    run = Run(tmp_path_factory.mktemp("whole"))
    run.here()
    return run.steps()


@pytest.fixture
def run(cluster, tmp_path):
    return Run(tmp_path, cluster)


def test_scancel_signal(run, whole, cluster):
    job = run.submit()
    run.wait_for_step(2)
    cluster.run("scancel", "--signal=USR2", job)
    cluster.wait_for_state(job, "PENDING", timeout_s=30)
    assert run.status()["status"] == "requeued", run.status()
    assert "queued again (1 of 4)" in run.status()["reason"]
    run.wait_for_end()
    assert_same(run.steps(), whole)
    assert (run.status()["status"], run.status()["resumes"]) == ("done", 1)
    assert run.record()["requeues"] == 1 and len(run.record()["starts"]) == 2
    assert not children_of_runs(run.root)


def test_the_trainers_own_processes_get_the_signal_too(run, cluster):
    """SLURM signals every process of the job; the ranks that are to save the state must not end by it."""
    job = run.submit("layout=local2", "trainer.checkpoint_every_steps=0", cpus_per_task="2")
    run.wait_for_step(1)
    cluster.run("scancel", "--signal=USR1", job)
    cluster.wait_for_state(job, "PENDING", timeout_s=60)
    done = len(run.steps())
    assert run.status()["status"] == "requeued" and "and then" not in run.status()["reason"]
    assert (run.folder / "checkpoints" / f"step_{done:06d}").is_dir()
    run.wait_for_end()
    assert f"continues after step {done}" in (run.folder / "run.log").read_text()
    assert [step["step"] for step in run.steps()] == list(range(1, STEPS + 1))


def test_time_limit(run, whole, cluster):
    """SLURM warns ahead of the end, up to half a minute early. The limit is made short once there is a step, however
    long a busy machine needs for it."""
    began_s = time.monotonic()
    run.submit("trainer.checkpoint_every_steps=0", "trainer.steps=100", time="5", signal="USR2@10")
    run.wait_for_step(1)
    minutes = 1 + int(time.monotonic() - began_s + 15) // 60
    cluster.run("scontrol", "update", f"jobid={run.job}", f"timelimit={minutes}")
    cluster.wait_for_state(run.job, "PENDING", timeout_s=150)
    assert run.status()["status"] == "requeued" and run.status()["exit_status"] == 75
    done = len(run.steps())
    assert (run.folder / "checkpoints" / f"step_{done:06d}").is_dir()
    cluster.start_now(run.job)
    run.wait_for_step(done + 1)
    cluster.run("scancel", run.job)
    assert_same(run.steps()[:STEPS], whole[: len(run.steps())])


@pytest.mark.long
def test_time_limit_without_a_warning(run, whole, cluster):
    """SIGTERM comes when the time is over, and the job has KillWait seconds: enough to save and to ask."""
    run.submit("trainer.checkpoint_every_steps=0", "trainer.steps=100", time="1")
    run.wait_for_step(1)
    cluster.wait_for_state(run.job, "PENDING", timeout_s=150)
    assert run.status()["status"] == "requeued" and "SIGTERM" in run.status()["reason"]
    assert run.record()["requeues"] == 1
    done = len(run.steps())
    cluster.start_now(run.job)
    run.wait_for_step(done + 1)
    assert_same(run.steps()[:STEPS], whole)


@pytest.mark.parametrize("grace_s", [20, 0])  # on a busy machine 5 s are too few to save and to ask
def test_preemption(run, whole, cluster, request, grace_s):
    """With some grace the run asks; without, SLURM has queued the job again by the time that it tells it to end."""
    cluster.run("scontrol", "update", "partitionname=low", f"gracetime={grace_s}")
    request.addfinalizer(lambda: cluster.run("scontrol", "update", "partitionname=low", "gracetime=5"))
    run.submit(partition="low", nodelist="n1")
    run.wait_for_step(2)
    taker = cluster.script("taker", "sleep 2", partition="cpu", nodelist="n1", cpus_per_task="8")
    cluster.wait_for_state(taker, "RUNNING", "COMPLETED", timeout_s=60)
    assert run.status()["status"] == "requeued", run.status()
    run.wait_for_end()
    assert_same(run.steps(), whole)
    assert run.status()["status"] == "done" and run.record()["requeues"] == 0


def test_node_down(run, whole, cluster):
    """Nobody is told; the job starts on the other node, where nothing of the first start is but the run's folder."""
    job = run.submit()
    run.wait_for_step(2)
    [node] = [one["nodes"] for one in cluster.jobs() if one["id"] == job]
    try:
        cluster.set_node(node, "down")
        cluster.wait_for_state(job, "PENDING", timeout_s=60)
        run.wait_for_end()
    finally:
        cluster.set_node(node, "resume")
    assert_same(run.steps(), whole)
    starts = run.record()["starts"]
    assert run.record()["requeues"] == 0 and {one["node"] for one in starts} == {"n1", "n2"}


def test_a_node_that_dies(run, whole, cluster):
    """No signal, no last word: SLURM notices, and the newest checkpoint is where it goes on."""
    job = run.submit()
    run.wait_for_step(2)
    [node] = [one["nodes"] for one in cluster.jobs() if one["id"] == job]
    cluster.kill_node(node)
    try:
        cluster.wait_for_state(job, "PENDING", timeout_s=90)
        assert run.status()["status"] == "running"
        run.wait_for_end()
    finally:
        cluster.start_node(node)
        cluster.wait_until(cluster._all_up, "the node to be back", 60)
    assert_same(run.steps(), whole)
    assert [one["told"] for one in run.record()["starts"]] == [None, None]


def test_what_its_user_cancels_stays_cancelled(run, cluster):
    job = run.submit()
    run.wait_for_step(1)
    cluster.run("scancel", job)
    cluster.wait_for_state(job, "CANCELLED", timeout_s=60)
    cluster.wait_until(lambda: run.status()["status"] != "running", "the run to be told", 30)
    assert (run.status()["status"], run.record()["requeues"]) == ("interrupted", 0)
    assert "SIGTERM" in run.status()["reason"]


def test_a_spent_budget_ends_the_run_and_the_status_says_so(run, cluster):
    job = run.submit("hardware.max_requeues=0")
    run.wait_for_step(1)
    cluster.run("scancel", "--signal=USR1", job)
    cluster.wait_for_state(job, "FAILED", timeout_s=60)
    status = run.status()
    assert (status["status"], status["exit_status"]) == ("interrupted", 130)
    assert "hardware.max_requeues=0 is spent" in status["reason"]


def test_a_job_of_a_submitted_array_goes_on_alone(cluster, tmp_path, whole):
    """The first element's number is the whole array's too; the other job must not be queued again with it."""
    sweep = Sweep(tmp_path, cluster)
    process = sweep.start(*SLURM, *FEW, "job=train", "trainer.seed=0,1")
    first, second = sweep.wait_for_ids(process)
    folders = [sweep.folder / str(number) for number in range(2)]
    for folder in folders:
        steps = folder / "steps.jsonl"
        cluster.wait_until(lambda: steps.exists() and len(read(steps)) >= 2, "two steps", 120)  # noqa: B023
    cluster.run("scancel", "--signal=USR2", first)
    cluster.wait_for_state(first, "PENDING", timeout_s=60)
    assert cluster.state(second) in ("RUNNING", "COMPLETED")
    assert sweep.status(0)["status"] == "requeued"
    cluster.start_now(first)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stdout + stderr
    assert [sweep.status(number)["resumes"] for number in range(2)] == [1, 0]
    assert_same(sweep.steps(0), whole)
    record = json.loads((folders[0] / "requeue.json").read_text())
    assert record["job"].endswith(f":{first}") and record["requeues"] == 1
