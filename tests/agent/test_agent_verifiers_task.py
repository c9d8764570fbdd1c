"""env=verifiers with a taskset of the package's module v1, which versions 0.3 and 0.4 have."""

import importlib
import importlib.util
from pathlib import Path

import pytest

from swe_rl.agent import verifiers_task
from swe_rl.agent.agent import AgentError, Assignment, Exit, Task
from swe_rl.agent.make import make_agent
from swe_rl.config.compose import compose
from swe_rl.dataset.instance import InstanceError
from swe_rl.engine.engine import EngineError
from swe_rl.env.make import make_env
from swe_rl.env.verifiers import load_package
from swe_rl.env.verifiers_tasksets import LoadedTaskset
from swe_rl.errors import UserError
from tests.support.fake_chat_server import FakeChatServer, FakeReply
from tests.support.scripted_sandbox import ScriptedProvider

# The package is not imported here: that takes seconds, and each process of pytest collects this file.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("verifiers") is None, reason="the extra `verifiers` is not installed"
)
PACKAGE = str(Path(__file__).parents[1] / "env" / "verifiers_package")
WORDS = ["env=verifiers", "env.dataset=tiny-sums"]


@pytest.fixture(scope="module", autouse=True)
def imported():
    """The package reads the environment as it is imported, so that comes before a test changes it."""
    importlib.import_module("verifiers")


@pytest.fixture(autouse=True)
def package(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(PACKAGE)
    monkeypatch.setenv("HOME", str(tmp_path))  # the package keeps folders of rollouts there


@pytest.fixture
def play(tmp_path):
    """`await play(script)`: what the agent came to, its grade, and what the model was asked."""

    async def run(script, mode="plain", timeout_s=30.0):
        config = compose([*WORDS, f"+env.params.args.task.mode={mode}"]).config
        env = make_env(config.env, tmp_path / "cache")
        agent = make_agent(config.agent, config.rollout, None)
        instance = env.instances("train")[2]
        async with FakeChatServer(script) as server:
            box = await ScriptedProvider(lambda command: "").create(env.workspace(instance), owner="t")
            task = Task(instance.instance_id, env.prompt(instance))
            work = Assignment(task, base_url=server.base_url, model="tiny", sandbox=box, timeout_s=timeout_s)
            result = await agent.run(work)
        grade = await env.grade(instance, result.patch, None, 1.0) if result.patch else None
        return result, grade, server.requests

    return run


async def test_a_task_is_played_with_one_reply_and_paid_by_its_own_rewards(play):
    result, grade, asked = await play(lambda messages: "It is 4.")
    assert (result.exit, grade.score, grade.resolved) == (Exit.SUBMITTED, 2.0, True)
    assert [(message["role"], message["content"]) for message in asked[0]["messages"]] == [
        ("system", "Be brief."), ("user", "What is 2 + 2?"),
    ]  # fmt: skip
    assert [turn.message for turn in result.turns] == ["It is 4."]
    result, grade, _ = await play(lambda messages: "It is 5.")
    assert (grade.score, grade.resolved) == (0.0, False)


async def test_a_failure_is_no_reward(play, monkeypatch):
    with pytest.raises(AgentError, match="no verdict"):
        await play(lambda messages: "4", "raises")
    monkeypatch.setattr(verifiers_task, "_SCORING_S", 0.2)
    with pytest.raises(AgentError):
        await play(lambda messages: "4", "hangs")
    with pytest.raises(EngineError, match="broken"):
        await play(lambda messages: FakeReply("broken", status=500))


async def test_limits_end_an_attempt_as_they_do_elsewhere(play):
    full = FakeReply("too long", status=400, error_code="context_length_exceeded")
    assert (await play(lambda messages: full))[0].exit is Exit.CONTEXT_OVERFLOW
    late = FakeReply("4", delay_s=60.0)
    assert (await play(lambda messages: late, timeout_s=0.5))[0].exit is Exit.AGENT_TIMEOUT


def test_its_tasks_are_the_split_train_and_parts_of_it(tmp_path):
    config = compose([*WORDS, 'env.split="train[:2]"', 'env.eval_split="train[2:]"']).config.env
    env = make_env(config, tmp_path)
    assert [one.problem_statement for one in env.instances("train[:2]")] == ["What is 0 + 0?", "What is 1 + 1?"]
    assert len(env.instances("train[2:]")) == 1
    with pytest.raises(InstanceError, match="no split eval"):
        env.instances("eval")


def test_what_needs_more_than_a_reply_is_refused_by_name(monkeypatch):
    vf = importlib.import_module("verifiers.v1")

    played = load_package("tiny-sums", {})
    assert isinstance(played, LoadedTaskset)
    module = vf.import_taskset("tiny-sums")
    monkeypatch.setattr(module.SumsTask, "NEEDS_CONTAINER", True)
    with pytest.raises(UserError, match="need a container"):
        load_package("tiny-sums", {"task": {"mode": "container"}})
    monkeypatch.setattr(module.SumsTaskset, "INFINITE", True)
    with pytest.raises(UserError, match="without end"):
        load_package("tiny-sums", {"task": {"mode": "endless"}})
    with pytest.raises(UserError, match="cannot be loaded"):
        load_package("tiny-sums", {"no_such_key": 1})
