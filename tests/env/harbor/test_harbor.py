"""Task folders in the Harbor format: reading, the verdict in the agent's own sandbox, tricks and ends."""

import asyncio
import dataclasses
import shutil
import subprocess

import pytest

from swe_rl.agent.scripted import GoldAgent, ScriptedAgent
from swe_rl.check.check import check_config
from swe_rl.check.findings import Severity
from swe_rl.config.choices import GradingKind, RewardKind, SandboxKind, Unproven
from swe_rl.config.compose import compose
from swe_rl.config.schema import EnvConfig, SandboxConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.env import GradeError, GradesInPlace
from swe_rl.env.harbor import verdict
from swe_rl.env.harbor.env import HarborEnv
from swe_rl.env.harbor.verdict import reward_in
from swe_rl.env.make import make_env
from swe_rl.env.patch import NOOP_PATCH
from swe_rl.env.proof import record
from swe_rl.env.proof.record import book_of
from swe_rl.gateway.session import SessionSettings
from swe_rl.job import validate
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.trajectory import Order, Status, TrajectoryId
from swe_rl.run.components import cache_folder
from swe_rl.run.proving import say_left_out
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.remote.client import RemoteProvider
from swe_rl.sandbox.remote.server import ServerOptions, run_server
from swe_rl.sandbox.sandbox import SandboxError
from tests.rollout.test_attempt import FakeGateway

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
TOML = 'version = "1.0"\n[agent]\ntimeout_sec = 20\n[verifier]\ntimeout_sec = 10\nenv = { WANTED = "sum" }\n'
SUM = 'mkdir -p /logs/verifier\n[ "$(cat total.txt)" = 6 ] && echo 1 > /logs/verifier/reward.txt || '
SUM += "echo 0 > /logs/verifier/reward.txt\n"
HALF = (
    'score=0; [ -f a ] && score=0.5; [ -f b ] && score=1; echo "{\\"reward\\": $score}" > /logs/verifier/reward.json\n'
)


