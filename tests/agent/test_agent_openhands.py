"""OpenHands' agent: what its ends mean, and, where its SDK is installed, the real one in a real sandbox."""

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swe_rl.agent.agent import AgentError, Exit
from swe_rl.agent.program.openhands import RUNNER as RUNNER_FILE
from swe_rl.agent.program.openhands import OpenHandsAgent
from swe_rl.agent.program.session import read_session
from swe_rl.config.compose import compose
from swe_rl.config.schema import AgentConfig, SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.errors import UserError
from swe_rl.gateway.trace import Break
from swe_rl.sandbox.sandbox import ExecResult
from tests.agent.conftest import call, end_of

# Its own environment: it needs a later Python than ours. `.ci/run` makes it.
ENVIRONMENT = Path(os.environ.get("SWE_RL_OPENHANDS_ENVIRONMENT") or Path(__file__).parents[2] / ".venv-openhands")
needs_sdk = pytest.mark.skipif(
    not (ENVIRONMENT / "bin" / "python3").exists(), reason=f"openhands-sdk is not installed in {ENVIRONMENT}"
)


def _runner() -> Any:
    """The script as a module: it runs in the sandbox, and is in no package."""
    spec = importlib.util.spec_from_file_location("openhands_run", RUNNER_FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


RUNNER = _runner()


def terminal(command: str) -> dict[str, object]:
    return call("terminal", command=command, security_risk="LOW", summary="a command")


def solution(instance: Instance) -> list[dict[str, object]]:
    fix = f"git apply <<'PATCH'\n{instance.patch}PATCH"
    return [
        {"content": "I look.", **terminal("ls")},
        terminal(fix),
        terminal("git status --short"),
        call("finish", message="It is fixed."),
    ]


def mounts() -> tuple[str, ...]:
    """The environment and the Python that it was made with."""
    base = (ENVIRONMENT / "bin" / "python3").resolve().parents[1]
    return tuple(f"{folder}:{folder}" for folder in (ENVIRONMENT, base) if folder.parts[:2] != ("/", "usr"))


def sandbox() -> SandboxConfig:
    return SandboxConfig(memory_gb=4.0, max_processes=256, mounts=mounts())


def speaking(dialect: str) -> str:
    return f"agent.command='openhands --dialect {dialect}'"


def agent_of(*overrides: str, max_turns: int = 20) -> OpenHandsAgent:
    given = [f"agent.program_path={ENVIRONMENT}/bin", *overrides]
    return OpenHandsAgent(compose(["agent=openhands", *given]).config.agent, max_turns=max_turns)


@needs_sdk
@pytest.mark.slow
async def test_it_solves_an_instance_in_one_chain_of_tokens(solve):
    solved = await solve(agent_of(), solution, sandbox=sandbox())
    assert solved.result.exit is Exit.SUBMITTED
    assert solved.grade and solved.grade.resolved
    assert solved.patch.count("diff --git") == 1
    assert (len(solved.traces), len(solved.rows), solved.summary.breaks) == (4, 1, {})
    turns = solved.result.turns
    assert [turn.command and turn.command.split()[0] for turn in turns] == ["terminal"] * 3 + ["finish"]
    assert turns[0].message == "I look." and turns[2].observation and "\x1b" not in turns[2].observation
    assert turns[2].observation.startswith("M ")
    assert sum(solved.rows[0].loss_mask) == sum(len(trace.sampled_ids) for trace in solved.traces)


@needs_sdk
@pytest.mark.slow
async def test_each_tool_and_each_wrong_call_stays_in_the_chain(solve):
    def policy(instance: Instance) -> list[dict[str, object]]:
        path = f"/testbed/{instance.patch.splitlines()[0].split(' b/')[1]}"
        view = call("file_editor", command="view", path=path)
        plan = call("task_tracker", command="plan", task_list=[{"title": "é", "notes": "", "status": "todo"}])
        two = {"tool_calls": [*view["tool_calls"], *plan["tool_calls"]]}  # type: ignore[misc]
        edit = call("file_editor", command="insert", path=path, insert_line=0, new_str="# é\n")
        typed = terminal(f"cat <<'END' | cat -A; echo {'x' * 5000}\n\ta\nEND")
        # Each reply is chosen by the number of results before it, and `two` has two.
        return [two, {}, call("nothing", a=1), call("terminal"), call("think", thought="so"), edit,
                terminal("env; pwd"), typed, {"content": "Done."}]  # fmt: skip

    solved = await solve(agent_of(speaking("responses")), policy, sandbox=sandbox(), max_turn_tokens=10_000)
    assert solved.result.exit is Exit.SUBMITTED and "+# é" in solved.patch
    assert (len(solved.rows), solved.summary.breaks) == (1, {})
    assert len(solved.result.turns) == len(solved.traces) == 8
    seen = solved.result.turns[-3].observation
    assert seen and "OPENAI" not in seen and "ANTHROPIC" not in seen and "SWE_RL" not in seen and "LITELLM" not in seen
    assert str(ENVIRONMENT) not in seen  # the repository's own Python
    # What was typed is as it was: tabs, and nothing of its echo. The SDK's terminal may leave an empty line in between.
    typed = solved.result.turns[-2].observation
    assert typed and re.match(r"\^Ia\$\n+x{5000}\n", typed), typed


@pytest.mark.long  # the same
@needs_sdk
@pytest.mark.slow
async def test_a_call_that_the_sdk_rewrites_begins_another_chain(solve):
    def policy(instance: Instance) -> list[dict[str, object]]:
        return [call("bash", command="echo it ran"), {"content": "Done."}]  # its history says: terminal

    solved = await solve(agent_of(speaking("messages")), policy, sandbox=sandbox())
    assert solved.result.exit is Exit.SUBMITTED and "it ran" in str(solved.result.turns[0].observation)
    assert (len(solved.rows), solved.summary.breaks) == (2, {Break.prefix_changed: 1})


@pytest.mark.long  # the same
@needs_sdk
@pytest.mark.slow
async def test_a_sub_agent_and_a_condensed_conversation_are_chains_of_their_own(solve):
    asked: list[str] = []

    def policy(instance: Instance) -> Callable[[str], dict[str, object]]:
        child = call("task", description="a child", prompt="Say hello and end.", subagent_type="general-purpose")
        replies = iter([child, *solution(instance)])

        def reply(text: str) -> dict[str, object]:
            asked.append(text[text.find("<|im_start|>user") :])
            if "Say hello" in asked[-1] and "<tool_call>" not in asked[-1]:
                return {"content": "Hello."}
            return {"content": "A child greeted."} if "summarize the events" in asked[-1] else next(replies)

        return reply

    agent = agent_of("agent.command='openhands --tools terminal,task --condense-after 8'")
    solved = await solve(agent, policy, sandbox=sandbox())
    assert solved.result.exit is Exit.SUBMITTED and solved.grade and solved.grade.resolved
    assert len(solved.traces) == 5 + 2  # and what the child and the condenser were asked
    assert (len(solved.rows), solved.summary.breaks) == (4, {Break.prefix_changed: 3})
    assert "Hello." in asked[2] and "A child greeted." in asked[-1] and "Hello." not in asked[-1]
    assert sum(sum(row.loss_mask) for row in solved.rows) == sum(len(trace.sampled_ids) for trace in solved.traces)


@pytest.mark.long  # of one version of the SDK, which is pinned
@needs_sdk
@pytest.mark.slow
async def test_the_end_of_the_context(solve):
    def again(instance: Instance) -> list[dict[str, object]]:
        return [terminal("seq 1000")]

    agent = agent_of("agent.command='openhands --no-stuck-detection'")
    solved = await solve(agent, again, sandbox=sandbox(), max_trajectory_tokens=50_000)
    assert solved.result.exit is Exit.CONTEXT_OVERFLOW and len(solved.rows) == 1


@needs_sdk
@pytest.mark.slow
@pytest.mark.long  # of one version of the SDK, which is pinned
@pytest.mark.parametrize(("max_turns", "calls"), [(3, 3), (20, 4)], ids=["turns", "repeats itself"])
async def test_the_end_of_the_turns(solve, max_turns, calls):
    def again(instance: Instance) -> list[dict[str, object]]:
        return [terminal("ls")]

    solved = await solve(agent_of(max_turns=max_turns), again, sandbox=sandbox())
    assert solved.result.exit is Exit.STEP_LIMIT and len(solved.traces) == calls


async def test_a_python_without_the_sdk_is_named(solve):
    agent = OpenHandsAgent(compose(["agent=openhands"]).config.agent, max_turns=3)
    with pytest.raises(AgentError, match=r"agent\.program_path right\?.* cannot load openhands-sdk"):
        await solve(agent, solution, sandbox=SandboxConfig())


async def test_a_folder_without_a_python_is_named(solve):
    agent = agent_of("agent.command='PATH= openhands'", "agent.program_path='/no where'")
    with pytest.raises(AgentError, match=r"agent\.program_path right\?.* no python3 in /no where"):
        await solve(agent, solution, sandbox=SandboxConfig())


@pytest.mark.parametrize(
    ("status", "output", "timed_out", "end"),
    [
        (0, "the model read: maximum context length", False, Exit.SUBMITTED),
        (53, "", False, Exit.STEP_LIMIT),
        (54, "", False, Exit.STEP_LIMIT),
        (55, "", False, Exit.CONTEXT_OVERFLOW),
        (53, "", True, Exit.AGENT_TIMEOUT),
    ],
)
async def test_how_it_ends(status, output, timed_out, end):
    assert (await end_of(agent_of(), ExecResult(status, output, timed_out, 0, 2.0))).exit is end


def test_what_the_sdk_finds_is_not_what_commands_find(monkeypatch, tmp_path):
    given = {
        "SWE_RL_FOLDER": "/f",
        "OPENAI_API_KEY": "secret",
        "ANTHROPIC_API_KEY": "secret",
        "NO_PROXY": "inner",
        "MINE": "1",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    try:
        with RUNNER.sdk_environment(tmp_path, "127.0.0.1"):
            assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True" and os.environ["LITELLM_MODE"] == "PRODUCTION"
        assert not [name for name in os.environ if name.startswith(("SWE_RL_", "OPENAI_", "ANTHROPIC_", "LITELLM_"))]
        assert (os.environ["NO_PROXY"], os.environ["MINE"]) == ("inner,127.0.0.1", "1")
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass
class Text:
    text: str


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass
class ActionEvent:  # the runner goes by the names of the SDK's classes
    llm_response_id: str
    thought: list[Text]
    tool_call: ToolCall


@dataclass
class ObservationEvent:
    tool_call_id: str
    text: str

    def to_llm_message(self) -> SimpleNamespace:
        return SimpleNamespace(content=[Text(self.text)])


def test_calls_of_one_completion_are_one_turn(capsys):
    printer = RUNNER.Printer()
    for event in (
        ActionEvent("r1", [Text("I look.")], ToolCall("c1", "terminal", '{"command": "ls"}')),
        ActionEvent("r1", [], ToolCall("c2", "terminal", "no json")),
        ObservationEvent("c1", "a"),
        ObservationEvent("c2", "b"),
        ActionEvent("r2", [], ToolCall("c3", "finish", "{}")),
    ):
        printer.on_event(event)
    printer.flush()
    first, last = read_session(capsys.readouterr().out, 100)
    assert (first.message, first.command) == ("I look.", 'terminal {"command": "ls"}\nterminal "no json"')
    assert (first.observation, last.command, last.observation) == ("a\nb", "finish {}", None)


@pytest.mark.parametrize("given", ["--tools terminal,browser", "--condense-after 7"])
def test_options_that_the_sdk_would_refuse_later(monkeypatch, capsys, given):
    monkeypatch.setenv("SWE_RL_MAX_TURNS", "3")
    monkeypatch.setattr(sys, "argv", ["openhands", *given.split()])
    with pytest.raises(SystemExit):
        RUNNER._parse_options()
    assert given.split()[0] in capsys.readouterr().err


def test_it_needs_a_command():
    with pytest.raises(UserError, match="agent.command"):
        OpenHandsAgent(AgentConfig(name="openhands"), max_turns=3)
