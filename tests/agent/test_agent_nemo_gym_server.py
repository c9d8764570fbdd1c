"""env=nemo_gym against resource servers that the package nemo-gym ships, with the rows that it ships for them."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from swe_rl.agent.agent import AgentError, Exit
from swe_rl.env.nemo_gym.env import look_at_paths
from swe_rl.errors import UserError
from swe_rl.host.addresses import free_port
from tests.agent.test_agent_nemo_gym import play, write_rows  # noqa: F401
from tests.support.fake_chat_server import FakeReply
from tests.support.waiting import until

# Its own environment: the package needs a later Python than ours, and brings much. `.ci/run` makes it.
ENVIRONMENT = Path(os.environ.get("SWE_RL_NEMO_GYM_ENVIRONMENT") or Path(__file__).parents[2] / ".venv-nemo-gym")
PYTHON = ENVIRONMENT / "bin" / "python"
SERVE = Path(__file__).parents[1] / "env" / "nemo_gym_package" / "serve.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"nemo-gym is not installed in {ENVIRONMENT}"),
]


class Served:
    def __init__(self, address: str) -> None:
        self.address = address


@pytest.fixture
async def server(request, tmp_path):
    port = free_port()
    log = (tmp_path / "server.log").open("wb")
    words = [PYTHON, SERVE, request.param, str(port)]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)  # noqa: ASYNC220
    address = f"http://127.0.0.1:{port}"

    def serves():
        assert process.poll() is None, (tmp_path / "server.log").read_text()
        try:
            return look_at_paths(address)
        except UserError:
            return None

    try:
        await asyncio.to_thread(lambda: asyncio.run(until(serves, 200, pause_s=0.5)))
        yield Served(address)
    finally:
        process.kill()
        process.wait()
        log.close()


def shipped(name):
    (path,) = ENVIRONMENT.glob(f"lib/python3*/site-packages/resources_servers/{name}/data/example.jsonl")
    return path


def called(*calls):
    return FakeReply("", calls=calls)


@pytest.mark.parametrize("server", ["example_session_state_mgmt"], indirect=True)
async def test_a_session_keeps_its_state_between_tools_and_the_verdict(server, play):  # noqa: F811
    add = [called(("increment_counter", {"count": number})) for number in (1, 2)]
    result, grade, _ = await play(
        server, shipped("example_session_state_mgmt"), [*add, called(("get_counter_value", {})), "It is 6."]
    )
    assert [turn.observation for turn in result.turns[:3]] == ['{"success":true}', '{"success":true}', '{"count":6}']
    assert (result.exit, grade.score, grade.resolved) == (Exit.SUBMITTED, 1.0, True)
    wrong = called(("increment_counter", {"count": "one"}))
    result, grade, _ = await play(server, shipped("example_session_state_mgmt"), [wrong, add[0], "It is 4."])
    assert (grade.score, grade.resolved) == (0.0, False)
    assert "status 422" in result.turns[0].observation


@pytest.mark.parametrize("server", ["mcqa"], indirect=True)
async def test_a_server_without_tools_verifies_an_answer(server, play, write_rows):  # noqa: F811
    rows = shipped("mcqa")
    right, wrong = [await play(server, rows, [rf"It is \boxed{{{letter}}}"]) for letter in "BA"]
    assert (right[1].score, wrong[1].score) == (1.0, 0.0)
    row = json.loads(rows.read_text().splitlines()[0])
    with pytest.raises(AgentError, match="failed at verify: status 422: .*grading_mode"):
        await play(server, {**row, "grading_mode": "unheard"}, [r"\boxed{B}"])


@pytest.mark.parametrize("server", ["workplace_assistant"], indirect=True)
async def test_a_server_of_many_tools_compares_what_they_did(server, play):  # noqa: F811
    rows = shipped("workplace_assistant")
    truth = json.loads(rows.read_text().splitlines()[0])["ground_truth"]
    calls = [called((call["name"], call["arguments"])) for call in truth]
    result, grade, _ = await play(server, rows, [*calls, "Sent."])
    assert grade.score == 1.0 and "successfully" in result.turns[0].observation
    _, grade, _ = await play(server, rows, ["Sent."])
    assert grade.score == 0.0
