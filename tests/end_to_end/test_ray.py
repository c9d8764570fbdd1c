"""The trainer's ranks on two nodes of a Ray cluster, from the command line: the run of one process; what kills end."""

import os
import re
import signal
import time

import pytest

from tests.end_to_end.test_stream import whole
from tests.support.waiting import gone
from tests.trainer import ray_nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def nodes():
    pytest.importorskip("ray")
    with ray_nodes.running() as cluster:
        yield cluster


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


def test_steps_are_those_of_one_process_and_a_killed_driver_takes_its_actors_with_it(
    command, nodes, overrides, finished
):
    process = command.start(*overrides, "trainer.steps=50")
    command.wait_for_step(process, 3, timeout_s=300)
    assert len(nodes.ranks()) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert no_ranks(nodes)
    for mine, other in zip(command.steps()[:3], finished.steps(), strict=True):
        for key in ("loss", "grad_norm", "entropy"):
            assert mine[key] == pytest.approx(other[key], abs=1e-5), (mine["step"], key)
        assert mine["reward_mean"] == other["reward_mean"] and mine["trained_tokens"] == other["trained_tokens"]


@pytest.mark.long  # tests/end_to_end/test_parallel.py has it without Ray
def test_groups_flow_beside_ranks_of_which_one_is_killed_and_replaced_to_a_quiet_end(command, nodes, overrides):
    """The run names the actor that was lost, and ends all others itself."""
    process = command.start(*overrides, "rollout.mode=stream", "trainer.steps=4", "trainer.max_restarts=1")
    command.wait_for_checkpoint(process, 1, timeout_s=300)
    first = nodes.ranks()
    os.kill(first[1].pid, signal.SIGKILL)
    status, text = ended(process, timeout_s=240)
    flat = " ".join(text.split())
    assert status == 0 and "Traceback" not in text, text
    assert re.search(
        rf"rank \d is lost \(its actor on node .* process {first[1].pid}, died.*\); restart 1 of 1", flat
    ), text
    assert nodes.ranks() == [] and gone(first)
    steps = whole(command, 4)
    assert [one["weight_version"] for one in steps] == [1, 2, 3, 4]
    assert {int(age) for one in steps for age in one["token_staleness"]} >= {0, 1}
    logs = sorted(path.relative_to(command.folder()).as_posix() for path in command.folder().glob("trainer/**/*.log"))
    assert logs == [f"trainer/{part}rank{rank}.log" for part in ("", "restart1/") for rank in (0, 1)]


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
