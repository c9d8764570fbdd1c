"""Sandboxes served by a job of the CPU partition, used by a job of the GPU partition; either one killed or pending."""

import json
import stat
import time
from pathlib import Path

import psutil
import pytest

from swe_rl.hardware.rendezvous import Meeting
from tests.slurm.sweep import TINY

pytestmark = pytest.mark.slurm
LEASE_S = 6.0
TWO = (
    "--multirun",
    "hydra/launcher=submitit_slurm",
    "hardware.partition=gpu",
    "+hydra.launcher.additional_parameters.gres=gpu:1",
    "hardware.cpus_per_node=1",
    "hardware.memory_gb=2",
    "runtime=job",
    "runtime.partition=cpu",
    "runtime.containers=process",
    "runtime.cpus_per_node=2",
    "runtime.reserved_cpus=0",
    "runtime.memory_gb=2",
    "sandbox.cpus=1",
    "sandbox.memory_gb=1",
    "rollout.concurrency=2",
    f"runtime.lease_s={LEASE_S:g}",
    "runtime.heartbeat_s=1",
    "job.detach=true",
)
MANY = (*TINY, "trainer.steps=1000")


class Pair:
    """A submitted run with its servers. `steps` and `text` are those of the run."""

    def __init__(self, sweep, cluster, *overrides):
        shared = f"hardware.shared_paths=[{sweep.root}]"
        done = sweep.run(*TWO, shared, *overrides)
        assert done.exit_status == 0, done.text
        self.sweep, self.cluster, self.said = sweep, cluster, done.stdout
        self.folder = sweep.folder / "0"
        self.meeting = Meeting(sweep.folder / "meeting" / "0")
        [self.run] = sweep.ids

    def server(self, node=0):
        """Its job as the meeting folder knows it: another one after it was submitted again."""
        return self.meeting.jobs()[f"runtime{node}"]

    def wait(self, holds, what, timeout_s=90.0):
        try:
            self.cluster.wait_until(holds, what, timeout_s)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n== run\n{self.text}\n== server\n{self.log()}") from None

    def wait_for_step(self, step=1):
        self.wait(lambda: self.steps >= step, f"step {step}")

    def wait_for_end(self, state, timeout_s=120.0):
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.wait(lambda: self.cluster.state(self.run) in ended, "the run's end", timeout_s)
        assert self.cluster.state(self.run) == state, self.text

    def wait_for_server(self, state, node=0, timeout_s=LEASE_S + 30.0):
        self.wait(lambda: self.cluster.state(self.server(node)) == state, f"the server to be {state}", timeout_s)

    @property
    def steps(self):
        path = self.folder / "steps.jsonl"
        return path.read_text().count("\n") if path.is_file() else 0

    @property
    def text(self):
        return "".join(path.read_text() for path in sorted((self.sweep.folder / "slurm").glob("*.out"))) + "".join(
            path.read_text() for path in sorted((self.sweep.folder / "slurm").glob("*.err"))
        )

    def log(self, node=0):
        path = self.meeting.log(node)
        return path.read_text() if path.is_file() else ""

    def status(self):
        return json.loads((self.folder / "status.json").read_text())

    def kill(self, job_id):
        """SIGKILL to the Python process of a job, as an out-of-memory killer would."""
        found = [one for one in python_processes(self.sweep.root) if one[1] == job_id]
        assert found, f"no process of job {job_id}"
        for process, _ in found:
            process.kill()

    def nothing_left(self):
        """No process, no record, no key, no folder of a server or sandbox; scripts and logs stay."""
        self.wait(lambda: not python_processes(self.sweep.root), "processes to end", 15.0)
        names = {path.name for path in self.meeting.folder.iterdir() if path.is_file()}
        assert {name for name in names if not name.endswith((".sh", ".log"))} == {"jobs.json"}
        assert sorted((self.sweep.root / "scratch").glob("swe_rl-*/*")) == []