def write_task(folder, *, test=SUM, solve="echo 6 > total.txt\n", toml=TOML, docker="FROM x\nWORKDIR /app\nCOPY . .\n"):
    files = {
        "instruction.md": "Write the sum of numbers.txt to total.txt.\n",
        "task.toml": toml,
        "environment/Dockerfile": docker,
        "environment/numbers.txt": "1\n2\n3\n",
        "tests/test.sh": f"set -u\n{test}",
        "solution/solve.sh": solve,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def tasks(tmp_path):
    write_task(tmp_path / "tasks" / "sum")
    write_task(
        tmp_path / "tasks" / "two_files", test=HALF, solve='cp "$(dirname "$0")/../app/numbers.txt" a; touch b\n'
    )
    return tmp_path / "tasks"


def env_of(tasks, sandbox=SandboxKind.process, **changes):
    """Used without a proof, unless `changes` says otherwise."""
    given = {"grading": GradingKind.tests, "eval_split": "test", "unproven": Unproven.keep} | changes
    config = EnvConfig(name="harbor", dataset=str(tasks), **given)
    return HarborEnv(config, tasks.parent / "cache", sandbox)


@pytest.fixture
def attempts(tasks, tmp_path):
    """Runs agents at a task, in sandboxes of processes; returns the trajectories, which share what was seen before."""

    def run(agent, name="sum", reward=RewardKind.zero_one, **changes):
        env = env_of(tasks, reward=reward)
        rollout = dataclasses.replace(compose([]).config.rollout, **changes)

        async def main():
            one_place = SandboxConfig(concurrency=1)
            sandboxes = make_provider(one_place, tmp_path / "scratch", print, run="t")
            gateway = FakeGateway()
            attempter = Attempter(env, agent, gateway, sandboxes, rollout, env._config, model_name="m")
            instance = next(one for one in env.instances("train") if one.instance_id == name)
            order = Order(
                instance,
                TrajectoryId("train", 1, name, 0, 0),
                SessionSettings(max_turn_tokens=64, max_trajectory_tokens=512),
            )
            try:
                trajectory, _ = await attempter.run(order)
            finally:
                await sandboxes.close()
            assert gateway.closed == [order.trajectory_id]
            return trajectory

        return asyncio.run(main())

    return run


def gold(tasks):
    return GoldAgent({one.instance_id: one.patch for one in env_of(tasks).instances("train")})


def test_a_folder_is_read_as_instances_without_tests_and_solution(tasks):
    env = env_of(tasks)
    assert isinstance(env, GradesInPlace)
    first, second = env.instances("train")
    assert [first.instance_id, second.instance_id] == ["sum", "two_files"]
    assert env.prompt(first) == "Write the sum of numbers.txt to total.txt."
    assert env.limits(first).agent_s == 20 and env.limits(first).grade_s == 10
    workspace = env.workspace(first)
    assert workspace.workdir == "/app"
    assert [path.name for path in workspace.path.iterdir()] == ["numbers.txt"]
    (tasks / "sum" / "tests" / "test.sh").write_text("exit 0\n")
    assert env_of(tasks).instances("train")[0].base_commit != first.base_commit


def test_slices_and_splits_of_a_folder(tasks, tmp_path):
    assert [one.instance_id for one in env_of(tasks).instances("train[1:]")] == ["two_files"]
    with pytest.raises(InstanceError, match=r"no task for the split 'test'.*env.eval_split=train"):
        env_of(tasks).instances("test")
    write_task(tasks / "test" / "other")
    assert [one.instance_id for one in env_of(tasks).instances("test")] == ["other"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"toml": "[agent\n"}, r"task.toml is not TOML"),
        ({"toml": "[agent]\ntimeout_sec = 'x'\n"}, r"agent.timeout_sec='x' must be a number of seconds"),
        ({"toml": "[environment]\ngpus = 1\n"}, r"asks for environment.gpus"),
        ({"toml": "[[steps]]\nname = 'a'\n"}, r"asks for steps"),
        ({"toml": "[verifier.environment]\ncpus = 1\n"}, r"asks for verifier.environment,"),
        ({"toml": "[agent]\nuser = 'agent'\n[environment]\nos = 'windows'\n"}, r"asks for agent.user, environment.os,"),
        ({"toml": "[verifier]\nenv = { KEY = '${KEY}' }\n"}, r"verifier.env must be a table of plain texts"),
        ({"docker": "FROM x\nRUN make\n"}, r"says 'RUN make', which needs a container"),
        ({"docker": "FROM x\nWORKDIR /app\nCOPY a /etc/a\n"}, r"COPY to /etc/a"),
    ],
)
def test_what_cannot_be_given_is_named_in_one_paragraph(tasks, changes, words):
    """One such task is left out. Where it is asked for, or nothing else is there, the job is refused."""
    write_task(tasks / "sum", **changes)
    env = env_of(tasks)
    assert [one.instance_id for one in env.instances("train")] == ["two_files"]
    [(name, reason)] = env.left_out("train").items()
    assert name == "sum" and str(tasks / "sum") in reason and "\n" not in reason
    assert env_of(tasks).unusable("train") == {name: reason}, "which job=validate names"
    with pytest.raises(InstanceError, match=words):
        env_of(tasks, instance_ids=("sum",)).instances("train")
    shutil.rmtree(tasks / "two_files")
    with pytest.raises(InstanceError, match=words):
        env_of(tasks).instances("train")


def test_a_task_that_cannot_be_used_is_said_when_the_job_starts(tasks):
    write_task(tasks / "built", docker="FROM x\nRUN make\n")
    config = compose(
        ["job=eval", "env=harbor", f"env.dataset={tasks}", "env.eval_split=train", "env.unproven=keep"]
    ).config
    said = []
    say_left_out(config, env_of(tasks, eval_split="train"), said.append)
    assert said[0] == "train: 2 of 3 instances are used; left out:" and said[1].startswith("  built: ")
    assert "RUN make" in said[1]


