"""env=openenv against a server of the package openenv, and beside the package's own client."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from swe_rl.agent.agent import AgentError, Exit
from swe_rl.env.openenv.server import look_at_server
from swe_rl.errors import UserError
from swe_rl.host.addresses import free_port
from tests.agent.test_agent_openenv import play  # noqa: F401
from tests.support.fake_chat_server import FakeReply
from tests.support.waiting import until

# Its own environment: the package brings much that nothing here needs. `.ci/run` makes it.
ENVIRONMENT = Path(os.environ.get("SWE_RL_OPENENV_ENVIRONMENT") or Path(__file__).parents[2] / ".venv-openenv")
PYTHON = ENVIRONMENT / "bin" / "python"
PACKAGE = Path(__file__).parents[1] / "env" / "openenv_package"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"openenv is not installed in {ENVIRONMENT}"),
]
# The same actions by the package's own client: what it was shown, and the rewards.
THEIR_CLIENT = """
import asyncio, json, sys
from openenv.core import GenericEnvClient
async def play(address, reset, actions):
    async with GenericEnvClient(base_url=address) as client:
        seen = [await client.reset(**reset)]
        seen += [await client.step(action) for action in actions]
        return [[one.observation, one.reward, one.done] for one in seen]
print(json.dumps(asyncio.run(play(*json.loads(sys.argv[1])))))
"""


class Served:
    def __init__(self, address: str) -> None:
        self.address = address


@pytest.fixture
async def server(tmp_path):
    port = free_port()
    words = [PYTHON, "-m", "uvicorn", "halving:app", "--host", "127.0.0.1", "--port", str(port)]
    log = (tmp_path / "server.log").open("wb")
    process = subprocess.Popen(words, cwd=PACKAGE, stdout=log, stderr=subprocess.STDOUT)  # noqa: ASYNC220
    address = f"http://127.0.0.1:{port}"

    def serves():
        assert process.poll() is None, (tmp_path / "server.log").read_text()
        try:
            return look_at_server(address)
        except UserError:
            return None

    try:
        await asyncio.to_thread(lambda: asyncio.run(until(serves, 200, pause_s=0.5)))
        yield Served(address)
    finally:
        process.kill()
        process.wait()
        log.close()


def divide(by):
    return FakeReply("", calls=(("act", {"by": by}),))


async def test_observations_and_rewards_are_those_of_the_packages_own_client(server, play):  # noqa: F811
    result, grade, _ = await play(server, [divide(2)] * 7, "+env.params.reset.base=64", "rollout.max_turns=9")
    asked = json.dumps([server.address, {"base": 64, "seed": 3}, [{"by": 2}] * 6])
    done = await asyncio.to_thread(
        subprocess.run, [PYTHON, "-c", THEIR_CLIENT, asked], capture_output=True, text=True, timeout=120
    )
    theirs = json.loads(done.stdout)
    assert result.exit is Exit.SUBMITTED
    assert json.loads(result.patch)["rewards"] == [reward for _, reward, _ in theirs[1:]]
    assert grade.score == sum(reward for _, reward, _ in theirs[1:]) == 2.25
    shown = [json.loads(turn.observation) for turn in result.turns]
    assert shown == [{"number": observation["number"]} for observation, _, _ in theirs[1:]]


async def test_refused_actions_raising_environments_and_full_servers_are_told_apart(server, play):  # noqa: F811
    refused = FakeReply("", calls=(("act", {"by": "two"}),))
    result, grade, _ = await play(server, [refused, divide(200)])
    assert grade.score == 1.0 and "by: Input should be a valid integer" in result.turns[0].observation
    with pytest.raises(AgentError, match="failed at step: EXECUTION_ERROR: integer division or modulo by zero"):
        await play(server, [divide(0)])
    played = await asyncio.gather(*(play(server, [divide(200)], number=number) for number in range(6)))
    assert [grade.score for _, grade, _ in played] == [1.0] * 6, "the server has two places"
