"""env=verifiers with agent=verifiers: the real package, our gateway before a scripted engine."""

import importlib
import importlib.util
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.agent.agent import AgentError, Assignment, Exit, Task
from swe_rl.agent.make import make_agent
from swe_rl.config.compose import compose
from swe_rl.config.schema import EnvConfig, GatewayConfig, RouterConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.engine.engine import EngineError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.env.env import GradeError
from swe_rl.env.make import make_env
from swe_rl.env.verifiers import VerifiersEnv, load_package
from swe_rl.errors import UserError
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.rollout.outcome import graded_reward
from swe_rl.rollout.rows import traced_rows
from swe_rl.rollout.trajectory import Status, Trajectory
from swe_rl.router.make import make_router
from tests.agent.conftest import call
from tests.support.scripted_sandbox import ScriptedProvider


def has_environments():
    """Says whether the package has environments of this kind. It is not imported: that takes seconds, and each process
    of pytest collects this file."""
    package = importlib.util.find_spec("verifiers")
    if package is None:
        return False
    return any(Path(folder, "legacy").is_dir() for folder in package.submodule_search_locations)


pytestmark = pytest.mark.skipif(
    not has_environments(), reason="neither without the extra `verifiers` nor with its version 0.4"
)
PACKAGE = str(Path(__file__).parents[1] / "env" / "verifiers_package")


@pytest.fixture(scope="module", autouse=True)
def imported():
    """The package reads the environment as it is imported, so that comes before a test changes it."""
    importlib.import_module("verifiers.legacy")


@pytest.fixture(autouse=True)
def package(monkeypatch):
    monkeypatch.syspath_prepend(PACKAGE)


def words(kind: str, mode: str = "", *more: str) -> list[str]:
    arguments = [f"+env.params.args.kind={kind}", f"+env.params.args.mode={mode or 'none'}"]
    return ["env=verifiers", "env.dataset=tiny-games", *arguments, *more]


@pytest.fixture
def play(renderer, tmp_path):
    """`await play(words, replies)`: what the agent came to, its grade, its rows, and the engine."""

    async def run(line, said, *, timeout_s=30.0, failures=()):
        config = compose(line).config
        env = make_env(config.env, tmp_path / "cache")
        agent = make_agent(config.agent, config.rollout, None)
        instance = env.instances("train")[1]
        answers = iter(said)
        engine = ScriptedEngine(
            lambda _: renderer.reply({"role": "assistant", "content": "", **next(answers)}), max_model_len=400_000
        )
        engine.fail_next(*failures)
        store = TraceStore(tmp_path / "traces.db")
        gateway = Gateway(
            [engine], make_router(RouterConfig(), [engine]), renderer, store,
            model_name="tiny", config=GatewayConfig(), max_model_len=400_000,
        )  # fmt: skip
        try:
            await gateway.start()
            gateway.open_session("t", SessionSettings(max_turn_tokens=400, max_trajectory_tokens=40_000))
            box = await ScriptedProvider(lambda command: "").create(env.workspace(instance), owner="t")
            work = Assignment(
                Task(instance.instance_id, env.prompt(instance)),
                base_url=gateway.session_url("t"), model="tiny", sandbox=box, timeout_s=timeout_s,
            )  # fmt: skip
            result = await agent.run(work)
            summary = await gateway.close_session("t")
            grade = result.patch and await env.grade(instance, result.patch, None, 9.0)
            trajectory = Trajectory("t", "i", "g", "train", 1, 0, 0, Status.resolved, 1.0, True, True, advantage=1.0)
            return result, grade, traced_rows(trajectory, store.traces("t")), summary, engine
        finally:
            await gateway.close()
            store.close()

    return run


def text(said: str) -> dict:
    return {"content": said}


CASES = {
    "single": ([text("it is lib")], 0.75),
    "multi": ([text("add"), text("bug"), text("core")], 0.25),
    "tool": ([call("look", place="lib"), text("it is lib")], 0.75),
}