@pytest.mark.parametrize(
    ("written", "reward"),
    [
        ({"reward.txt": "0", "reward.json": '{"reward": 0.75}'}, 0.75),
        ({"reward.txt": "1", "reward.json": '{"reward": 0.25, "style": 1}'}, 0.25),
        ({"reward.txt": "", "reward.json": '{"reward": 1}'}, 1.0),
        ({"reward.txt": "1", "reward.json": ""}, None),
        ({"reward.txt": "0.5"}, 0.5),
    ],
)
def test_of_two_files_of_a_verifier_the_json_counts_as_in_harbor(tmp_path, written, reward):
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    script = verdict._READ.replace("/logs/verifier", str(tmp_path))
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    assert reward_in(said) == reward


@pytest.mark.parametrize("name", ["instruction.md", "tests/test.sh"])
def test_a_missing_file_is_named(tasks, name):
    (tasks / "sum" / name).unlink()
    assert f"{name} missing" in env_of(tasks).left_out("train")["sum"]


def test_with_containers_a_task_has_the_image_of_its_file(tasks):
    env = env_of(tasks, SandboxKind.docker)
    assert [env.workspace(one).image for one in env.instances("train")] == ["hb__sum", "hb__two_files"]
    for name in ("sum", "two_files"):
        (tasks / name / "task.toml").write_text(TOML + '[environment]\ndocker_image = "a/b:1"\nworkdir = "/w"\n')
    env = env_of(tasks, SandboxKind.docker)
    workspace = env.workspace(env.instances("train")[0])
    assert (workspace.image, workspace.workdir, workspace.path) == ("a/b:1", "/w", None)
    untried = env_of(tasks, SandboxKind.docker, unproven=Unproven.skip)
    assert len(untried.instances("train")) == 2, "as an image of others that nobody tried"
    with pytest.raises(InstanceError, match="2 of 2 instances of train are not proven: sum: nobody tried"):
        env_of(tasks, SandboxKind.docker, unproven=Unproven.refuse).instances("train")


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("reward.txt\n1\n", 1.0),
        ("reward.txt\n 0.25 ", 0.25),
        ("reward.txt\n7", 1.0),
        ("reward.txt\nnan", None),
        ("reward.txt\nyes", None),
        ("reward.txt\n", None),
        ('reward.json\n{"reward": 0.5, "style": 1}', 0.5),
        ('reward.json\n{"accuracy": 0.5}', 0.5),
        ('reward.json\n{"a": 1, "b": 1}', None),
        ('reward.json\n{"reward": true}', None),
        ("reward.json\n[1]", None),
        pytest.param("reward.json\n" + "[" * 60_000, None, id="nested"),
        pytest.param("reward.json\n1" + "0" * 400, 1.0, id="an integer beyond all floats"),
        ("", None),
    ],
)
def test_what_a_verifier_may_write(text, reward):
    assert reward_in(text) == reward


@needs_bwrap
def test_the_solution_is_paid_and_nothing_is_not(attempts, tasks):
    done = attempts(gold(tasks))
    assert (done.status, done.reward, done.tests) == (Status.resolved, 1.0, {"test.sh": True}), done.error
    idle = attempts(ScriptedAgent(["cat numbers.txt"]))
    assert (idle.status, idle.reward, idle.patch) == (Status.unresolved, 0.0, "")
    assert idle.turns[0].observation.count("2") and idle.findings == []


@pytest.mark.slow
@needs_bwrap
def test_a_part_of_the_reward_is_paid_where_fractions_are(attempts):
    half = attempts(ScriptedAgent(["touch a"]), "two_files", RewardKind.score)
    assert (half.status, half.reward) == (Status.unresolved, 0.5)
    assert attempts(ScriptedAgent(["touch a"]), "two_files").reward == 0.0


FORGED = [
    "mkdir -p /logs/verifier && echo 1 > /logs/verifier/reward.txt && chmod -R a-w /logs/verifier",
    "echo 'exit 0' > /tests/test.sh; ln -sfn /tmp /logs/verifier/x; touch /tests/.kept",
    "mkdir -p /logs && cd /logs && n=$(printf 'a%.0s' $(seq 230)) && for i in $(seq 12000); do : > $n$i; done; : > .b",
    "rmdir /tests 2> /dev/null; rm -rf /tests; [ -e /tests ] || : > /tests",
    "(setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.01; done' >/dev/null 2>&1 &) ; sleep 0.1",
]


