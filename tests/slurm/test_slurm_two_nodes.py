"""One run over two nodes of its job: the trainer's process on one, engines on both."""

import contextlib
import json
import shlex
import sys

import pytest

from swe_rl.facts.server_arguments import VLLM_COMMAND
from swe_rl.gateway.store.traces import TraceStore
from tests.end_to_end.conftest import children_of_runs
from tests.slurm.test_slurm_survival import HOME, Run

pytestmark = pytest.mark.slurm
TWO = ("engine=vllm", "hardware.nodes=2", "hardware.gpus_per_node=1", "layout.colocated=false")
BOTH = (*TWO, "layout.engines=2", "layout.trainer_gpus=0")


class Fake(Run):
    """Its servers are the fake one."""

    def environ(self):
        program = f"{shlex.quote(sys.executable)} -m tests.support.fake_vllm.server"
        return {
            **super().environ(),
            VLLM_COMMAND: program,
            "FAKE_VLLM": json.dumps({"vocab_size": 1536, "token_delay_s": 0.01}),
        }

    def submit(self, *overrides, **options):
        step = "srun --nodes=1 --ntasks=1 "  # as a submitted job is started
        return super().submit(*overrides, nodes="2", ntasks_per_node="1", gres="gpu:1", step=step, **options)

    def events(self, name):
        [folder] = (self.outputs / name).iterdir()
        return (folder / "run.log").read_text()


@pytest.fixture
def run(cluster, tmp_path):
    return Fake(tmp_path, cluster)


def steps_of(cluster, job):
    """Node by the name of the job's step, as SLURM sees them now."""
    lines = cluster.run("squeue", "-h", "-s", "-j", job, "-o", "%j|%N").splitlines()
    return dict(line.split("|") for line in lines)


def test_engines_stay_with_a_run_that_has_no_trainer(run):
    """By the layout the trainer is on one node and the engine on the other; a rollout starts the engine alone."""
    run.submit("job=rollout", "trainer.steps=2", *TWO, "layout.engines=1", "layout.trainer_gpus=1")
    run.wait_for_end()
    said = run.events("rollout")
    assert "engine0 starts on GPU 0\n" in said and "engine0 is up after" in said
    [folder] = (run.outputs / "rollout").iterdir()
    assert len((folder / "steps.jsonl").read_text().splitlines()) == 2


def test_an_engine_on_each_node_and_one_that_is_lost_comes_back_where_it_was(run, cluster):
    job = run.submit("job=rollout", "trainer.steps=8", *BOTH)
    run.wait_for_step(1, name="rollout")
    lines = cluster.run("squeue", "-h", "-s", "-j", job, "-o", "%i|%j").splitlines()
    [number] = [line.split("|")[0] for line in lines if line.endswith("|engine1")]
    cluster.run("scancel", number)
    run.wait_for_end()
    said = run.events("rollout")
    assert said.count("engine1 is up after") == 2 and "engine1 starts on GPU 0 of node n2" in said
    assert said.count("engine0 is up after") == 1 and "engine0 starts on GPU 0\n" in said
    [folder] = (run.outputs / "rollout").iterdir()
    assert len((folder / "steps.jsonl").read_text().splitlines()) == 8


def test_training_with_engines_on_both_nodes(run, cluster):
    """The trainer is on the first node; its weights reach the second one's engine through the shared scratch folder."""
    shared = f"hardware.shared_paths=[{run.root}]"  # a folder below /tmp is no other node's unless somebody says so
    job = run.submit("trainer.steps=2", *BOTH, "layout.trainer_ranks=1", "trainer.check_weights=false", shared)
    cluster.wait_until(lambda: steps_of(cluster, job).get("engine1") == "n2", "the engine's step on n2", 90)
    run.wait_for_end()
    [folder] = (run.outputs / "train").iterdir()
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [(one["step"], one["weight_version"]) for one in steps] == [(1, 1), (2, 2)]
    with contextlib.closing(TraceStore(folder / "traces.db")) as store:
        traces = [one for name in store.sessions() for one in store.traces(name)]
    seen = {one.engine: set() for one in traces}
    for one in traces:
        seen[one.engine].update(one.weight_versions.tolist())
    assert seen["engine1"] >= {0, 1} and set(seen) == {"engine0", "engine1"}
    assert steps_of(cluster, job) == {}


