"""The Kimi command line: what its ends mean, and, where it is installed, the real one in a real sandbox."""

import json
import os
from pathlib import Path

import pytest

from swe_rl.agent.agent import AgentError, Exit
from swe_rl.agent.inside import kimi_run
from swe_rl.agent.program.kimi_cli import KimiCliAgent, read_chat_messages
from swe_rl.config.compose import compose
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.sandbox.sandbox import ExecResult
from tests.agent.conftest import call, end_of

# Its own environment: it needs a later Python than ours. `.ci/run` makes it.
ENVIRONMENT = Path(os.environ.get("SWE_RL_KIMI_ENVIRONMENT") or Path(__file__).parents[2] / ".venv-kimi")
needs_kimi = pytest.mark.skipif(
    not (ENVIRONMENT / "bin" / "python3").exists(), reason=f"kimi-cli is not installed in {ENVIRONMENT}"
)


def solution(instance: Instance) -> list[dict[str, object]]:
    return [
        {"content": "I look.", **call("Shell", command="ls")},
        call("Shell", command=f"git apply <<'PATCH'\n{instance.patch}PATCH"),
        call("Shell", command="git status --short; env"),
        {"content": "It is fixed."},
    ]


def sandbox() -> SandboxConfig:
    base = (ENVIRONMENT / "bin" / "python3").resolve().parents[1]
    mounts = tuple(f"{folder}:{folder}" for folder in (ENVIRONMENT, base) if folder.parts[:2] != ("/", "usr"))
    return SandboxConfig(memory_gb=4.0, max_processes=256, mounts=mounts)


def agent_of(*overrides: str, max_turns: int = 20) -> KimiCliAgent:
    given = [f"agent.program_path={ENVIRONMENT}/bin", *overrides]
    return KimiCliAgent(compose(["agent=kimi_cli", *given]).config.agent, max_turns=max_turns)


@needs_kimi
@pytest.mark.slow
async def test_it_solves_an_instance_in_one_chain_of_tokens(solve):
    solved = await solve(agent_of(), solution, sandbox=sandbox())
    assert solved.result.exit is Exit.SUBMITTED
    assert solved.grade and solved.grade.resolved
    assert solved.patch.count("diff --git") == 1
    assert (len(solved.traces), len(solved.rows), solved.summary.breaks) == (4, 1, {})
    turns = solved.result.turns
    assert turns[0].message == "I look." and turns[0].command.startswith("Shell ")
    seen = turns[2].observation
    assert "M " in seen and "OPENAI" not in seen and "ANTHROPIC" not in seen and "SWE_RL" not in seen


@needs_kimi
@pytest.mark.slow
async def test_its_limits_have_their_own_ends(solve):
    again = call("Shell", command="ls")
    solved = await solve(agent_of(max_turns=2), lambda _: lambda text: again, sandbox=sandbox())
    assert (solved.result.exit, len(solved.traces)) == (Exit.STEP_LIMIT, 2)
    much = call("Shell", command="seq 1 3000")
    solved = await solve(agent_of(), lambda _: lambda text: much, sandbox=sandbox(), max_trajectory_tokens=40_000)
    assert solved.result.exit is Exit.CONTEXT_OVERFLOW


ENDS = {0: Exit.SUBMITTED, 53: Exit.STEP_LIMIT, 137: Exit.AGENT_CRASHED}


@pytest.mark.parametrize("status", ENDS)
async def test_its_status_says_how_it_ended(status):
    agent = KimiCliAgent(compose(["agent=kimi_cli"]).config.agent, max_turns=5)
    assert (await end_of(agent, ExecResult(status, "", timed_out=False, duration_s=1.0))).exit is ENDS[status]


@pytest.mark.parametrize("status", [1, 75, 127])
async def test_other_ends_are_faults_and_no_attempts(status):
    agent = KimiCliAgent(compose(["agent=kimi_cli"]).config.agent, max_turns=5)
    with pytest.raises(AgentError, match=f"status {status}"):
        await end_of(agent, ExecResult(status, "no", timed_out=False, duration_s=1.0))


def test_turns_are_read_from_messages_and_nothing_raises():
    lines = [
        {"role": "assistant", "content": [{"type": "text", "text": "Hm."}],
         "tool_calls": [{"function": {"name": "Shell", "arguments": '{"command": "ls"}'}}]},
        {"role": "tool", "content": "a"}, {"role": "tool", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": 7, "tool_calls": [None, {"function": 1}]},
        {"role": "assistant", "tool_calls": 3},
    ]  # fmt: skip
    turns = read_chat_messages("\n".join(["noise", *map(json.dumps, lines), "[" * 99_999]), 99)
    assert [turn.command for turn in turns] == ['Shell {"command": "ls"}', None, None]
    assert (turns[0].message, turns[0].observation) == ("Hm.", "a\nb")


def test_the_model_s_address_and_key_are_in_no_file(tmp_path, monkeypatch):
    given: list[str] = []
    monkeypatch.setattr(kimi_run, "_run_program", lambda arguments: given.extend(arguments) or 0)
    address = "http://127.0.0.1:9/sessions/a/v1"
    for name, value in {"BASE_URL": address, "MODEL": "m", "API_KEY": "sk-secret"}.items():
        monkeypatch.setenv(f"OPENAI_{name}", value)
    monkeypatch.setenv("SWE_RL_FOLDER", str(tmp_path))
    monkeypatch.setenv("SWE_RL_MAX_TURNS", "3")
    monkeypatch.setenv("KIMI_SHARE_DIR", "")
    assert kimi_run.main() == 0
    settings = json.loads(given[given.index("--config") + 1])
    assert settings["providers"]["gateway"]["base_url"] == address
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert address not in written and "sk-secret" not in written