@pytest.mark.parametrize("kind", CASES)
async def test_rows_are_what_the_gateway_traced_and_the_rubric_pays(play, renderer, kind):
    said, reward = CASES[kind]
    result, grade, rows, summary, engine = await play(words(kind), said)
    assert (result.exit, len(result.turns), summary.num_calls) == (Exit.SUBMITTED, len(said), len(said))
    assert grade.score == reward and grade.resolved is (reward >= 0.5)
    assert graded_reward(grade, compose(words(kind)).config.env.reward) == reward
    assert sum(summary.breaks.values()) == 0 and len(rows) == 1
    row, last = rows[0], engine.requests[-1][1]
    assert tuple(row.token_ids[: len(last)]) == last, "id for id what the engine was asked last"
    reply = tuple(renderer.reply({"role": "assistant", "content": "", **said[-1]}))
    assert tuple(row.token_ids[len(last) :]) == reply and all(row.loss_mask[-len(reply) :])
    assert [turn.message for turn in result.turns] == [one.get("content", "") for one in said]
    if kind == "tool":
        assert result.turns[0].observation == "At lib lies lib." and [t["function"]["name"] for t in result.tools]


async def test_what_the_environment_raises_is_never_a_reward(play):
    with pytest.raises(AgentError, match="the game broke"):
        await play(words("multi", "raise"), [text("add")])


async def test_a_reward_function_that_raises_is_no_zero(play):
    with pytest.raises(AgentError, match="broken raised KeyError"):
        await play(words("single", "rubric"), [text("add")])


async def test_an_engine_that_fails_is_an_engine_error(play):
    with pytest.raises(EngineError, match="gave no completion"):
        await play(words("single"), [text("add")] * 99, failures=[EngineError("it died")] * 99)


async def test_time_and_turns_end_as_ours(play):
    result, grade, *_ = await play(words("multi", "hang"), [text("add")], timeout_s=0.5)
    assert (result.exit, grade) == (Exit.AGENT_TIMEOUT, None)
    result, grade, *_ = await play(words("multi", "endless", "rollout.max_turns=2"), [text("add")] * 3)
    assert (result.exit, grade, len(result.turns)) == (Exit.STEP_LIMIT, None, 2)


def test_splits_are_its_two_data_sets(tmp_path):
    config = compose(words("single")).config.env
    env = make_env(config, tmp_path)
    assert [len(env.instances(split)) for split in ("train", "eval", "train[1:3]")] == [4, 1, 2]
    assert env.instances("train")[0].problem_statement == "Say add."
    alone = VerifiersEnv(config, tmp_path, {"heldout": False})
    with pytest.raises(InstanceError, match="no eval_dataset"):
        alone.instances("eval")
    with pytest.raises(InstanceError, match="train and eval"):
        alone.instances("heldout")


def test_a_choice_of_rows_means_rows_of_either_split(tmp_path):
    def chosen(split, *given):
        return len(make_env(compose([*words("single"), *given]).config.env, tmp_path).instances(split))

    trained = make_env(compose(words("single")).config.env, tmp_path).instances("train")[0].instance_id
    assert (chosen("train", f"env.instance_ids=[{trained}]"), chosen("eval", f"env.instance_ids=[{trained}]")) == (1, 1)
    for split in ("train", "eval"):
        with pytest.raises(InstanceError, match=r"nothing-1 is not among the \d instances? \(such as "):
            chosen(split, "env.instance_ids=[nothing-1]")


def test_signals_stay_ours():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    load_package("tiny-games", {"kind": "single", "mode": "signals"})
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_what_cannot_be_loaded_is_named():
    with pytest.raises(UserError, match="env.dataset=no-such-games cannot be loaded"):
        load_package("no-such-games", {})
    with pytest.raises(UserError, match="wrong_key"):
        load_package("tiny-games", {"wrong_key": 1})


async def test_what_is_no_score_is_no_grade(tmp_path):
    env = VerifiersEnv(replace(EnvConfig(), dataset="tiny-games"), tmp_path)
    with pytest.raises(GradeError, match="no score"):
        await env.grade(env.instances("train")[0], "diff --git a/x b/x", None, 1.0)


@pytest.mark.slow
def test_it_trains(tmp_path):
    command = [sys.executable, "-m", "swe_rl", *words("multi"), f"job.code=[{PACKAGE}]", "trainer.steps=2"]
    command += [
        "rollout.n=2",
        "rollout.prompts_per_step=2",
        "trainer.eval_every_steps=0",
        f"hydra.run.dir={tmp_path}/run",
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    text = ended.stdout + ended.stderr
    assert "step 2/2" in text and re.search(r"step 2/2 +reward 0\.[27]5", text), text
