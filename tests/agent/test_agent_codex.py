"""The Codex agent: its settings, and, where it is installed, the real program in a real sandbox."""

import json
import tomllib

import pytest

from swe_rl.agent.agent import Exit
from swe_rl.agent.program.codex import SETTINGS, CodexAgent, read_items
from swe_rl.config.compose import compose
from swe_rl.dataset.instance import Instance
from tests.agent.conftest import Installed, call

CODEX = Installed("codex")


def solution(instance: Instance) -> list[dict[str, object]]:
    fix = f"git apply <<'PATCH'\n{instance.patch}PATCH"
    return [
        {"content": "I look.", **call("exec_command", cmd="env; ls")},
        call("exec_command", cmd=fix),
        call("exec_command", cmd="git status --short"),
        {"content": "It is fixed."},
    ]


def agent_of() -> CodexAgent:
    return CodexAgent(compose(["agent=codex", CODEX.option()]).config.agent, max_turns=20)


@CODEX.needed
@pytest.mark.slow
async def test_it_solves_an_instance_in_one_chain_of_tokens(solve):
    solved = await solve(agent_of(), solution, sandbox=CODEX.sandbox())
    assert solved.result.exit is Exit.SUBMITTED
    assert solved.grade and solved.grade.resolved
    assert solved.patch.count("diff --git") == 1
    assert (len(solved.traces), len(solved.rows), solved.summary.breaks) == (4, 1, {})
    assert sum(solved.rows[0].loss_mask) == sum(len(trace.sampled_ids) for trace in solved.traces)
    first, _, third, last = solved.result.turns
    assert (first.message, first.exit_code, third.observation[:3]) == ("I look.", 0, " M ")
    assert (last.message, last.command) == ("It is fixed.", None)
    assert "OPENAI" not in first.observation and "SWE_RL" not in first.observation


@CODEX.needed
@pytest.mark.slow
async def test_wrong_calls_and_several_at_once_stay_in_the_chain(solve):
    def policy(instance: Instance) -> list[dict[str, object]]:
        path = instance.patch.splitlines()[0].split(" b/")[1]
        two = {"tool_calls": [*call("exec_command", cmd="seq 9")["tool_calls"], *call("no", a=1)["tool_calls"]]}
        patch = f"apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: {path}\n@@\n+# é\n*** End Patch\nEOF"
        ask = call("request_user_input", questions=[])
        # Each reply is chosen by the number of results before it, and `two` has two.
        long = call("exec_command", cmd="seq 30000; exit 3", yield_time_ms=9000)
        return [{"reasoning_content": "Hm.", **two}, {}, call("exec_command", command=3),
                call("exec_command", cmd=patch), long, ask, {"content": "Done."}]  # fmt: skip

    solved = await solve(agent_of(), policy, sandbox=CODEX.sandbox())
    assert solved.result.exit is Exit.SUBMITTED and "+# é" in solved.patch
    assert (len(solved.traces), len(solved.rows), solved.summary.breaks) == (6, 1, {})


@CODEX.needed
@pytest.mark.slow
@pytest.mark.parametrize(("limit", "calls"), [({"max_trajectory_tokens": 40_000}, None), ({"max_calls": 2}, 2)])
async def test_the_end_of_the_context_and_of_the_calls(solve, limit, calls):
    def again(instance: Instance) -> list[dict[str, object]]:
        return [call("exec_command", cmd="seq 4000", max_output_tokens=9000)]

    solved = await solve(agent_of(), again, sandbox=CODEX.sandbox(), **limit)
    assert solved.result.exit is Exit.CONTEXT_OVERFLOW, "what its status is taken for: why it ended the gateway knows"
    assert (solved.summary.overflowed, solved.summary.had_all_calls) == (calls is None, calls is not None)
    assert (len(solved.rows), solved.summary.breaks) == (1, {})
    assert calls is None or len(solved.traces) == calls, "it asks no more"


def test_its_settings_are_toml_and_leave_nothing_on_that_leaves_the_sandbox():
    settings = tomllib.loads(SETTINGS)
    assert settings["model_providers"]["gateway"]["wire_api"] == "responses"
    assert settings["web_search"] == "disabled" and not any(settings["features"].values())
    assert not settings["analytics"]["enabled"] and settings["otel"]["exporter"] == "none"


def test_what_it_prints_becomes_turns():
    printed = [
        {"type": "thread.started"},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "I look."}},
        {"type": "item.completed", "item": {"type": "command_execution", "command": "ls", "aggregated_output": "a" * 99,
                                            "exit_code": 2}},
        {"type": "item.completed", "item": {"type": "file_change", "changes": [{"path": "é"}]}},
        {"type": "item.completed", "item": ["no item"]},
        {"type": "item.completed", "item": {"type": "agent_message", "text": None}},
    ]  # fmt: skip
    lines = ["no line of JSON", *map(json.dumps, printed), "[]"]
    first, second = read_items("\n".join(lines), 40)
    assert (first.message, first.command, first.exit_code) == ("I look.", "ls", 2)
    assert first.observation and len(first.observation) < 99
    assert (second.message, second.command) == ("", '[{"path": "é"}]')
