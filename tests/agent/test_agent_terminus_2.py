"""Terminus 2: what its ends mean, and, where harbor is installed, the real one in a real tmux in a real sandbox."""

import importlib.util
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from swe_rl.agent.agent import AgentError, Exit
from swe_rl.agent.program.terminus_2 import RUNNER, Terminus2Agent
from swe_rl.config.compose import compose
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.sandbox.sandbox import ExecResult
from tests.agent.conftest import end_of

# Its own environment: it needs a later Python than ours. `.ci/run` makes it.
ENVIRONMENT = Path(os.environ.get("SWE_RL_HARBOR_ENVIRONMENT") or Path(__file__).parents[2] / ".venv-harbor")
needs_harbor = pytest.mark.skipif(
    not (ENVIRONMENT / "bin" / "python3").exists() or not shutil.which("tmux"),
    reason=f"harbor is not installed in {ENVIRONMENT}, or there is no tmux",
)


def _runner():
    """The script as a module: it runs in the sandbox, and is in no package."""
    spec = importlib.util.spec_from_file_location("terminus_run", RUNNER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def typed(*lines: str, done: bool = False) -> dict[str, object]:
    """A reply that types lines, as the agent's prompt asks for them."""
    commands = [{"keystrokes": f"{line}\n", "duration": 0.5} for line in lines]
    return {"content": json.dumps({"analysis": "I see.", "plan": "I do.", "commands": commands, "task_complete": done})}


def in_turns(replies):
    """Says the reply that is due by the number of replies before it."""
    return lambda instance: lambda text: replies(instance)[text.count('"analysis": "I see."')]


def solution(instance: Instance) -> list[dict[str, object]]:
    patch = f"git apply <<'PATCH'\n{instance.patch}PATCH"
    return [typed("ls"), typed(patch), typed("git status --short; env | sort | head -50"), typed(done=True),
            typed(done=True)]  # fmt: skip


def sandbox() -> SandboxConfig:
    base = (ENVIRONMENT / "bin" / "python3").resolve().parents[1]
    mounts = tuple(f"{folder}:{folder}" for folder in (ENVIRONMENT, base) if folder.parts[:2] != ("/", "usr"))
    return SandboxConfig(memory_gb=4.0, max_processes=256, mounts=mounts)


def agent_of(*overrides: str, max_turns: int = 20) -> Terminus2Agent:
    given = [f"agent.program_path={ENVIRONMENT}/bin", *overrides]
    return Terminus2Agent(compose(["agent=terminus_2", *given]).config.agent, max_turns=max_turns)


@needs_harbor
@pytest.mark.slow
async def test_it_solves_an_instance_in_one_chain_of_tokens(solve):
    solved = await solve(agent_of(), in_turns(solution), sandbox=sandbox())
    assert solved.result.exit is Exit.SUBMITTED
    assert solved.grade and solved.grade.resolved
    assert solved.patch.count("diff --git") == 1
    assert (len(solved.traces), len(solved.rows), solved.summary.breaks) == (5, 1, {})
    turns = solved.result.turns
    assert len(turns) == 5 and turns[0].command.startswith("bash_command")
    seen = turns[2].observation
    assert " M " in seen and "OPENAI" not in seen and "ANTHROPIC" not in seen and "SWE_RL" not in seen


@needs_harbor
@pytest.mark.slow
async def test_its_limits_have_their_own_ends(solve):
    solved = await solve(agent_of(max_turns=2), lambda _: lambda text: typed("ls"), sandbox=sandbox())
    assert (solved.result.exit, len(solved.traces)) == (Exit.STEP_LIMIT, 2)
    words = typed("seq 1 3000")
    agent = agent_of(max_turns=99)
    solved = await solve(agent, lambda _: lambda text: words, sandbox=sandbox(), max_trajectory_tokens=9_000)
    assert solved.result.exit is Exit.CONTEXT_OVERFLOW


ENDS = {0: Exit.SUBMITTED, 53: Exit.STEP_LIMIT, 55: Exit.CONTEXT_OVERFLOW, 137: Exit.AGENT_CRASHED}


@pytest.mark.parametrize("status", ENDS)
async def test_its_status_says_how_it_ended(status):
    agent = Terminus2Agent(compose(["agent=terminus_2"]).config.agent, max_turns=5)
    assert (await end_of(agent, ExecResult(status, "", timed_out=False, duration_s=1.0))).exit is ENDS[status]


async def test_a_missing_library_is_a_fault_and_no_attempt():
    agent = Terminus2Agent(compose(["agent=terminus_2"]).config.agent, max_turns=5)
    with pytest.raises(AgentError, match="status 127"):
        await end_of(agent, ExecResult(127, "terminus_2: there is no tmux", timed_out=False, duration_s=1.0))


@pytest.mark.parametrize(
    ("pending", "episodes", "status"), [(True, 5, 0), (False, 5, 53), (False, 3, 0)], ids=["said", "limit", "left"]
)
def test_an_end_without_an_error_is_the_models_or_the_limits(pending, episodes, status):
    agent = SimpleNamespace(_pending_completion=pending, _n_episodes=episodes, _max_episodes=5)
    assert _runner()._exit_status(agent) == status


async def test_commands_in_the_sandbox_have_an_end_and_a_status(tmp_path):
    place = _runner().ThisSandbox(tmp_path)
    done = await place.exec("echo a; echo b >&2; exit 3")
    assert (done.stdout, done.stderr, done.return_code) == ("a\n", "b\n", 3)
    assert (await place.exec("sleep 9", timeout_sec=0.1)).return_code == 124
