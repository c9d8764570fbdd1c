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


def call(name, function, arguments):
    return {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}


def test_calls_of_tools_are_written_as_they_were_made():
    """`agent=pdb` has tools of other names. What answers a call names it."""
    turns = [
        Turn(0, "", 'view {"path": "f.py"}\nbash {"command": "ls"}', "1 x\nf.py", exit_code=0),
        Turn(1, "So.", None, None, summary="accepted"),
        Turn(2, "I try.", "edit {", "no JSON", exit_code=None),
        Turn(3, "", "submit {}", None),
    ]
    messages = [
        {"role": "user", "content": "t"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("a", "view", '{"path": "f.py"}'), call("b", "bash", '{"command": "ls"}')],
        },
        {"role": "tool", "tool_call_id": "a", "content": "1 x"},
        {"role": "tool", "tool_call_id": "b", "content": "f.py"},
        {"role": "assistant", "content": "I try.", "tool_calls": [call("c", "edit", "{")]},
        {"role": "tool", "tool_call_id": "c", "content": "no JSON"},
        {"role": "assistant", "content": "", "tool_calls": [call("d", "submit", "{}")]},
    ]
    tools = ({"type": "function", "function": {"name": "view", "parameters": {"type": "object"}}},)
    theirs = read(AgentResult(Exit.SUBMITTED, turns, messages, tools))
    made = [[(it.function_name, it.arguments) for it in step.tool_calls or ()] for step in theirs.steps[1:]]
    assert made == [
        [("view", {"path": "f.py"}), ("bash", {"command": "ls"})],
        [],
        [("edit", {"arguments": "{"})],
        [("submit", {})],
    ]
    answers = [(it.source_call_id, it.content) for it in theirs.steps[1].observation.results]
    assert answers == [("a", "1 x"), ("b", "f.py")]
    assert theirs.agent.tool_definitions == list(tools)
