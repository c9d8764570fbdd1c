"""sandbox=kubernetes by the official client: pods of a fake API server, which run commands for real."""

import asyncio
import importlib.util
import json

import pytest

from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import USED_TOO_MUCH, SandboxError, Workspace
from swe_rl.testing import check_sandbox
from tests.support import fake_machine
from tests.support.fake_kubernetes import TOKEN, FakeKubernetes
from tests.support.fake_machine import CAN_RUN
from tests.support.waiting import until

# Its import takes half a second of a core, which each process that collects this file would spend.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("kubernetes") is None, reason="without `kubernetes`")
needs_pods = pytest.mark.skipif(not CAN_RUN, reason="the fake's pods need root, bubblewrap and nsenter")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    (tmp_path / "cluster").mkdir()
    with FakeKubernetes(tmp_path / "cluster") as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
        monkeypatch.setattr("swe_rl.sandbox.hosted.cluster._LOOK_S", 0.02)
        yield fake


@pytest.fixture
async def provide(tmp_path):
    made = []

    def make(*words):
        config = compose(["sandbox=kubernetes", "sandbox.image=a:1", "sandbox.concurrency=4", *words]).config.sandbox
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        made.append(make_provider(config, scratch, pytest.fail))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()


@needs_pods
@pytest.mark.slow
def test_pods_conform_and_those_of_a_killed_run_end_by_their_lease(cluster, tmp_path):
    from swe_rl.sandbox.kubernetes import Kubernetes

    (tmp_path / "scratch").mkdir()
    check_sandbox(QuickLease, tmp_path / "scratch", image="a:1")
    assert Kubernetes.ends_when_killed
    left = [name for name, pod in cluster.pods.items() if pod.process.poll() is None]
    assert not left, "only the ended pod of the killed run is there"


def _quick_lease():
    from dataclasses import replace

    from swe_rl.sandbox.kubernetes import Kubernetes

    class QuickLease(Kubernetes):
        """With a lease that a test can wait for."""

        def __init__(self, config, scratch):
            super().__init__(replace(config, lease_s=4.0, concurrency=4), scratch)

    QuickLease.__qualname__ = "QuickLease"
    return QuickLease


QuickLease = _quick_lease()


@needs_pods
async def test_a_folder_is_copied_into_a_pod_that_is_described_as_asked(cluster, provide, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "given.txt").write_text("given\n")
    words = ["sandbox.cpus=0.5", "sandbox.memory_gb=1", "sandbox.disk_gb=2", "+sandbox.params.pod.nodeSelector.a=b"]
    provider = provide(*words)
    sandbox = await provider.create(Workspace(path=tmp_path / "folder"), owner="group/one")
    assert (await sandbox.exec("cat given.txt; pwd", timeout_s=20)).output == "given\n/testbed\n"
    (name,) = cluster.pods
    pod = cluster.pods[name].described
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["labels"] == {"swe_rl.sandbox": name, "swe_rl.owner": "group_one"}
    amounts = {"cpu": "0.5", "memory": str(1024**3), "ephemeral-storage": str(2 * 1024**3)}
    assert container["resources"] == {"limits": amounts, "requests": amounts}
    assert pod["spec"]["nodeSelector"] == {"a": "b"} and pod["spec"]["activeDeadlineSeconds"] == 86_400
    assert pod["spec"]["automountServiceAccountToken"] is False and pod["spec"]["restartPolicy"] == "Never"
    assert cluster.policies[0]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert cluster.authorized == {f"Bearer {TOKEN}"}
    await sandbox.close()
    assert not cluster.pods


@needs_pods
async def test_long_commands_and_files_do_not_go_into_the_address(cluster, provide):
    sandbox = await provide().create(Workspace(image="a:1"), owner="o")
    said = "x" * 100_000
    assert (await sandbox.exec(f"echo {said} | wc -c", timeout_s=20)).output == "100001\n"
    content = bytes(range(256)) * 8_000
    await sandbox.write_file("large", content)
    assert await sandbox.read_file("large") == content
    with pytest.raises(MissingFileError):
        await sandbox.read_file("nowhere")


@needs_pods
async def test_a_pod_that_ends_while_a_command_runs_is_an_error_and_no_exit_status(cluster, provide):
    sandbox = await provide().create(Workspace(image="a:1"), owner="o")
    running = asyncio.ensure_future(sandbox.exec("sleep 600", timeout_s=600))
    (pod,) = cluster.pods.values()
    await until(lambda: len(pod.running) > 1)
    pod.end()
    with pytest.raises(SandboxError):
        await running