def python_processes(root):
    """Processes below a job of SLURM's that mention this test's folder, each with its job."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        if not any(str(root) in word for word in line) or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        try:
            job = process.environ().get("SLURM_JOB_ID")
        except psutil.Error:
            continue
        if job is not None and not Path(line[0]).name.startswith(("bash", "slurm")):
            found.append((process, job))
    return found


def test_a_dry_run_writes_both_scripts(sweep, cluster):
    before = len(cluster.jobs())
    done = sweep.run(*TWO, *TINY, f"hardware.shared_paths=[{sweep.root}]", "runtime.nodes=2", "job.dry_run=true")
    assert done.exit_status == 0, done.text
    meeting = Meeting(sweep.folder / "meeting" / "0")
    for node in range(2):
        script = meeting.script(node).read_text()
        assert script in done.stdout and "#SBATCH --partition=cpu\n" in script and "gres" not in script
        assert "job=runtime" in script and f"runtime.node={node}" in script
    assert "dependency" not in done.stdout and not meeting.key_file.exists() and len(cluster.jobs()) == before


def test_two_partitions(sweep, cluster):
    """The run's sandboxes are on the other job's node; both end well, with nothing left and the key nowhere."""
    pair = Pair(sweep, cluster, *TINY, "trainer.steps=2", "job.think_s=3")
    assert f"job 0: SLURM {pair.run}, runtime0 {pair.server()}" in pair.said
    pair.wait_for_step()
    partitions = {job["id"]: job["partition"] for job in cluster.jobs()}
    assert (partitions[pair.run], partitions[pair.server()]) == ("gpu", "cpu")
    record = json.loads(pair.meeting.server_json(0).read_text())
    assert record["job_id"] == pair.server() and record["host"] in cluster.names and record["slots"] == 2
    assert stat.S_IMODE(pair.meeting.server_json(0).stat().st_mode) == 0o600
    assert stat.S_IMODE(pair.meeting.key_file.stat().st_mode) == 0o600
    key = pair.meeting.key_file.read_text()
    lines = [word for process, _ in python_processes(sweep.root) for word in process.cmdline()]
    assert not any(key in word for word in lines)
    pair.wait_for_end("COMPLETED")
    pair.wait_for_server("COMPLETED", timeout_s=30.0)
    pair.nothing_left()
    assert "the run is over" in pair.log() and f"(job {pair.server()})" in pair.text
    for path in sweep.root.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path


def test_while_the_server_is_queued_the_reason_is_shown(sweep, cluster):
    """Waiting in the queue costs no patience; when the partition comes up, the run goes on."""
    pair = Pair(sweep, cluster, *TINY, "runtime.partition=busy", "runtime.ready_timeout_s=20")
    words = "sandbox server 0 is in the queue, job PENDING (PartitionDown)"
    pair.wait(lambda: words in pair.text, "the queue's reason")
    assert pair.text.count(words) == 1 and cluster.state(pair.run) == "RUNNING"
    cluster.set_partition("busy", "UP")
    pair.wait_for_end("COMPLETED")
    pair.wait_for_server("COMPLETED")
    pair.nothing_left()


def test_a_run_that_never_starts_strands_no_server(sweep, cluster):
    """A queued run keeps its server; a cancelled one does not."""
    pair = Pair(sweep, cluster, *TINY, "hardware.partition=busy", "runtime.ready_timeout_s=6")
    pair.wait(pair.meeting.server_json(0).exists, "the server")
    time.sleep(LEASE_S + 8)
    assert (cluster.state(pair.run), cluster.state(pair.server())) == ("PENDING", "RUNNING")
    cluster.run("scancel", pair.run)
    cancelled = time.monotonic()
    pair.wait_for_server("COMPLETED")
    assert time.monotonic() - cancelled < 60 and "the run's job has ended" in pair.log()
    pair.nothing_left()


@pytest.mark.parametrize("how", ["SIGKILL", "scancel"])
def test_a_run_that_ends_badly_takes_its_server_along(sweep, cluster, how):
    pair = Pair(sweep, cluster, *MANY)
    pair.wait_for_step()
    ended = time.monotonic()
    if how == "scancel":
        cluster.run("scancel", pair.run)
        pair.wait_for_end("CANCELLED")
    else:
        pair.kill(pair.run)
        pair.wait_for_end("FAILED")
    pair.wait_for_server("COMPLETED")
    assert time.monotonic() - ended < 60
    pair.nothing_left()


def test_a_server_that_is_killed_is_submitted_again(sweep, cluster):
    """One of two nodes: the run goes on with the other one, and with both again."""
    pair = Pair(sweep, cluster, *TINY, "runtime.nodes=2", "trainer.steps=8", "job.think_s=2")
    pair.wait_for_step()
    first, other = pair.server(0), pair.server(1)
    pair.kill(first)
    pair.wait(lambda: pair.server(0) != first, "another job")
    again = pair.server(0)
    pair.wait_for_end("COMPLETED")
    assert pair.steps == 8 and "sandbox server 0 is started again as job" in pair.text
    for job in (again, other):
        cluster.wait_for_state(job, "COMPLETED", timeout_s=LEASE_S + 30)
    assert cluster.state(first) == "FAILED"
    pair.nothing_left()


def test_without_servers_the_run_saves_and_fails(sweep, cluster):
    """The restart stays in a queue that is cancelled, and there is no other: status 1, the state on the disk."""
    steps = ("job=train", "rollout.eval_n=1", "trainer.checkpoint_every_steps=100", "trainer.num_threads=1")
    pair = Pair(sweep, cluster, *MANY, *steps, "runtime.max_restarts=1")
    pair.wait_for_step()
    for _ in range(2):  # the first one, and the one that took its place
        job = pair.server()
        pair.wait_for_server("RUNNING", timeout_s=60)
        cluster.run("scancel", "--signal=KILL", "--full", job)
        pair.wait(lambda job=job: pair.server() != job or pair.status()["status"] == "failed", "what the run does")
    pair.wait_for_end("FAILED")
    status = pair.status()
    assert (status["status"], status["exit_status"]) == ("failed", 1), pair.text
    assert "RuntimeLost" in status["reason"] and "runtime.max_restarts" in " ".join(pair.text.split())
    assert [path.name for path in (pair.folder / "checkpoints").glob("step_*")] == [f"step_{pair.steps:06d}"]
    assert "sandbox server 0 is started again as job" in pair.text and "(1 of 1)" in pair.text
    pair.wait(lambda: not cluster.run("squeue", "-h").strip(), "an empty queue", 30)
    pair.nothing_left()


def test_a_server_alone_for_runs_of_others(sweep, cluster):
    """`job=runtime` alone stays; a run elsewhere uses it by its folder and leaves it there; scancel ends it."""
    meet = sweep.root / "meet"
    own = [one for one in TWO if not one.startswith(("runtime=", "+hydra"))]
    shared = (f"hardware.shared_paths=[{sweep.root}]", f"runtime.shared_dir={meet}")
    done = sweep.run(*own, *shared, "job=runtime")
    assert done.exit_status == 0, done.text
    [server] = sweep.ids
    cluster.wait_until((meet / "runtime.json").exists, "the server", 60)
    local = [one for one in TWO if one.startswith(("sandbox", "rollout", "runtime.lease", "runtime.heart"))]
    done = sweep.run("runtime=external", *local, *shared, *TINY)
    assert done.exit_status == 0, done.text
    time.sleep(LEASE_S + 3)
    assert cluster.state(server) == "RUNNING"
    cluster.run("scancel", server)
    cluster.wait_for_state(server, "CANCELLED")
    cluster.wait_until(lambda: not python_processes(sweep.root), "processes to end", 20)
    assert not meet.exists()
    assert sorted((sweep.root / "scratch").glob("swe_rl-*/*")) == []


def test_a_server_that_slurm_queues_again_is_waited_for(sweep, cluster):
    """Preempted, or its node failed: the same job comes back, and nobody submits another."""
    pair = Pair(sweep, cluster, *TINY, "trainer.steps=8", "job.think_s=2")
    pair.wait_for_step()
    server = pair.server()
    cluster.run("scontrol", "requeue", server)
    pair.wait(lambda: "sandbox server 0 is in the queue, job PENDING" in pair.text, "the wait")
    pair.wait_for_end("COMPLETED")
    assert pair.steps == 8 and pair.server() == server and "is started again" not in pair.text
    pair.wait_for_server("COMPLETED")
    pair.nothing_left()


def test_a_run_that_slurm_queues_again_finds_its_server(sweep, cluster):
    """It goes on in its folder, with the server that waited for it."""
    steps = ("job=train", "rollout.eval_n=1", "trainer.checkpoint_every_steps=1", "trainer.num_threads=1")
    pair = Pair(sweep, cluster, *TINY, *steps, "trainer.steps=6")
    pair.wait_for_step(2)
    server = pair.server()
    cluster.run("scontrol", "requeue", pair.run)
    pair.wait(lambda: cluster.state(pair.run) == "PENDING", "the queue")
    time.sleep(LEASE_S + 3)
    assert cluster.state(server) == "RUNNING"
    cluster.start_now(pair.run)
    pair.wait_for_end("COMPLETED")
    assert pair.steps == 6 and pair.server() == server and pair.text.count(f"(job {server})") == 2
    pair.wait_for_server("COMPLETED")
    pair.nothing_left()