def test_groups_flow_with_engines_on_both_nodes(run, cluster):
    """New weights reach the second node's engine while it samples; no group is lost or trained twice."""
    shared = f"hardware.shared_paths=[{run.root}]"
    ranks = ("layout.trainer_ranks=1", "trainer.check_weights=false")
    job = run.submit("rollout.mode=stream", "trainer.steps=3", *BOTH, *ranks, shared)
    cluster.wait_until(lambda: steps_of(cluster, job).get("engine1") == "n2", "the engine's step on n2", 90)
    run.wait_for_end()
    [folder] = (run.outputs / "train").iterdir()
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [(one["step"], one["weight_version"]) for one in steps] == [(1, 1), (2, 2), (3, 3)]
    groups = [group for one in steps for group in one["groups"]]
    named = [
        json.loads(line)
        for one in steps
        for line in (folder / "trajectories" / f"step_{one['step']:06d}.jsonl").read_text().splitlines()
    ]
    assert len(set(groups)) == len(groups) and {one["group_id"] for one in named} == set(groups)
    with contextlib.closing(TraceStore(folder / "traces.db")) as store:
        traces = [trace for one in named for trace in store.traces(one["trajectory_id"])]
    assert sum(len(trace.sampled_ids) for trace in traces) == sum(one["sampled_tokens"] for one in named)
    assert {trace.engine for trace in traces} == {"engine0", "engine1"}
    assert not list((folder / "queue").glob("*")) and steps_of(cluster, job) == {}


def test_a_cancelled_run_leaves_nothing_on_the_other_node(run, cluster):
    job = run.submit("job=rollout", "trainer.steps=50", *BOTH)
    cluster.wait_until(lambda: steps_of(cluster, job).get("engine1") == "n2", "the engine's step", 60)
    cluster.run("scancel", job)
    cluster.wait_for_state(job, "CANCELLED", timeout_s=60)
    cluster.wait_until(lambda: not children_of_runs(run.root), "the processes' end", 40)


def test_a_layout_of_more_nodes_than_the_job_has(run, cluster):
    job = run.submit("job=rollout", *TWO, "hardware.nodes=3", "layout.engines=3", "layout.trainer_gpus=0")
    cluster.wait_for_state(job, "FAILED", timeout_s=60)
    assert "puts an engine on node 2, and job" in run.log.read_text()


def test_a_step_gets_the_jobs_gpus_of_its_own_node(run, cluster, tmp_path):
    """SLURM's numbers there need not be those of the first node."""
    code = (
        "import subprocess; from swe_rl.hardware.slurm.nodes import step_command, step_environment; import os; "
        "environ = step_environment(os.environ); environ.pop('CUDA_VISIBLE_DEVICES', None); "
        "print(subprocess.check_output([*step_command('n2', 'x'), 'sh', '-c', "
        "'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'], env=environ, text=True), flush=True)"
    )
    other = cluster.script("other", "sleep 30", gres="gpu:1", nodelist="n2")
    cluster.wait_for_state(other, "RUNNING")
    line = f"exec srun --nodes=1 --ntasks=1 {shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    options = {"nodes": "2", "ntasks_per_node": "1", "gpus_per_node": "2", "cpus_per_task": "2"}
    job = cluster.script("gpus", f"export PYTHONPATH={HOME}", line, **options)
    cluster.wait_for_state(job, "COMPLETED", "FAILED", timeout_s=60)
    cluster.run("scancel", other)
    assert (cluster.root / "gpus.sh.out").read_text().split() == ["n2", "1,2"]
