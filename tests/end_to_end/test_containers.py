"""The container oracle, small: real packages judged in containers by the real command, and nothing left in any case."""

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# A grading of a known fix runs its tests several times, on a machine that may be busy.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

_PACKAGES, _EACH = "inflection,parse", 2
_UP_S, _GONE_S = 120.0, 30.0


@dataclass(frozen=True)
class Oracle:
    address: str
    client: object
    instances: list
    dataset: Path
    out: Path


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """Four instances of two packages with their images, on an engine of this machine."""
    from swe_rl.env.source_build.interpreter import find_prefix
    from swe_rl.env.source_build.program import BuildError
    from swe_rl.env.source_build.sdist import fetch_sdist
    from tests.sandbox.engines import NoEngineError, engine
    from tests.support.oracle.make import SOURCES, chosen, make

    docker = pytest.importorskip("docker")
    pytest.importorskip("swebench")
    packages, out = chosen(_PACKAGES), tmp_path_factory.mktemp("oracle")
    try:
        find_prefix(f"{sys.version_info.major}.{sys.version_info.minor}")
        for package in packages:
            fetch_sdist(package.sdist, out / SOURCES / "sdists")
    except BuildError as error:
        pytest.skip(str(error))
    try:
        with engine("docker") as address:
            made = make(out, packages, each=_EACH, seed=0, address=address)
            client = docker.DockerClient(base_url=address, timeout=60)
            yield Oracle(address, client, made, out / "instances.jsonl", out)
            for image in {one.image for one in made}:
                client.images.remove(image, force=True)
            client.close()
    except NoEngineError as error:
        pytest.skip(str(error))


class Watch:
    """What the containers of one run are and hold on this machine, and whether any of it is there still."""

    def __init__(self, oracle, command):
        self._client, self._root = oracle.client, command.root
        self._images = {one.image for one in oracle.instances}
        self._volumes = self._volume_names()
        self.seen, self._pids, self._mounts = set(), set(), set()

    def containers(self):
        """Of the run: only they have its scratch folder's provider, but every one of these images counts."""
        found = [one for one in self._client.api.containers(all=True) if one["Image"] in self._images]
        for one in found:
            try:
                facts = self._client.api.inspect_container(one["Id"])
            except Exception:  # it ended in between
                continue
            self.seen.add(one["Id"])
            with contextlib.suppress(psutil.NoSuchProcess):  # it may end between the two questions
                if facts["State"]["Pid"]:
                    process = psutil.Process(facts["State"]["Pid"])
                    self._pids.add(
                        (process.pid, process.create_time())
                    )  # others begin in the same hundredth of a second
            layers = (facts.get("GraphDriver") or {}).get("Data") or {}  # there is none while one is being removed
            self._mounts.add(layers.get("MergedDir"))
        return [one["Id"] for one in found]

    def wait_for(self, count, process):
        until = time.monotonic() + _UP_S
        while time.monotonic() < until and process.poll() is None:
            if len(self.containers()) >= count and all(self.running()):
                return
            time.sleep(0.1)
        raise AssertionError(f"no container came up: {process.communicate()}")

    def running(self):
        return [one["State"] == "running" for one in self._client.api.containers(all=True) if one["Id"] in self.seen]

    def left(self):
        """Everything that is not gone, by its kind."""
        mounted = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
        return {
            "containers": self.containers(),
            "processes": self._processes(),
            "mounts": sorted(mounted & (self._mounts - {None})),
            "volumes": sorted(self._volume_names() - self._volumes),
            "folders": [str(path) for path in (self._root / "scratch").glob("swe_rl-*/containers-*")],
        }

    def nothing_left(self):
        """Within the reaper's time."""
        until = time.monotonic() + _GONE_S
        while any(self.left().values()) and time.monotonic() < until:
            time.sleep(0.3)
        return not any(left := self.left().values()) or pytest.fail(str(left))

    def _processes(self):
        """Of the containers, and of the run itself, its reaper included."""
        found = []
        for process in psutil.process_iter(["cmdline", "create_time", "status"]):
            line = " ".join(process.info["cmdline"] or [])
            ours = (process.pid, process.info["create_time"]) in self._pids or str(self._root) in line
            if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(line)
        return found

    def _volume_names(self):
        return {volume.name for volume in self._client.volumes.list()}


@pytest.fixture
def watch(oracle, command):
    return Watch(oracle, command)


def evaluation(oracle, *more, dataset=None):
    return (
        *("job=eval", "env=jsonl", f"env.dataset={dataset or oracle.dataset}", "rollout.eval_n=1"),
        *("sandbox=docker", f"sandbox.host={oracle.address}", "sandbox.concurrency=2", "sandbox.memory_gb=1.0"),
        *("rollout.concurrency=2", f"paths.cache={oracle.out / 'cache'}", *more),
    )


def test_every_gold_patch_is_resolved_and_no_change_that_fixes_nothing(oracle, command, watch):
    from tests.support.oracle.engine import containers_left
    from tests.support.oracle.run import Application
    from tests.support.oracle.table import shortfalls, table

    application = Application(command.root, oracle.dataset, "docker", oracle.address)
    gold, no_op = application.evaluate("gold"), application.evaluate("noop")
    assert shortfalls(oracle.instances, gold, no_op, whole=False) == []
    assert "100.0 %" in table(oracle.instances, gold, no_op).splitlines()[-1]
    for arm in (gold, no_op):
        assert containers_left(oracle.client, arm.folder.name) == []
    for one in gold.trajectories:  # the change that was taken out of the container is the gold patch's and no other
        [instance] = [it for it in oracle.instances if it.instance_id == one["instance_id"]]
        assert changed(one["patch"]) == changed(instance.patch)
    assert watch.nothing_left()


