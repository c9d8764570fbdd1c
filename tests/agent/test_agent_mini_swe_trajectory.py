"""Our attempts in mini-swe-agent's trajectory format, beside what the library itself would write."""

import json

import pytest

pytest.importorskip("minisweagent", reason="the extra `mini_swe` is not installed")

from swe_rl.agent.agent import AgentResult, Exit, Turn
from swe_rl.agent.mini_swe.agent import mini_swe_trajectory
from swe_rl.agent.mini_swe.dialects import load_library

MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "t"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "o"},
]


def written(end: Exit = Exit.SUBMITTED, patch: str = "diff") -> dict:
    result = AgentResult(end, [Turn(0, "a", "ls", "o", exit_code=0)], MESSAGES)
    outcome = {"instance_id": "i-1", "status": "unresolved", "reward": 0.0}
    trajectory = mini_swe_trajectory(result, agent="bash", model="m", patch=patch, outcome=outcome)
    return json.loads(json.dumps(trajectory))


def test_it_has_what_the_library_writes():
    class Part:
        def serialize(self) -> dict:
            return {}

    agent = load_library().agents.default.DefaultAgent(Part(), Part(), system_template="", instance_template="")
    theirs = agent.serialize()
    ours = written()
    assert set(theirs) <= set(ours) and ours["trajectory_format"] == theirs["trajectory_format"]
    assert set(theirs["info"]) - {"mini_version"} <= set(ours["info"])
    assert set(theirs["info"]["model_stats"]) == set(ours["info"]["model_stats"])


def test_messages_end_with_the_exit():
    ours = written()
    assert [message["role"] for message in ours["messages"]] == ["system", "user", "assistant", "user", "exit"]
    assert ours["messages"][2]["extra"]["actions"] == [{"command": "ls"}]
    assert ours["messages"][-1]["extra"] == {"exit_status": "Submitted", "submission": "diff"}
    assert ours["info"]["model_stats"]["api_calls"] == 1


@pytest.mark.parametrize("end", list(Exit))
def test_every_exit_has_a_name_there(end: Exit):
    ours = written(end, "")
    assert ours["info"]["exit_status"] and ours["messages"][-1]["content"] == ours["info"]["exit_status"]
