"""Attempts in ATIF, read by the models of a package that is not ours."""

import json

import pytest

from swe_rl.agent.agent import AgentResult, Exit, Turn
from swe_rl.agent.atif import atif_trajectory

atif = pytest.importorskip("atif")

MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "t"},
    {"role": "assistant", "content": "I look."},
    {"role": "user", "content": "o"},
]
TURNS = [
    Turn(0, "I look.", "ls", "o", exit_code=2),
    Turn(1, "no command", None, "Write one command.", format_error=True),
    Turn(2, "", "submit", None),
]


def read(result: AgentResult):
    facts = {"trajectory_id": "eval.0.i.0.0", "agent": "bash", "model": "m", "sampled_tokens": 7}
    written = atif_trajectory(result, **facts, outcome={"status": "resolved", "reward": 1.0})
    return atif.Trajectory.model_validate(json.loads(json.dumps(written)))


def test_others_read_what_was_said_done_and_answered():
    theirs = read(AgentResult(Exit.SUBMITTED, TURNS, MESSAGES))
    assert [(step.step_id, str(step.source), step.message) for step in theirs.steps] == [
        (1, "system", "s"),
        (2, "user", "t"),
        (3, "agent", "I look."),
        (4, "agent", "no command"),
        (5, "agent", ""),
    ]
    looked, refused, submitted = theirs.steps[2:]
    [call] = looked.tool_calls
    [answer] = looked.observation.results
    assert (call.arguments, answer.content, answer.source_call_id) == ({"command": "ls"}, "o", call.tool_call_id)
    assert refused.tool_calls is None and refused.observation.results[0].content == "Write one command."
    assert submitted.observation is None and submitted.tool_calls[0].arguments == {"command": "submit"}
    assert (theirs.agent.name, theirs.agent.model_name, theirs.extra["reward"]) == ("bash", "m", 1.0)
    assert (theirs.final_metrics.total_completion_tokens, theirs.final_metrics.total_steps) == (7, 5)


def test_a_program_whose_conversation_nobody_has():
    theirs = read(AgentResult(Exit.SUBMITTED, [Turn(0, "", "run", "said", exit_code=0)], MESSAGES[1:2]))
    assert [str(step.source) for step in theirs.steps] == ["user", "agent"]