def changed(patch):
    return [line for line in patch.splitlines() if line[:1] in "+-" or line.startswith("diff --git")]


def test_a_patch_that_fixes_nothing_is_graded_and_not_resolved(oracle, command, watch):
    one = oracle.instances[0]
    done = command.run(*evaluation(oracle, "agent=scripted", "agent.command='echo x > harmless.txt'"), small=False)
    assert done.exit_status == 0, done.text
    records = command.read(command.folder("eval") / "trajectories" / "eval_000000.jsonl")
    assert [record["status"] for record in records] == ["unresolved"] * len(oracle.instances)
    [record] = [record for record in records if record["instance_id"] == one.instance_id]
    failed = {test for test, passed in record["tests"].items() if not passed}
    assert failed == set(one.fail_to_pass)  # PASS_TO_PASS really ran and passed
    assert watch.nothing_left()


def test_an_image_that_cannot_be_had_fails_the_run_and_leaves_nothing(oracle, command, watch):
    from swe_rl.dataset.records import write_instances

    dataset = command.root / "one_missing.jsonl"
    first, *others = oracle.instances
    write_instances(dataset, [replace(first, image="localhost/swe_rl-no-such-image:latest", source=None), *others])
    more = ("agent=gold", "sandbox.pull=never", "rollout.max_infra_failure_rate=0.0", "rollout.infra_retries=0")
    done = command.run(*evaluation(oracle, *more, dataset=dataset), small=False)
    assert done.exit_status != 0 and "no-such-image" in done.text, done.text
    assert watch.nothing_left()


@pytest.mark.parametrize(
    ("signal_number", "exit_status"),
    [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["ctrl_c", "kill"],
)
def test_ended_from_outside_it_leaves_nothing(oracle, command, watch, signal_number, exit_status):
    more = ("agent=scripted", "agent.command='sleep 300'", "rollout.command_timeout_s=400")
    process = command.start(*evaluation(oracle, *more), small=False)
    try:
        watch.wait_for(2, process)
        time.sleep(2.0)  # into the command
        os.kill(process.pid, signal_number)
        process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == exit_status
    assert watch.seen and watch.nothing_left()


def test_harbor_tasks_are_proven_and_a_process_left_behind_is_not_paid(oracle, command, watch):
    """The second task's solution goes on writing a reward while its verifier, which says no, is at work.

    Its image is named by no file: it is what its Dockerfile was built as.
    """
    image = oracle.instances[0].image
    oracle.client.images.get(image).tag("hb__forged")
    waits = "sleep 1; echo 0 > /logs/verifier/reward.txt; sleep 1\n"
    forever = "while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done"
    tasks = {
        "answered": ("[ -f answer ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n", "touch answer\n"),
        "forged": (waits, f"setsid nohup bash -c '{forever}' >/dev/null 2>&1 &\nsleep 0.5\n"),
    }
    for name, (test, solution) in tasks.items():
        for file, text in {
            "instruction.md": "Make a file with the name answer.\n",
            "task.toml": f'[environment]\ndocker_image = "{image}"\n' if name == "answered" else "",
            "environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n",
            "tests/test.sh": test,
            "solution/solve.sh": solution,
        }.items():
            path = command.root / "tasks" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    chosen = ("env=harbor", f"env.dataset={command.root / 'tasks'}", "sandbox=docker", f"sandbox.host={oracle.address}")
    chosen += ("env.eval_split=train", f"env.proofs={command.root / 'proofs.jsonl'}")
    proven = command.run("job=validate", *chosen, small=False)
    assert "answered: proven" in proven.stdout and "test.sh, and it scores 0" in proven.stdout, proven.text
    few = ("agent=gold", "rollout.eval_n=1", "sandbox.concurrency=2", "rollout.concurrency=2")
    done = command.run("job=eval", *chosen, *few, "env.unproven=keep", small=False)
    assert done.exit_status == 0, done.text
    records = command.read(command.folder("eval") / "trajectories" / "eval_000000.jsonl")
    assert {record["instance_id"]: record["status"] for record in records} == {
        "answered": "resolved",
        "forged": "unresolved",
    }
    refused = command.run("job=eval", *chosen, *few, "env.unproven=refuse", small=False)
    assert refused.exit_status == 2 and "1 of 2 instances of train are not proven: forged: with" in refused.text
    assert watch.nothing_left()


def test_tasks_of_others_are_proven_and_stay_as_they_are(command):
    """A folder of tasks whose images are on the engine of DOCKER_HOST: each is proven and has its files as before."""
    from swe_rl.env.harbor.task import digest_of

    given = os.environ.get("SWE_RL_HARBOR_TASKS")
    if not given:
        pytest.skip("SWE_RL_HARBOR_TASKS names no folder of Harbor tasks")
    before = digest_of(Path(given))
    done = command.run(
        "job=validate", "env=harbor", f"env.dataset={given}", "sandbox=docker", "sandbox.pull=never", small=False
    )
    assert done.exit_status == 0, done.text
    assert digest_of(Path(given)) == before
