"""The opencode agent: its settings, and, where it is installed, the real program in a real sandbox."""

import json

import pytest

from swe_rl.agent.agent import Exit
from swe_rl.agent.program.opencode import SETTINGS, OpencodeAgent, read_events
from swe_rl.config.compose import compose
from swe_rl.dataset.instance import Instance
from swe_rl.gateway.trace import Break
from tests.agent.conftest import Installed, call

OPENCODE = Installed("opencode")


def bash(command: str) -> dict[str, object]:
    return call("bash", command=command, description="a command")


def solution(instance: Instance) -> list[dict[str, object]]:
    fix = f"git apply <<'PATCH'\n{instance.patch}PATCH"
    return [bash(fix), bash("git status --short"), {"content": "It is fixed."}]


def agent_of() -> OpencodeAgent:
    return OpencodeAgent(compose(["agent=opencode", OPENCODE.option()]).config.agent, max_turns=20)


@OPENCODE.needed
@pytest.mark.slow
async def test_it_solves_an_instance_in_one_chain_of_tokens(solve):
    def policy(instance: Instance) -> list[dict[str, object]]:
        path = f"/testbed/{instance.patch.splitlines()[0].split(' b/')[1]}"
        two = {"tool_calls": [*bash("env; exit 3")["tool_calls"], *call("read", filePath=path)["tool_calls"]]}
        wrong = call("edit", filePath=path, oldString="no such text", newString="")
        # Each reply is chosen by the number of results before it, and `two` has two.
        return [{"content": "I look.", "reasoning_content": "Hm.", **two}, {}, wrong, bash("seq 30000"),
                *solution(instance)]  # fmt: skip

    solved = await solve(agent_of(), policy, sandbox=OPENCODE.sandbox(), max_turn_tokens=10_000)
    assert solved.result.exit is Exit.SUBMITTED
    assert solved.grade and solved.grade.resolved
    assert solved.patch.count("diff --git") == 1
    assert (len(solved.traces), len(solved.rows), solved.summary.breaks) == (6, 1, {})
    assert sum(solved.rows[0].loss_mask) == sum(len(trace.sampled_ids) for trace in solved.traces)
    turns = solved.result.turns
    tools = [[line.split()[0] for line in (turn.command or "").splitlines()] for turn in turns]
    assert [sorted(names) for names in tools] == [["bash", "read"], ["edit"], ["bash"], ["bash"], ["bash"], []]
    assert (turns[0].message, turns[-1].message) == ("I look.", "It is fixed.")
    assert "PATH=" in str(turns[0].observation) and "OPENAI" not in str(turns[0].observation)
    assert "Could not find" in str(turns[1].observation) and str(turns[4].observation).startswith(" M ")


@OPENCODE.needed
@pytest.mark.slow
async def test_a_tool_that_there_is_not_breaks_the_chain_and_the_context_ends(solve):
    def policy(instance: Instance) -> list[dict[str, object]]:
        return [call("nothing", a=1), bash("seq 4000")]

    solved = await solve(agent_of(), policy, sandbox=OPENCODE.sandbox(), max_trajectory_tokens=50_000)
    assert solved.result.exit is Exit.CONTEXT_OVERFLOW and solved.summary.overflowed
    assert (len(solved.rows), solved.summary.breaks) == (2, {Break.prefix_changed: 1})


def test_its_settings_are_json_and_leave_nothing_on_that_leaves_the_sandbox_or_rewrites_the_conversation():
    assert json.loads(json.dumps(SETTINGS)) == SETTINGS
    assert SETTINGS["compaction"] == {"auto": False, "prune": False} and SETTINGS["share"] == "disabled"
    assert {SETTINGS["permission"][name] for name in ("task", "webfetch", "question")} == {"deny"}


def test_what_it_prints_becomes_turns():
    tool = {"tool": "bash", "state": {"input": {"command": "é"}, "output": "a" * 99}}
    printed = [
        {"type": "text", "part": {"text": "before any step"}},
        {"type": "step_start", "part": {}},
        {"type": "text", "part": {"text": "I look."}},
        {"type": "tool_use", "part": tool},
        {"type": "tool_use", "part": {"tool": "read", "state": {"input": None, "error": "no file"}}},
        {"type": "tool_use", "part": {"tool": "read", "state": "none"}},
        {"type": "step_start", "part": {}},
        {"type": "step_finish"},
    ]
    first, second = read_events("\n".join(["no line of JSON", *map(json.dumps, printed)]), 60)
    assert (first.message, first.command) == ("I look.", 'bash {"command": "é"}\nread null\nread null')
    assert first.observation and len(first.observation) < 99 and first.observation.endswith("no file")
    assert (second.message, second.command, second.observation) == ("", None, None)