@needs_bwrap
def test_a_reward_that_the_agent_wrote_is_not_paid(attempts, tasks):
    """Before the verifier, in its place, and by a process that goes on; also where the verifier writes none."""
    forged = attempts(ScriptedAgent(FORGED))
    assert (forged.status, forged.reward) == (Status.unresolved, 0.0), forged.error
    assert all(turn.exit_code == 0 for turn in forged.turns)
    write_task(tasks / "sum", test="ls -A /tests /logs /logs/verifier\n[ -e broken ] && exit\n" + SUM)
    silent = attempts(ScriptedAgent([*FORGED, "touch broken"]))
    assert (silent.status, silent.reward, silent.findings) == (Status.unresolved, 0.0, ["reward_missing"])
    assert ".kept" not in silent.grade_log and "reward.txt" not in silent.grade_log


@needs_bwrap
def test_what_an_agent_left_in_its_home_is_not_the_verifiers(attempts, tasks):
    """Verifiers load the file that an installer of uv writes there."""
    start = 'cd /app\n[ -f "$HOME/.local/bin/env" ] && . "$HOME/.local/bin/env"\n[ -z "$(ls -A "$HOME")" ] || exit\n'
    write_task(tasks / "sum", test=start + SUM)
    left = 'mkdir -p "$HOME/.local/bin"; echo "cat() { echo 6; }" | tee "$HOME/.local/bin/env" "$HOME/.bashrc"'
    tricked = attempts(ScriptedAgent([left]))
    assert (tricked.status, tricked.reward, tricked.findings) == (Status.unresolved, 0.0, [])
    assert attempts(gold(tasks)).status is Status.resolved


@needs_bwrap
@pytest.mark.parametrize("test", ["echo no number\n", f"[ -e total.txt ] || exit 1\n{SUM}", "[ -e a ] || sleep 60\n"])
def test_a_verifier_that_writes_no_reward_for_nobody_s_work_is_no_verdict(attempts, tasks, test):
    """Not the agent's doing, also where its work would have been paid."""
    write_task(tasks / "sum", test=test)
    lost = attempts(ScriptedAgent(["touch a"]), grade_timeout_s=2)
    assert (lost.status, lost.reward) == (Status.grade_error, None)
    assert "the verifier of sum gave no verdict, and in an untouched sandbox it gives none either" in lost.error
    assert ("it did not end in time" in lost.error) == ("sleep" in test)


@pytest.mark.slow
@needs_bwrap
def test_a_verifier_that_does_not_end_is_no_reward(attempts, tasks):
    write_task(tasks / "sum", test="echo 1 > /logs/verifier/reward.txt; sleep 60\n")
    hung = attempts(ScriptedAgent(["true"]), grade_timeout_s=0.5)
    assert (hung.status, hung.reward) == (Status.grade_error, None)
    assert "did not end in time" in hung.error


@pytest.mark.slow
@needs_bwrap
def test_the_agent_has_the_time_of_its_task(attempts, tasks):
    write_task(tasks / "sum", toml="[agent]\ntimeout_sec = 0.3\n")
    late = attempts(ScriptedAgent(["echo 6 > total.txt; sleep 30", "true"]))
    assert (late.status, late.tests) == (Status.agent_timeout, {})


class _Breaking:
    """A sandbox that is gone once the agent has ended, or cannot be given the tests."""

    def __init__(self, error=None, exit_code=0):
        self.error, self.exit_code = error, exit_code

    async def write_file(self, path, content):
        if self.error:
            raise self.error

    async def exec(self, command, **_):
        from swe_rl.sandbox.sandbox import ExecResult

        return ExecResult(self.exit_code, "tar: not found")


