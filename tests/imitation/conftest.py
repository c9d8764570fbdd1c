"""Inputs in the published formats of other programs, small and made up."""

import json

import pytest

from swe_rl.config.compose import compose
from swe_rl.model.load import load_tokenizer
from swe_rl.model.make_renderer import make_renderer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]


def call(number, command):
    """Returns a call as OpenAI writes it: its arguments are text."""
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "bash", "arguments": json.dumps({"command": command})},
    }


def openai_row(**more):
    return {
        "messages": [
            {"role": "system", "content": "You mend code."},
            {"role": "user", "content": [{"type": "text", "text": "It fails."}]},
            {"role": "assistant", "content": None, "tool_calls": [call(1, "cat f.py")]},
            {"role": "tool", "tool_call_id": "call_1", "content": "def f(): ..."},
            {"role": "assistant", "content": "It is done."},
        ],
        "tools": TOOLS,
        **more,
    }


def swe_smith_row(**more):
    """Returns a row of SWE-smith's trajectories in its XML style, where `messages` is text."""
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "<pr_description>\nIt fails.\n</pr_description>"},
        {
            "role": "assistant",
            "content": "I look.\n\n<function=bash>\n<parameter=command>cat f.py</parameter>\n</function>",
        },
        {"role": "user", "content": "OBSERVATION:\ndef f(): ..."},
        {"role": "assistant", "content": "<function=submit>\n</function>"},
    ]
    row = {
        "messages": json.dumps(messages),
        "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
        "resolved": True,
        "model": "claude-3-7-sonnet-20250219",
        "traj_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc.0",
        "patch": "diff --git a/f.py b/f.py",
    }
    return row | more


def history_item(role, content, **more):
    return {"role": role, "content": content, "agent": "main", **more}


def swe_agent_traj():
    """Returns a file of SWE-agent's function-calling agent, of release 1.1 or later."""
    query = [
        history_item("system", "You are a helpful assistant.", message_type="system_prompt"),
        history_item("user", [{"type": "text", "text": "It fails."}], message_type="observation"),
        history_item(
            "assistant",
            "I look.",
            thought="I look.",
            action="cat f.py",
            tool_calls=[call(1, "cat f.py")],
            message_type="action",
        ),
        history_item(
            "tool",
            [{"type": "text", "text": "OBSERVATION:\ndef f(): ...", "cache_control": {"type": "ephemeral"}}],
            message_type="observation",
            tool_call_ids=["call_1"],
        ),
    ]
    step = {
        "action": "submit",
        "observation": "",
        "response": "I hand it in.",
        "thought": "I hand it in.",
        "execution_time": 0.1,
        "state": {"working_dir": "/testbed"},
        "query": query,
        "extra_info": {},
    }
    first = step | {"action": "cat f.py", "response": "I look.", "query": query[:2]}
    return {
        "trajectory": [first, step],
        "history": [*query, history_item("assistant", "I hand it in.", message_type="action")],
        "info": {"exit_status": "submitted", "submission": "diff"},
        "replay_config": "{}",
        "environment": "swe_main",
    }


def mini_swe_traj():
    """Returns a file of mini-swe-agent 2: its second command failed, and one reply could not be read."""
    answer = {"role": "tool", "tool_call_id": "call_1"}
    return {
        "info": {
            "model_stats": {"instance_cost": 0.1, "api_calls": 4},
            "config": {},
            "mini_version": "2.4.6",
            "exit_status": "Submitted",
            "submission": "diff",
        },
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "It fails."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [call(1, "ls")],
                "extra": {"actions": [{"command": "ls"}]},
            },
            {**answer, "content": "<output>f.py</output>", "extra": {"returncode": 0, "raw_output": "f.py"}},
            {"role": "assistant", "content": "", "tool_calls": [call(2, "cat g.py")], "extra": {}},
            {**answer, "content": "<output>no such file</output>", "extra": {"returncode": 1}},
            {"role": "assistant", "content": "I think."},
            {"role": "user", "content": "Tool call error", "extra": {"interrupt_type": "FormatError"}},
            {"role": "assistant", "content": "", "tool_calls": [call(3, "echo COMPLETE")], "extra": {}},
            {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted", "submission": "diff"}},
        ],
        "trajectory_format": "mini-swe-agent-1.1",
    }


def atif():
    """Returns a trajectory as Harbor's agents write it."""
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "s1",
        "agent": {"name": "terminus-2", "version": "2.0", "model_name": "m", "tool_definitions": TOOLS},
        "steps": [
            {"step_id": 1, "source": "user", "message": "It fails."},
            {
                "step_id": 2,
                "source": "agent",
                "message": "I look.",
                "reasoning_content": "First the file.",
                "tool_calls": [{"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "cat f.py"}}],
                "observation": {"results": [{"source_call_id": "c1", "content": "def f(): ..."}]},
            },
            {"step_id": 3, "source": "agent", "message": "It is done.", "is_copied_context": False},
        ],
        "final_metrics": {"total_steps": 3},
        "extra": {"instance_id": "one", "reward": 1.0},
    }


@pytest.fixture(scope="session")
def renderer():
    model = compose([]).config.model
    return make_renderer(model, load_tokenizer(model))


@pytest.fixture
def write(tmp_path):
    """`write(name, content)` writes JSON, or JSON lines of a list; it returns the path as text."""

    def write_file(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        else:
            path.write_text(json.dumps(content))
        return str(path)

    return write_file
