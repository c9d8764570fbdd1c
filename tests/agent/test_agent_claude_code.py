"""The Claude Code agent: its settings, and, where it is installed, the real program in a real sandbox."""

import json

import pytest

from swe_rl.agent.agent import Exit
from swe_rl.agent.program.claude_code import SETTINGS, ClaudeCodeAgent
from swe_rl.config.compose import compose
from swe_rl.dataset.instance import Instance
from tests.agent.conftest import Installed, call

CLAUDE = Installed("claude")


def bash(command: str) -> dict[str, object]:
    return call("Bash", command=command, description="d")


def solution(instance: Instance) -> list[dict[str, object]]:
    fix = f"git apply <<'PATCH'\n{instance.patch}PATCH"
    return [
        {"content": "I look.", **bash("env; ls")},
        bash(fix),
        bash("git status --short"),
        {"content": "It is fixed."},
    ]


def agent_of() -> ClaudeCodeAgent:
    return ClaudeCodeAgent(compose(["agent=claude_code", CLAUDE.option()]).config.agent, max_turns=20)


@CLAUDE.needed
@pytest.mark.slow
async def test_it_solves_an_instance_in_one_chain_of_tokens(solve):
    solved = await solve(agent_of(), solution, sandbox=CLAUDE.sandbox())
    assert solved.result.exit is Exit.SUBMITTED
    assert solved.grade and solved.grade.resolved
    assert solved.patch.count("diff --git") == 1
    assert (len(solved.traces), len(solved.rows), solved.summary.breaks) == (4, 1, {})
    first, _, third, last = solved.result.turns
    assert first.message == "I look." and " M " in (third.observation or "")
    assert (last.message, last.command) == ("It is fixed.", None)
    assert "ANTHROPIC" not in first.observation and "SWE_RL" not in first.observation


@CLAUDE.needed
@pytest.mark.slow
@pytest.mark.parametrize(("limit", "calls"), [({"max_trajectory_tokens": 40_000}, None), ({"max_calls": 2}, 2)])
async def test_the_end_of_the_context_and_of_the_calls(solve, limit, calls):
    solved = await solve(agent_of(), lambda instance: [bash("seq 4000")], sandbox=CLAUDE.sandbox(), **limit)
    assert (solved.summary.overflowed, solved.summary.had_all_calls) == (calls is None, calls is not None)
    assert (len(solved.rows), solved.summary.breaks) == (1, {})
    assert calls is None or len(solved.traces) == calls, "it asks no more"


def test_its_settings_leave_nothing_on_that_rewrites_or_leaves_the_sandbox():
    assert SETTINGS["autoCompactEnabled"] is False
    assert {"Task", "WebFetch", "WebSearch"} <= set(SETTINGS["permissions"]["deny"])
    assert ClaudeCodeAgent.env["DISABLE_COMPACT"] == "1"
    assert ClaudeCodeAgent.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert json.loads(ClaudeCodeAgent.files["claude/settings.json"]) == SETTINGS