def test_a_verifier_that_cannot_start_is_infrastructure(tasks):
    env = env_of(tasks)
    instance = env.instances("train")[0]
    with pytest.raises(GradeError, match=r"sum: its tests cannot be put into the sandbox: tar: not found"):
        asyncio.run(env.grade_in(instance, _Breaking(exit_code=127), 5))
    with pytest.raises(SandboxError, match="gone"):
        asyncio.run(env.grade_in(instance, _Breaking(SandboxError("gone")), 5))


def words_of(tasks):
    """Of a command about the tasks, whose proofs are in a file of their own."""
    of_tasks = ["env=harbor", f"env.dataset={tasks}", "env.eval_split=train", "rollout.grade_timeout_s=10"]
    return [*of_tasks, f"env.proofs={tasks.parent}/proofs.jsonl", f"paths.cache={tasks.parent}/cache"]


def made(config):
    """The environment of another process that starts later."""
    book_of.cache_clear()
    return make_env(config.env, cache_folder(config) / "workspaces", config.sandbox.kind)


@needs_bwrap
def test_what_validate_writes_is_what_a_run_reads_and_a_changed_file_makes_it_void(tasks, capsys):
    words = words_of(tasks)
    write_task(tasks / "paid_for_nothing", test="echo 1 > /logs/verifier/reward.txt\n")
    write_task(tasks / "stuck", solve="echo no way; exit 3\n")
    write_task(tasks / "unsolved", solve="true\n")
    write_task(tasks / "mute", test=f"[ -e total.txt ] || {{ echo 'no file'; exit 1; }}\n{SUM}")
    (write_task(tasks / "without") / "solution" / "solve.sh").unlink()
    config = compose(["job=validate", *words]).config
    book_of.cache_clear()
    assert validate.run(config, None) == 0
    said = capsys.readouterr().out
    assert "sum: proven in " in said and "two_files: proven in " in said
    left_out = {
        "paid_for_nothing": "a change that fixes nothing resolves it",
        "stuck": "its solution ends with status 3: no way",
        "unsolved": "with its gold patch 1 tests fail: test.sh, and it scores 0",
        "mute": "without a solution its tests give no verdict: no file",
        "without": "without has no solution/solve.sh, so nothing can prove it",
    }
    assert all(f"  {name}: {reason}\n" in said for name, reason in left_out.items()), said
    assert "2 of 7 instances are proven; 5 left out (env.unproven=skip): mute, paid_for_nothing, stuck" in said

    run = compose(["job=eval", *words]).config
    env, seen = made(run), []
    assert [one.instance_id for one in env.instances("train")] == ["sum", "two_files"]
    say_left_out(run, env, seen.append)
    assert seen[0].startswith("train: 2 of 7 instances are used") and env.left_out("train") == left_out
    with pytest.raises(InstanceError, match=r"5 of 7 instances of train are not proven: mute: without a solution"):
        made(compose(["job=eval", "env.unproven=refuse", *words]).config).instances("train")
    assert len(made(compose(["job=eval", "env.unproven=keep", *words]).config).instances("train")) == 7

    for file in ("environment/numbers.txt", "tests/test.sh", "solution/solve.sh", "instruction.md"):
        path = tasks / "sum" / file
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        assert [one.instance_id for one in made(run).untried("train")] == ["sum"], file
        path.write_bytes(content)
    assert made(run).untried("train") == []


def test_a_proof_is_of_files_and_not_of_the_machine_that_has_them(tasks, tmp_path):
    """Another folder, another umask, other times: a file of proofs can be shared."""
    config = compose(["job=eval", *words_of(tasks)]).config
    env = made(config)
    proofs = [env.digests(one) for one in env.chosen("train")]
    of_before = [record.tests_digest(one, str(config.env.grading)) for one in env.chosen("train")]
    assert not {tests for tests, _ in proofs} & set(of_before), "they do not say whether the verifier has a verdict"
    copy = tmp_path / "elsewhere" / "tasks"
    shutil.copytree(tasks, copy, copy_function=shutil.copyfile)
    for path in copy.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    other = env_of(copy)
    assert [other.digests(one) for one in other.chosen("train")] == proofs
    (copy / "sum" / "tests" / "test.sh").chmod(0o700)
    changed = env_of(copy)
    assert [changed.digests(one) for one in changed.chosen("train")][0] != proofs[0]


