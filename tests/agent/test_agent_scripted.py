"""Agents without a model, in real sandboxes."""

import subprocess
from pathlib import Path

import pytest

from swe_rl.agent.agent import AgentError, Assignment, Exit, Task
from swe_rl.agent.scripted import GoldAgent, NoopAgent, PredictionsAgent, ScriptedAgent
from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.env.proof import prove
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.sandbox import ExecResult, Workspace
from tests.support.scripted_sandbox import ScriptedProvider

TASK = Task("calc__calc-1", "add() subtracts.")
PATCH = """\
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


@pytest.fixture
async def provider(tmp_path: Path):
    provider = ProcessProvider(SandboxConfig(isolation=Isolation.none), tmp_path / "scratch", warn=pytest.fail)
    yield provider
    await provider.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    git = "git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm first"
    subprocess.run(git, shell=True, cwd=folder, check=True)
    return Workspace(path=folder)


async def test_gold_applies_the_patch_and_leaves_nothing_else(provider: ProcessProvider, workspace: Workspace):
    sandbox = await provider.create(workspace, owner="gold")
    agent = GoldAgent({TASK.instance_id: PATCH})
    result = await agent.run(Assignment(TASK, base_url="", model="", sandbox=sandbox, timeout_s=30))
    assert result.exit is Exit.SUBMITTED
    assert (await sandbox.exec("git status --short; cat calc.py", timeout_s=10)).output == (
        " M calc.py\ndef add(a, b):\n    return a + b\n"
    )


async def test_a_gold_patch_that_does_not_fit_is_an_error(provider: ProcessProvider, workspace: Workspace):
    sandbox = await provider.create(workspace, owner="gold")
    with pytest.raises(AgentError, match=r"(?s)calc__calc-1: the gold patch does not apply.*patch does not apply"):
        agent = GoldAgent({TASK.instance_id: PATCH.replace("a - b", "a * b")})
        await agent.run(Assignment(TASK, base_url="", model="", sandbox=sandbox, timeout_s=30))
    with pytest.raises(AgentError, match="no patch for this instance"):
        await GoldAgent({}).run(Assignment(TASK, base_url="", model="", sandbox=sandbox, timeout_s=30))


async def test_noop_hands_in_what_a_proof_calls_a_change_of_nothing():
    sandbox = await ScriptedProvider().create(Workspace(), owner="x")
    result = await NoopAgent().run(Assignment(TASK, base_url="", model="", sandbox=sandbox, timeout_s=30))
    assert (result.exit, result.turns, sandbox.commands) == (Exit.SUBMITTED, [], [])
    assert result.patch == prove.NOOP_PATCH


async def test_commands_run_in_order_within_the_budget():
    sandbox = await ScriptedProvider(lambda command: ExecResult(1, "no\n", False, 0, 2.0)).create(
        Workspace(), owner="x"
    )
    agent = ScriptedAgent(["a", "b", "c"])
    result = await agent.run(Assignment(TASK, base_url="", model="", sandbox=sandbox, timeout_s=3.0))
    assert result.exit is Exit.AGENT_TIMEOUT and sandbox.commands == ["a", "b"]
    assert [message["content"] for message in result.messages] == [
        TASK.prompt,
        "```bash\na\n```",
        "no\n(exit status 1)",
        "```bash\nb\n```",
        "no\n(exit status 1)",
    ]


async def test_a_prediction_is_handed_in_and_the_tree_stays_as_it_is(provider: ProcessProvider, workspace: Workspace):
    sandbox = await provider.create(workspace, owner="predictions")
    agent = PredictionsAgent({TASK.instance_id: PATCH})
    result = await agent.run(Assignment(TASK, base_url="", model="", sandbox=sandbox, timeout_s=30))
    assert (result.exit, result.patch) == (Exit.SUBMITTED, PATCH)
    assert (await sandbox.exec("git status --short", timeout_s=10)).output == ""
