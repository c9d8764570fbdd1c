"""The qwen-code agent: its settings, and, where it is installed, the real program in a real sandbox."""

import json

import pytest

from swe_rl.agent.agent import Exit
from swe_rl.agent.program.qwen_code import SETTINGS, QwenCodeAgent
from swe_rl.config.compose import compose
from swe_rl.config.schema import AgentConfig
from swe_rl.dataset.instance import Instance
from swe_rl.errors import UserError
from tests.agent.conftest import Installed, call

QWEN = Installed("qwen")


def solution(instance: Instance) -> list[dict[str, object]]:
    fix = f"git apply <<'PATCH'\n{instance.patch}PATCH"
    return [
        call("run_shell_command", command="env", is_background=False),
        call("run_shell_command", command=fix, is_background=False),
        call("run_shell_command", command="git status --short", is_background=False),
        {"content": "It is fixed."},
    ]


def agent_of(*overrides: str, max_turns: int) -> QwenCodeAgent:
    return QwenCodeAgent(compose(["agent=qwen_code", QWEN.option(), *overrides]).config.agent, max_turns=max_turns)


@pytest.fixture
def agent() -> QwenCodeAgent:
    return agent_of(max_turns=20)


@QWEN.needed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dialect", "other"), [("openai", "anthropic"), pytest.param("anthropic", "openai", marks=pytest.mark.long)]
)
async def test_it_solves_an_instance_in_one_chain_of_tokens(solve, dialect, other):
    command = str(compose(["agent=qwen_code"]).config.agent.command).replace("openai", dialect)
    nowhere = f"+agent.env_vars.{other.upper()}_BASE_URL=http://127.0.0.1:9"
    agent = agent_of(f"agent.command={command!r}", nowhere, max_turns=20)
    solved = await solve(agent, solution, sandbox=QWEN.sandbox())
    assert solved.result.exit is Exit.SUBMITTED
    assert solved.grade and solved.grade.resolved
    assert ".qwen" not in solved.patch and ".swe_rl" not in solved.patch
    assert (len(solved.traces), len(solved.rows), solved.summary.breaks) == (4, 1, {})
    assert [turn.command and turn.command.split()[0] for turn in solved.result.turns] == ["run_shell_command"] * 3 + [
        None
    ]
    seen = str(solved.result.turns[0].observation)
    assert "PATH=" in seen and "OPENAI" not in seen and "ANTHROPIC" not in seen
    assert sum(solved.rows[0].loss_mask) == sum(len(trace.sampled_ids) for trace in solved.traces)


@QWEN.needed
@pytest.mark.slow
async def test_files_are_edited_and_two_tools_called_at_once(solve, agent):
    def policy(instance: Instance) -> list[dict[str, object]]:
        path = f"/testbed/{instance.patch.splitlines()[0].split(' b/')[1]}"
        two = call("read_file", file_path=path)["tool_calls"] + call("list_directory", path="/testbed")["tool_calls"]
        edit = call("edit", file_path=path, old_string="def ", new_string="def  ", replace_all=True)
        return [{"tool_calls": two}, {}, edit, {"content": "Done."}]

    solved = await solve(agent, policy, sandbox=QWEN.sandbox())
    assert solved.result.exit is Exit.SUBMITTED and "+def  " in solved.patch
    assert (len(solved.rows), solved.summary.breaks) == (1, {})


@QWEN.needed
@pytest.mark.slow
async def test_the_end_of_the_context_and_of_the_turns(solve, agent):
    def again(instance: Instance) -> list[dict[str, object]]:
        return [call("run_shell_command", command="seq 1000", is_background=False)]

    solved = await solve(agent, again, sandbox=QWEN.sandbox(), max_trajectory_tokens=62_000)
    assert solved.summary.overflowed and len(solved.rows) == 1  # it ends with status 0 all the same


@pytest.mark.long  # the test above has a limit of turns of ours
@QWEN.needed
@pytest.mark.slow
async def test_the_limit_of_turns_is_the_programs_own(solve):
    def again(instance: Instance) -> list[dict[str, object]]:
        return [call("run_shell_command", command="ls", is_background=False)]

    solved = await solve(agent_of(max_turns=3), again, sandbox=QWEN.sandbox())
    assert solved.result.exit is Exit.STEP_LIMIT and len(solved.traces) == 3


def test_its_settings_are_json_and_leave_nothing_on_that_rewrites_the_conversation():
    assert json.loads(json.dumps(SETTINGS)) == SETTINGS
    assert SETTINGS["model"]["chatCompression"]["contextPercentageThreshold"] == 0
    assert SETTINGS["memory"]["enableManagedAutoMemory"] is False


def test_it_needs_a_command():
    with pytest.raises(UserError, match="agent.command"):
        QwenCodeAgent(AgentConfig(name="qwen_code"), max_turns=3)
