"""The trainer's ranks on two nodes of a Ray cluster, from the command line: the run of one process; what kills end."""

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NODES = Path(__file__).parents[1] / "trainer" / "ray_nodes.py"


@pytest.fixture(scope="module")
def nodes():
    pytest.importorskip("ray")
    spec = importlib.util.spec_from_file_location("ray_nodes", NODES)
    ray_nodes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ray_nodes)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in ray_nodes.ENVIRONMENT.items():
            patch.setenv(key, value)
        cluster = ray_nodes.RayNodes()
        yield cluster
        cluster.stop()


@pytest.fixture
def overrides(nodes):
    return ("layout=local2", f"hardware.ray_address={nodes.address}", "trainer.collective_timeout_s=120")


def no_ranks(nodes, timeout_s=20):
    until = time.monotonic() + timeout_s
    while nodes.ranks() and time.monotonic() < until:
        time.sleep(0.1)
    return nodes.ranks() == []


def ended(process, timeout_s=60):
    stdout, stderr = process.communicate(timeout=timeout_s)
    return process.returncode, stdout + stderr


def test_a_killed_driver_takes_its_actors_with_it_and_the_run_is_that_of_one_process(
    command, nodes, overrides, finished
):
    process = command.start(*overrides, "trainer.resume=auto")
    command.wait_for_step(process, 1, timeout_s=300)
    assert len(nodes.ranks()) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert no_ranks(nodes)
    done = command.run(*overrides, "trainer.resume=auto")
    assert done.exit_status == 0 and [one["step"] for one in command.steps()] == [1, 2, 3], done.text
    for mine, other in zip(command.steps(), finished.steps(), strict=True):
        for key in ("loss", "grad_norm", "entropy"):
            assert mine[key] == pytest.approx(other[key], abs=1e-5), (mine["step"], key)
        assert mine["reward_mean"] == other["reward_mean"] and mine["trained_tokens"] == other["trained_tokens"]
    assert [path.name for path in sorted((command.folder() / "trainer").iterdir())] == ["rank0.log", "rank1.log"]
    assert nodes.ranks() == []


def test_groups_flow_beside_ranks_on_two_nodes_until_an_actor_is_killed(command, nodes, overrides):
    """It ends the run with its name."""
    process = command.start(*overrides, "rollout.mode=stream", "trainer.steps=50", "trainer.max_restarts=0")
    command.wait_for_step(process, 3, timeout_s=300)
    killed = nodes.ranks()[1].pid
    os.kill(killed, signal.SIGKILL)
    status, text = ended(process)
    flat = " ".join(text.split())
    assert status == 1 and "run failed: Rank " in flat and f"process {killed}, died" in flat, text
    assert no_ranks(nodes) and "Traceback" not in text
    steps = command.steps()[:3]
    groups = [group for one in steps for group in one["groups"]]
    assert [one["step"] for one in steps] == [1, 2, 3] and len(set(groups)) == len(groups)
    assert [one["weight_version"] for one in steps] == [1, 2, 3]
    assert {int(age) for one in steps for age in one["token_staleness"]} >= {0, 1}


@pytest.mark.long
def test_a_killed_actor_is_replaced_where_restarts_are_allowed(command, nodes, overrides):
    process = command.start(*overrides, "trainer.steps=6", "trainer.max_restarts=1")
    command.wait_for_step(process, 1, timeout_s=300)
    os.kill(nodes.ranks()[0].pid, signal.SIGKILL)
    status, text = ended(process, timeout_s=240)
    assert status == 0 and len(command.steps()) == 6, text
    assert no_ranks(nodes)


@pytest.mark.long
def test_ctrl_c_saves_and_leaves_nothing(command, nodes, overrides):
    process = command.start(*overrides, "trainer.steps=50")
    command.wait_for_step(process, 1, timeout_s=300)
    os.killpg(process.pid, signal.SIGINT)
    status, text = ended(process)
    assert status == 130 and "is saved" in text, text
    assert no_ranks(nodes)


def test_a_cluster_that_is_not_there_is_one_paragraph(command):
    done = command.run("layout=local2", "hardware.ray_address=127.0.0.1:1")
    assert done.exit_status == 2 and "nothing answers at 127.0.0.1:1" in " ".join(done.stderr.split())
    assert done.stderr.count("\n\n") == 0 and "Traceback" not in done.text