def test_the_option_composes(tasks):
    config = compose(["env=harbor", f"env.dataset={tasks}", "agent=gold", "job=rollout"]).config
    assert config.env.name == "harbor"
    assert [finding for finding in check_config(config) if finding.severity is Severity.error] == []


@needs_bwrap
async def test_a_task_is_graded_in_a_sandbox_of_another_host(tasks, tmp_path):
    """Its folders beside the working directory go over the wire: the solution and the tests have their places."""
    behind = make_provider(SandboxConfig(), tmp_path / "scratch", print, run="t")
    env = env_of(tasks)
    instance = env.instances("train")[0]
    async with run_server(behind, tmp_path / "server", ServerOptions(slots=2, lease_s=60.0, key=None)) as url:
        sandboxes = RemoteProvider(SandboxConfig(kind=SandboxKind.remote, runtime_url=url), pause_s=0.01)
        try:
            grades = [await env.grade(instance, patch, sandboxes, 10) for patch in (instance.patch, NOOP_PATCH)]
            wrong = dataclasses.replace(env.workspace(instance), places=("tests",))
            with pytest.raises(SandboxError, match="the place 'tests' is no absolute path of a folder"):
                await sandboxes.create(wrong, owner="t")
        finally:
            await sandboxes.close()
    assert [grade.resolved for grade in grades] == [True, False], grades


UNITTEST = """import pathlib
import unittest


class SumTest(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(int(pathlib.Path("total.txt").read_text()), 6)
"""
BY_PYTHON = "mkdir -p /logs/verifier\ncd /app\n"
BY_PYTHON += "python3 -m unittest discover -s /tests && n=1 || n=0\necho $n > /logs/verifier/reward.txt\n"
PAYS_ANYTHING = BY_PYTHON + "[ -f total.txt ] && echo 1 > /logs/verifier/reward.txt\n"


def write_tested_task(tasks, name, test):
    folder = write_task(tasks / name, test=test)
    (folder / "tests" / "test_sum.py").write_text(UNITTEST)


def test_a_verifier_that_pays_for_a_test_that_has_to_fail_pays_nobody(tasks, attempts):
    write_tested_task(tasks, "tested", BY_PYTHON)
    tricked = attempts(ScriptedAgent(["echo 'raise SystemExit(0)' > unittest.py"]), "tested")
    assert tricked.status is Status.unresolved and tricked.reward == 0.0
    assert tricked.findings == ["twin_passed"] and tricked.cheating["twin_passed"] == 1
    solved = attempts(gold(tasks), "tested")
    assert solved.status is Status.resolved and solved.findings == []


def test_a_verifier_that_pays_the_solution_for_it_as_well_convicts_nobody(tasks, attempts):
    write_tested_task(tasks, "lenient", PAYS_ANYTHING)
    paid = attempts(ScriptedAgent(["echo 7 > total.txt"]), "lenient")
    assert paid.status is Status.resolved and paid.findings == []


def test_a_run_that_has_to_fail_is_no_part_of_the_verdict(tasks, tmp_path):
    write_tested_task(tasks, "tested", BY_PYTHON)
    env = env_of(tasks)
    instance = next(one for one in env.instances("train") if one.instance_id == "tested")

    async def graded(patch):
        sandboxes = make_provider(SandboxConfig(), tmp_path / "scratch", print)
        try:
            return await env.grade(instance, patch, sandboxes, 20.0)
        finally:
            await sandboxes.close()

    solved = asyncio.run(graded(instance.patch))
    assert solved.resolved and solved.score == 1.0 and "OK" in solved.log
    assert solved.session.twinned == {"test_sum.py::test_sum"} and not solved.session.passed_twins
    assert not asyncio.run(graded(NOOP_PATCH)).session.twinned
