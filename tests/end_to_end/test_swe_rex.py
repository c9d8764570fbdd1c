"""SWE-ReX's docker deployment, by its own library: the conformance suite, a verdict, a run that is killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.waiting import wait_until  # noqa: E402

pytestmark = pytest.mark.docker

_LABEL = "swe_rl.sandbox"
_GONE_S = 40.0  # a command's own time besides the lease


@pytest.fixture(scope="module")
def engine_client():
    """An engine with an image that has SWE-ReX's server, and a network: the library reaches it by a published port."""
    from tests.sandbox.engines import NoEngineError, engine

    docker = pytest.importorskip("docker")
    pytest.importorskip("swerex")
    with pytest.MonkeyPatch.context() as patch:
        try:
            with engine("docker") as address:
                patch.setenv("DOCKER_HOST", address)
                client = docker.DockerClient(base_url=address, timeout=60)
                network = client.networks.create("swe_rl-test-rex")
                yield client
                for left in there(client):
                    client.api.remove_container(left, force=True)
                network.remove()
                client.close()
        except NoEngineError as error:
            pytest.skip(str(error))


@pytest.fixture
def chosen(engine_client):
    """Of the command: the gold patch of an instance, in containers of SWE-ReX."""
    from tests.sandbox import host_image

    return (
        "job=eval",
        "env=bugs",
        'env.instances="bugs__routes-00*"',
        "env.eval_split=train",
        "sandbox=swe_rex",
        f"sandbox.image={host_image.IMAGE}",
        f"sandbox.mounts=[{','.join(host_image.mounts())}]",
        "sandbox.pull=never",
        "+sandbox.params.options.docker_args=[--network,swe_rl-test-rex]",
        "sandbox.concurrency=2",
        "rollout.concurrency=2",
        "rollout.eval_n=1",
        "agent=gold",
    )


def there(client):
    """The ids of its containers."""
    return [one["Id"] for one in client.api.containers(all=True, filters={"label": _LABEL})]


def test_a_docker_deployment_conforms(engine_client, tmp_path):
    from swe_rl.sandbox.swe_rex import SweRex
    from swe_rl.testing import check_sandbox
    from tests.sandbox import host_image

    words = ["--network", "swe_rl-test-rex"]
    for mount in host_image.mounts():
        words += ["--volume", f"{mount}:ro"]
    options = {"docker_args": words, "pull": "never"}
    check_sandbox(SweRex, tmp_path, {"deployment": "docker", "options": options}, image=host_image.IMAGE)
    wait_until(lambda: not there(engine_client))  # the engine removes it after the end that `close` waits for


def test_a_run_reaches_its_verdict_and_leaves_no_container(command, chosen, engine_client):
    done = command.run(*chosen, "sandbox.memory_gb=0.5", small=False)
    assert done.exit_status == 0, done.text
    records = command.read(command.folder("eval") / "trajectories" / "eval_000000.jsonl")
    assert [record["status"] for record in records] == ["resolved"]
    wait_until(lambda: not there(engine_client))
    keys = [line for line in done.text.splitlines() if "auth-token" in line]
    assert not keys, "what SWE-ReX prints has the keys of its servers"


_KILLED = """
import asyncio, json, sys
from pathlib import Path
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.sandbox import Workspace
from swe_rl.sandbox.swe_rex import SweRex

async def main(image, mounts, scratch):
    config = SandboxConfig(network=True, lease_s=3.0, mounts=tuple(mounts), pull="never", memory_gb=0.5)
    options = {"docker_args": ["--network", "swe_rl-test-rex"]}
    made = await SweRex(config, Path(scratch), "docker", options).create(Workspace(image=image), "killed", None)
    await asyncio.sleep(4)  # longer than the lease: it hears from its run
    print(made.sandbox_id, flush=True)
    await made.exec("sleep 600", 600.0, {})

asyncio.run(main(*json.loads(sys.argv[1])))
"""


def test_a_container_of_a_killed_run_ends_by_its_lease(engine_client, tmp_path):
    """With the engine's client that started it killed as well, and a command at work: nothing else looks after it."""
    from tests.sandbox import host_image

    facts = json.dumps([host_image.IMAGE, host_image.mounts(), str(tmp_path)])
    words = [sys.executable, "-c", _KILLED, facts]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            name = process.stdout.readline().strip()
            (only,) = there(engine_client)
            container = engine_client.containers.get(only)
            wait_until(lambda: "sleep 600" in str(container.top()["Processes"]))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert container.labels[_LABEL] == name and container.attrs["HostConfig"]["Memory"] == 1024**3 // 2
    wait_until(lambda: not there(engine_client), _GONE_S)
