"""`job=runtime` in one process and a run in another: used, and either side killed; the end is bounded and clean."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from swe_rl.dataset.records import read_instances, write_instances
from swe_rl.env.bugs.env import DATA
from tests.sandbox import host_image
from tests.sandbox.engines import NoEngineError, engine
from tests.support.command import HEAVY, Started, warm

pytestmark = pytest.mark.timeout(600)  # more than all that a test waits for

LEASE_S = 6.0
TIMES = (f"runtime.lease_s={LEASE_S:g}", "runtime.heartbeat_s=1")
PLACES = (
    "runtime.cpus_per_node=4",
    "runtime.reserved_cpus=0",
    "runtime.memory_gb=8",
    "sandbox.cpus=1",
    "sandbox.memory_gb=1",
    "sandbox.concurrency=4",
    "rollout.concurrency=4",
)
STEPS = (
    "model=tiny",
    "rollout.prompts_per_step=2",
    "rollout.n=2",
    "rollout.eval_n=1",
    "trainer.num_threads=1",
    "trainer.checkpoint_every_steps=100",  # what is saved in the end was saved because of the end
)
ENDLESS = ("trainer.steps=1000",)


class TwoJobs:
    """Servers and runs that meet below `root`; all ended with it. They are forked, unless they shall be `cold`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.meet = root / "meet"
        self.processes: list[subprocess.Popen | Started] = []
        self.cold = False
        self.containers: tuple[str, ...] = ("runtime.containers=process",)
        write_instances(root / "few" / "heldout.jsonl", read_instances(DATA / "heldout.jsonl")[:2])
        write_instances(root / "few" / "train.jsonl", read_instances(DATA / "train.jsonl")[:8])

    def start(self, *overrides: str, log: str, **environ: str) -> subprocess.Popen | Started:
        common = (
            f"env.dataset={self.root / 'few'}",
            f"paths.outputs={self.root / 'outputs'}",
            f"paths.scratch={self.root / 'scratch'}",
            f"hardware.shared_paths=[{self.root}]",
            *self.containers,
        )
        words = [*common, *TIMES, *PLACES, *overrides]
        whole = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(self.root / "cache"), **environ}
        with (self.root / log).open("wb") as output:
            streams = (output.fileno(), output.fileno())
            forked = None if self.cold else warm(HEAVY).start(words, self.root, whole, streams=streams)
            self.processes.append(
                forked
                or subprocess.Popen(
                    [sys.executable, "-m", "swe_rl", *words],
                    cwd=self.root,
                    env=whole,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
        return self.processes[-1]

    def server(self, *overrides: str, log: str = "server.log") -> subprocess.Popen | Started:
        return self.start("job=runtime", f"runtime.shared_dir={self.meet}", *overrides, log=log)

    def run(self, job: str, *overrides: str, log: str = "run.log", **environ: str) -> subprocess.Popen | Started:
        return self.start(f"job={job}", *STEPS, *overrides, log=log, **environ)

    def text(self, log: str) -> str:
        return (self.root / log).read_text()

    def record(self) -> dict:
        self.wait(lambda: (self.meet / "runtime.json").is_file(), "a server")
        return json.loads((self.meet / "runtime.json").read_text())

    def folder(self, job: str) -> Path:
        [folder] = [path for path in (self.root / "outputs" / job).iterdir() if path.name != "meeting"]
        return folder

    def steps(self, job: str) -> int:
        found = list((self.root / "outputs" / job).glob("*/steps.jsonl"))
        return found[0].read_text().count("\n") if found else 0

    def wait(self, holds, what: str, timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            logs = "\n".join(f"== {path.name}\n{path.read_text()}" for path in self.root.glob("*.log"))
            assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}\n{logs}"
            time.sleep(0.05)

    def nothing_left(self) -> None:
        """No process, no record, key or lock of either side, no folder of a server or sandbox."""
        self.wait(lambda: not self.alive(), "processes to end", 10.0)
        assert not self.meet.exists(), sorted(self.meet.iterdir())
        assert sorted((self.root / "scratch").glob("swe_rl-*/*")) == []

    def alive(self) -> list[str]:
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or [])
            if str(self.root) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(line)
        return found

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def two(tmp_path):
    jobs = TwoJobs(tmp_path)
    yield jobs
    jobs.stop()


@pytest.mark.slow
def test_a_run_finds_its_server_and_both_end(two):
    """The run comes first, waits, and is told how a server is started."""
    two.cold = True
    run = two.run("rollout", "runtime=job", f"runtime.shared_dir={two.meet}", "trainer.steps=1")
    two.wait(lambda: "nobody has started it" in two.text("run.log"), "the run to wait")
    assert f"python -m swe_rl job=runtime runtime=job runtime.shared_dir={two.meet}" in two.text("run.log")
    server = two.server("runtime=job")
    record = two.record()
    key = (two.meet / "runtime.key").read_text()
    for path in two.meet.glob("*.*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(two.meet.stat().st_mode) == 0o700
    assert (record["slots"], record["node"], record["containers"], record["protocol"]) == (4, 0, "process", 1)
    assert record["url"].startswith("http://127.0.0.1:") and record["job_id"] is None
    assert len(key) >= 32 and not any(key in line for line in two.alive())
    assert run.wait(90) == 0, two.text("run.log")
    over = time.monotonic()
    assert server.wait(30) == 0, two.text("server.log")
    assert time.monotonic() - over < LEASE_S  # it was told, it did not have to guess
    assert "the run is over" in two.text("server.log")
    two.nothing_left()
    for path in two.root.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path
    done = (two.folder("rollout") / "trajectories" / "step_000001.jsonl").read_text().splitlines()
    assert len(done) == 4 and not any("error" in json.loads(line)["status"] for line in done)


@pytest.mark.slow
def test_a_run_that_is_killed_takes_its_server_along(two):
    server = two.server("runtime=job")
    two.record()
    run = two.run("rollout", "runtime=job", f"runtime.shared_dir={two.meet}", "trainer.steps=1000")
    two.wait(lambda: two.steps("rollout") >= 1, "a step")
    os.killpg(run.pid, signal.SIGKILL)
    killed = time.monotonic()
    assert server.wait(LEASE_S + 10) == 0, two.text("server.log")
    assert LEASE_S - 3 < time.monotonic() - killed < LEASE_S + 10
    assert "gave no sign of life" in two.text("server.log")
    two.nothing_left()
    assert json.loads((two.folder("runtime") / "status.json").read_text())["status"] == "done"


@pytest.mark.slow
def test_a_run_whose_server_is_killed_saves_and_fails(two):
    server = two.server("runtime=job")
    two.record()
    ready_s = 8.0
    run = two.run(
        "train",
        "runtime=job",
        f"runtime.shared_dir={two.meet}",
        "trainer.steps=1000",
        f"runtime.ready_timeout_s={ready_s:g}",
    )
    two.wait(lambda: two.steps("train") >= 2, "two steps")
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    killed = time.monotonic()
    assert run.wait(ready_s + 60) == 1, two.text("run.log")
    assert time.monotonic() - killed < ready_s + 30
    status = json.loads((two.folder("train") / "status.json").read_text())
    assert (status["status"], status["exit_status"]) == ("failed", 1) and "RuntimeLost" in status["reason"]
    saved = [path.name for path in (two.folder("train") / "checkpoints").glob("step_*")]
    assert saved == [f"step_{two.steps('train'):06d}"]
    text = " ".join(two.text("run.log").split())
    assert "No sandbox server is left: sandbox server 0 did not answer" in text
    assert f"`python -m swe_rl job=runtime runtime=job runtime.shared_dir={two.meet}`" in text
    two.wait(lambda: not two.alive(), "processes to end", 10.0)
    assert not two.meet.exists(), sorted(two.meet.iterdir())


@pytest.mark.slow
def test_a_server_that_is_started_again_is_used_again(two):
    first = two.server("runtime=job")
    two.record()
    run = two.run("rollout", "runtime=job", f"runtime.shared_dir={two.meet}", "trainer.steps=6")
    two.wait(lambda: two.steps("rollout") >= 1, "a step")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = two.server("runtime=job", log="second.log")
    assert run.wait(120) == 0, two.text("run.log")
    assert two.steps("rollout") == 6
    assert two.text("run.log").count("places on") == 2
    assert second.wait(30) == 0
    two.nothing_left()  # what the killed one left in the scratch folder, the second has removed


@pytest.mark.slow
def test_a_server_of_its_own_stays_for_many_runs(two):
    """`job=runtime` alone; runs find it by its folder, or by its address and key."""
    server = two.server()
    record, key = two.record(), (two.meet / "runtime.key").read_text()
    by_folder = two.run("rollout", "runtime=external", f"runtime.shared_dir={two.meet}", "trainer.steps=1")
    assert by_folder.wait(90) == 0, two.text("run.log")
    by_address = ("runtime=external", f"sandbox.runtime_url={record['url']}", "trainer.steps=1", "name=second")
    assert two.run("rollout", *by_address, log="second.log", SWE_RL_RUNTIME_KEY=key).wait(90) == 0
    wrong = two.run("rollout", *by_address, log="wrong.log", SWE_RL_RUNTIME_KEY="not-this-one")
    assert wrong.wait(90) == 2 and "wants another key" in " ".join(two.text("wrong.log").split())
    assert server.poll() is None
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 130, two.text("server.log")
    two.nothing_left()


@pytest.fixture(scope="module", params=["docker", "podman"])
def container_engine(request):
    """Kind and address, with the image of tests/sandbox/host_image.py."""
    pytest.importorskip("docker")
    try:
        with engine(request.param) as address:
            yield request.param, address
    except NoEngineError as error:
        pytest.skip(str(error))


@pytest.mark.docker
@pytest.mark.parametrize("killed", ["run", "server"])
def test_containers_end_with_either_side(two, container_engine, killed):
    import docker

    kind, address = container_engine
    client = docker.DockerClient(base_url=address, timeout=60)
    two.containers = (
        f"runtime.containers={kind}",
        f"sandbox.host={address}",
        f"sandbox.image={host_image.IMAGE}",
        f"sandbox.mounts=[{','.join(host_image.mounts())}]",
        "sandbox.pull=never",
    )

    def names():
        return [one["Names"] for one in client.api.containers(all=True)]

    server = two.server("runtime=job")
    two.record()
    run = two.run("rollout", "runtime=job", f"runtime.shared_dir={two.meet}", "runtime.ready_timeout_s=8", *ENDLESS)
    two.wait(lambda: two.steps("rollout") >= 1 and names(), "a step, and containers of the next one")
    done = (two.folder("rollout") / "trajectories" / "step_000001.jsonl").read_text().splitlines()
    assert not any("error" in json.loads(line)["status"] for line in done), done
    one, other, status = (run, server, 0) if killed == "run" else (server, run, 1)
    os.killpg(one.pid, signal.SIGKILL)
    one.wait()
    assert other.wait(60) == status, two.text("run.log")
    two.wait(lambda: not names(), "containers to be gone", 30.0)
    two.wait(lambda: not two.alive(), "processes to end", 15.0)
    assert not two.meet.exists(), sorted(two.meet.iterdir())
    client.close()