@needs_pods
async def test_an_ended_pod_that_another_run_left_is_removed(cluster, provide):
    await provide().create(Workspace(image="a:1"), owner="left")
    (name,) = cluster.pods
    cluster.pods[name].end()
    await provide().create(Workspace(image="a:1"), owner="next")
    assert name not in cluster.pods and len(cluster.pods) == 1


@needs_pods
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"waiting": ["ErrImagePull", "ImagePullBackOff"] * 9}, "the pod cannot start: ErrImagePull: of its image"),
        ({"POST pods": 403}, "the cluster refuses create_namespaced_pod: 403"),
        ({"GET exec": 500}, "no command can be started: Handshake status 500"),
    ],
    ids=["image", "forbidden", "exec"],
)
async def test_a_cluster_that_refuses_is_an_error_and_leaves_no_pod(cluster, provide, fault, said):
    cluster.faults.update(fault)
    with pytest.raises(SandboxError, match=said):
        await provide().create(Workspace(image="a:1"), owner="o")
    assert not cluster.pods


@needs_pods
async def test_a_cancelled_start_leaves_no_pod(cluster, provide):
    provider = provide()
    start = asyncio.ensure_future(provider.create(Workspace(image="a:1"), owner="o"))
    await until(lambda: ("POST", "/api/v1/namespaces/default/pods") in cluster.requests)
    start.cancel()
    await asyncio.wait({start})
    await until(lambda: not cluster.pods)


def test_what_cannot_be_used_is_a_users_mistake(cluster, provide, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="are in no pod"):
        provide("sandbox.mounts=[/a:/b]")
    with pytest.raises(UserError, match="finds no cluster .*elsewhere.*set KUBECONFIG"):
        provide("sandbox.params.context=elsewhere")
    (tmp_path / "empty").write_text(json.dumps({}))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "empty"))
    with pytest.raises(UserError, match="finds no cluster"):
        provide()


@needs_pods
@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /tmp/*; echo done",
        "rm -rf /tmp/*; sleep 0.3; echo done",
        "for place in /tmp/swe_rl-*/; do echo x > $place/status; done; sleep 0.3",
        "for place in /tmp/swe_rl-*/; do mkfifo $place/status $place/ended; done; sleep 0.3",
        "for place in /tmp/swe_rl-*/; do rm $place/out; ln -s /dev/zero $place/out; done",
        "kill -KILL 1; kill -STOP 1; kill -TERM 1; sleep 0.3; echo done",
    ],
    ids=["tmp", "tmp, slowly", "status", "fifo", "endless output", "first process"],
)
async def test_no_command_breaks_its_pod_or_what_watches_it(cluster, provide, command, monkeypatch):
    monkeypatch.setattr("swe_rl.sandbox.kubernetes.Pod.wait_s", 0.1)
    sandbox = await provide().create(Workspace(image="a:1"), owner="o")
    result = await asyncio.wait_for(sandbox.exec(command, timeout_s=8), 20)
    assert not result.timed_out
    (pod,) = cluster.pods.values()
    assert (await sandbox.exec("echo alive", timeout_s=8)).output == "alive\n"
    assert pod.process.poll() is None


@needs_pods
async def test_what_bash_says_of_an_images_environment_is_in_no_status_and_no_file(cluster, provide, monkeypatch):
    monkeypatch.setitem(fake_machine.ENV, "LC_ALL", "xx_XX.UTF-8")
    sandbox = await provide().create(Workspace(image="a:1"), owner="o")
    assert (await sandbox.exec("echo said", timeout_s=8)).output == "said\n"
    await sandbox.write_file("file", b"content")
    assert await sandbox.read_file("file") == b"content"


@needs_pods
async def test_a_cluster_that_is_busy_at_first_is_asked_again(cluster, provide, monkeypatch):
    monkeypatch.setattr("swe_rl.sandbox.hosted.cluster._PAUSE_S", 0.01)
    cluster.busy = {"POST pods": 2, "GET exec": 2, "GET pods": 1, "POST networkpolicies": 1}
    sandbox = await provide().create(Workspace(image="a:1"), owner="o")
    assert (await sandbox.exec("echo said", timeout_s=8)).output == "said\n"
    assert not any(cluster.busy.values())


@needs_pods
async def test_a_first_request_that_failed_is_made_again_by_the_next_sandbox(cluster, provide):
    provider = provide()
    cluster.faults["POST networkpolicies"] = 500
    with pytest.raises(SandboxError):
        await provider.create(Workspace(image="a:1"), owner="o")
    cluster.faults.clear()
    await provider.create(Workspace(image="a:1"), owner="o")


@needs_pods
async def test_a_cancelled_start_stays_cancelled_where_its_pod_cannot_be_removed(cluster, tmp_path):
    from swe_rl.sandbox.kubernetes import Kubernetes

    config = compose(["sandbox=kubernetes", "sandbox.image=a:1"]).config.sandbox
    provider = Kubernetes(config, tmp_path)
    cluster.faults.update({"waiting": "ContainerCreating", "DELETE swe": 500})
    start = asyncio.ensure_future(provider.create(Workspace(image="a:1"), "o", None))
    await until(lambda: cluster.pods)
    start.cancel()
    await asyncio.wait({start})
    assert start.cancelled()
    cluster.faults.clear()


@needs_pods
async def test_a_file_larger_than_any_may_be_is_refused_before_it_is_sent(cluster, provide):
    sandbox = await provide("sandbox.max_file_mb=1").create(Workspace(image="a:1"), owner="o")
    await sandbox.exec("truncate -s 64M large", timeout_s=8)
    before = cluster.sent_bytes
    with pytest.raises(SandboxError, match="large"):
        await sandbox.read_file("large")
    assert cluster.sent_bytes - before < 10_000


@needs_pods
async def test_nothing_outlives_its_command_however_it_hides(cluster, provide):
    sandbox = await provide().create(Workspace(image="a:1"), owner="o")
    await sandbox.exec("env -i setsid bash -c 'setsid sleep 613 & sleep 613' > /dev/null 2>&1 & sleep 0.2", timeout_s=9)
    assert "613" not in (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr -d '\\0'; true", timeout_s=9)).output
    (pod,) = cluster.pods.values()
    assert not pod.has_ended


@needs_pods
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ({"reason": "OOMKilled"}, "used more than 4 GB of memory"),
        ({"evicted": "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."}, "used more disk"),
    ],
)
async def test_a_pod_that_its_own_limits_ended_is_its_agents_doing(cluster, provide, ends, said):
    sandbox = await provide().create(Workspace(image="a:1"), owner="o")
    running = asyncio.ensure_future(sandbox.exec("sleep 600", timeout_s=600))
    (pod,) = cluster.pods.values()
    await until(lambda: len(pod.running) > 3)
    pod.reason, pod.evicted = ends.get("reason", ""), ends.get("evicted", "")
    pod.end()
    for result in (await running, await sandbox.exec("true", timeout_s=9)):
        assert result.exit_code == 137 and USED_TOO_MUCH in result.output and said in result.output
    with pytest.raises(SandboxError):
        await sandbox.read_file("x")


@needs_pods
async def test_a_node_that_lacks_memory_is_no_agents_doing(cluster, provide):
    sandbox = await provide().create(Workspace(image="a:1"), owner="o")
    (pod,) = cluster.pods.values()
    pod.evicted = "The node was low on resource: memory."
    pod.end()
    with pytest.raises(SandboxError):
        await sandbox.exec("true", timeout_s=9)


@needs_pods
async def test_a_pod_without_room_for_a_process_is_its_agents_doing(cluster, provide):
    sandbox = await provide().create(Workspace(image="a:1"), owner="o")
    cluster.faults["no process"] = True
    result = await sandbox.exec("true", timeout_s=9)
    assert result.exit_code == 137 and "used more processes than its pod may have" in result.output


@needs_pods
async def test_a_pull_that_failed_is_waited_for_as_often_as_asked(cluster, provide):
    cluster.faults["waiting"] = ["ErrImagePull", "ImagePullBackOff", "ErrImagePull", "ImagePullBackOff"]
    sandbox = await provide("sandbox.pull_retries=3").create(Workspace(image="a:1"), owner="o")
    await sandbox.close()
    cluster.faults["waiting"] = ["ErrImagePull", "ImagePullBackOff"] * 3
    with pytest.raises(SandboxError, match="ErrImagePull"):
        await provide("sandbox.pull_retries=2").create(Workspace(image="a:1"), owner="o")
    assert len(cluster.faults["waiting"]) > 1


@needs_pods
async def test_a_cluster_that_takes_a_connection_and_is_silent_holds_no_thread(cluster, provide, monkeypatch):
    provider = provide()
    monkeypatch.setattr("swe_rl.sandbox.hosted.cluster._CALL_S", 0.3)
    cluster.faults["silent"] = True
    with pytest.raises(SandboxError, match="no command can be started"):
        await asyncio.wait_for(provider.create(Workspace(image="a:1"), owner="o"), 20)
    cluster.faults.clear()
