"""Grading in a real sandbox: the tests' verdict, and nothing else."""

import asyncio
import contextlib
import dataclasses
import json
from types import SimpleNamespace

import psutil
import pytest

from swe_rl.config.schema import EnvConfig, SandboxConfig
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.env import Grade, GradeError, PytestSession
from swe_rl.env.folder import patch_between
from swe_rl.env.grading.make import VerdictCache
from swe_rl.env.grading.pytest import grade_by_pytest
from swe_rl.env.grading.session import read_session
from swe_rl.env.patch import collect_patch
from swe_rl.env.pinning.pinned import protected_paths
from swe_rl.sandbox.base import MAX_COMMAND_BYTES
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import USED_TOO_MUCH, ExecResult, SandboxError
from tests.support.scripted_sandbox import ScriptedProvider

SECRET = "swe_rl-secret"


@pytest.fixture
def env(tmp_path):
    return BugsEnv(EnvConfig(), tmp_path / "cache")


@pytest.fixture
async def sandboxes(tmp_path):
    provider = make_provider(SandboxConfig(), tmp_path / "scratch", print)
    yield provider
    await provider.close()


async def grade(env, instance, patch, sandboxes):
    return await grade_by_pytest(instance, patch, env.workspace(instance), sandboxes, 60.0)


@pytest.mark.parametrize("split", ["train", pytest.param("heldout", marks=pytest.mark.slow)])
async def test_gold_resolves_and_nothing_does_not(env, sandboxes, split):
    instance = env.instances(split)[0]
    gold = await grade(env, instance, instance.patch, sandboxes)
    assert gold.resolved and all(gold.pass_to_pass.values()) and gold.patch_applied
    noop = await grade(env, instance, "", sandboxes)
    assert not noop.resolved and not any(noop.fail_to_pass.values()) and all(noop.pass_to_pass.values())


async def test_a_patch_that_does_not_apply_is_a_verdict(env, sandboxes):
    instance = env.instances("train")[0]
    elsewhere = instance.patch.replace("\n ", "\n nowhere ")  # other context
    verdict = await grade(env, instance, elsewhere, sandboxes)
    assert not verdict.resolved and not verdict.patch_applied


async def test_changed_tests_and_runner_settings_do_not_count(env, sandboxes):
    instance = env.instances("train")[0]
    cheat = (
        "diff --git a/conftest.py b/conftest.py\n--- a/conftest.py\n+++ b/conftest.py\n@@ -0,0 +1,3 @@\n"
        "+def pytest_runtest_makereport(item, call):\n+    import _pytest.reports as r\n+    raise SystemExit(0)\n"
        "diff --git a/pytest.ini b/pytest.ini\nnew file mode 100644\n--- /dev/null\n+++ b/pytest.ini\n@@ -0,0 +1,2 @@\n"
        "+[pytest]\n+addopts = --co\n"
    )
    verdict = await grade(env, instance, cheat, sandboxes)
    assert not verdict.resolved and all(verdict.pass_to_pass.values())


async def test_code_that_ends_the_session_early_passes_nothing(env, sandboxes):
    instance = env.instances("train")[0]
    package = instance.repo.split("/")[-1]
    path = f"{package}/__init__.py"
    first = (env.workspace(instance).path / path).read_text().split("\n")[0]
    cheat = (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1,3 @@\n"
        f"+import os\n+print('PASSED {instance.fail_to_pass[0]}'); os._exit(0)\n {first}\n"
    )
    verdict = await grade(env, instance, cheat, sandboxes)
    assert not verdict.resolved and not any(verdict.pass_to_pass.values())


async def test_a_broken_test_patch_is_no_verdict(env, sandboxes):
    instance = dataclasses.replace(env.instances("train")[0], test_patch="nonsense\n")
    workspace = env.workspace(env.instances("train")[0])
    with pytest.raises(GradeError, match="its own test patch"):
        await grade_by_pytest(instance, instance.patch, workspace, sandboxes, 60.0)


async def test_a_dead_sandbox_is_no_verdict(env):
    from swe_rl.sandbox.sandbox import SandboxError

    def dies(command):
        raise SandboxError("gone")

    instance = env.instances("train")[0]
    with pytest.raises(GradeError, match="gone"):
        await grade(env, instance, instance.patch, ScriptedProvider(dies))


async def test_the_cache_asks_once_also_side_by_side(env, sandboxes):
    cache, instance = VerdictCache(), env.instances("train")[0]
    workspace = env.workspace(instance)
    verdicts = await asyncio.gather(
        *(cache.grade(instance, instance.patch, workspace, sandboxes, 60.0) for _ in range(4))
    )
    assert all(one.resolved for one in verdicts) and cache.hits == 3
    assert sorted(one.cached for one in verdicts) == [False, True, True, True]
    assert not (await cache.grade(instance, "", workspace, sandboxes, 60.0)).resolved


async def test_a_verdict_of_a_killed_grader_is_not_remembered():
    """It may have been killed from outside: 63 such verdicts once hit 104 trajectories."""
    asked = []

    async def grader(*_):
        asked.append(1)
        return Grade(False, True, findings=("grader_killed",))

    cache, instance = VerdictCache(grader), SimpleNamespace(instance_id="one")
    for _ in range(2):
        assert not (await cache.grade(instance, "patch", None, None, 60.0)).cached
    assert len(asked) == 2


@pytest.mark.parametrize("killed", ["add", "diff", "read-tree"])
async def test_git_killed_while_a_patch_is_taken_is_no_empty_patch(env, sandboxes, killed):
    """Nothing of the agent's runs by then: what is killed there was killed by the machine."""
    instance = env.instances("train")[0]
    sandbox = await sandboxes.create(env.workspace(instance), owner="agent")
    own = f"git() {{ if [ $1 = {killed} ]; then bash -c 'kill -9 $$'; else command git \"$@\"; fi; }}"
    plain = sandbox.exec

    async def exec_with_killer(command, **options):
        return await plain(f"{own}\n{command}", **options)

    sandbox.exec = exec_with_killer
    with pytest.raises(SandboxError, match="status 137"):
        await collect_patch(sandbox, instance.base_commit, 10)
    await sandbox.close()


async def kill_a_grader():
    """SIGKILL from outside to the first process of this test that grades."""
    while True:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if line and "python" in line[0] and line[2:3] and line[2].endswith("/session_program.py"):
                    process.kill()
                    return
        await asyncio.sleep(0.005)


async def test_a_grader_killed_from_outside_gives_no_wrong_verdict(env, sandboxes):
    instance = env.instances("train")[0]
    killing = asyncio.create_task(kill_a_grader())
    verdict = await grade(env, instance, instance.patch, sandboxes)
    assert killing.done() and verdict.resolved and not verdict.findings


def session_of(status, *records, log="words"):
    told = "".join(f"{json.dumps(record)}\n" for record in records)
    return read_session(ExecResult(status, f"{log}\n{SECRET}\n{told}", False, 0, 1.0), SECRET)


def told(test, **outcomes):
    return [{"test": test, "when": when, "outcome": outcome} for when, outcome in outcomes.items()]


READY = {"ready": "8.4"}


@pytest.mark.parametrize(("status", "killed"), [(137, True), (139, False), (1, False)])
def test_a_session_knows_that_its_tests_were_killed(status, killed):
    session = session_of(status, READY, *told("a", setup="passed", call="passed", teardown="passed"))
    assert session.killed is killed and session.findings == ("ended_early",) and not session.tests


def test_a_session_says_what_became_of_each_test():
    whole = {"setup": "passed", "call": "passed", "teardown": "passed"}
    records = [*told("a", **whole), *told("b", **{**whole, "teardown": "failed"}), *told("c", setup="passed")]
    records += [*told("d", **whole), *told("d", call="failed"), *told("d", call="passed")]
    records += [*told("e", **{**whole, "call": "xfailed"}), *told("f", setup="skipped", teardown="passed")]
    session = session_of(1, READY, *records, {"finished": 1})
    outcomes = {"a": "passed", "b": "failed", "c": "failed", "d": "failed", "e": "xfailed", "f": "skipped"}
    assert session.tests == outcomes and session.findings == () and session.log == "words"


def test_lines_that_are_no_records_are_left_out():
    session = session_of(0, READY, 3, "x", [], {"test": 1, "when": 2}, {"finished": 0})
    assert session.tests == {"1": "failed"} and session.findings == ()


def test_a_name_that_tested_code_made_up_can_be_written_into_a_file():
    session = session_of(0, READY, *told("\ud800", setup="passed"), {"finished": 0})
    assert [name.encode() for name in session.tests] == ["\N{REPLACEMENT CHARACTER}".encode()]


@pytest.mark.parametrize("finished", [1, 4])
def test_a_session_that_did_not_end_as_it_says_passes_nothing(finished):
    status = 4 if finished == 4 else 0
    session = session_of(status, READY, *told("a", setup="passed"), {"finished": finished})
    assert session.findings == ("ended_early",) and not session.tests and session.unclear
    assert not session_of(status, READY, {"finished": finished}).unclear  # no test ran, so none was disturbed


def test_a_shell_that_was_killed_says_nothing():
    session = read_session(ExecResult(137, "KeyboardInterrupt: No such file or directory", False, 0, 1.0), SECRET)
    assert session.findings == ("grader_killed",) and session.killed and not session.tests


def test_a_pytest_that_is_not_there_is_no_verdict():
    with pytest.raises(GradeError, match="cannot be started"):
        session_of(2, log="python: can't open file '/x': [Errno 2] No such file")


async def test_a_patch_that_kills_its_grader_is_run_twice_and_resolves_nothing(env, sandboxes):
    instance = env.instances("train")[0]
    workspace, made = env.workspace(instance), []

    class Counting:
        async def create(self, *given, **rest):
            made.append(1)
            return await sandboxes.create(*given, **rest)

    file = instance.patch.split(" b/")[1].split()[0]
    first = (workspace.path / file).read_text().splitlines()[0]
    kill = "import os; os.kill(os.getppid(), 9)"
    patch = f"--- a/{file}\n+++ b/{file}\n@@ -1 +1,2 @@\n+{kill}\n {first}\n"
    verdict = await grade_by_pytest(instance, patch, workspace, Counting(), 60.0)
    assert not verdict.resolved and verdict.findings == ("grader_killed",) and len(made) == 2


async def test_the_patch_of_an_agent(env, sandboxes):
    """Edits, new files and own commits are in it; caches are not; without a repository there is none."""
    instance = env.instances("train")[0]
    sandbox = await sandboxes.create(env.workspace(instance), owner="agent")
    module = instance.patch.split()[2].removeprefix("a/")
    await sandbox.exec(f"echo '# note' >> {module}; git commit -qam own", timeout_s=10)
    await sandbox.exec("echo data > new.txt; mkdir __pycache__; echo x > __pycache__/a.pyc", timeout_s=10)
    patch = (await collect_patch(sandbox, instance.base_commit, 10)).text
    assert "+# note" in patch and "+++ b/new.txt" in patch and "pyc" not in patch
    verdict = await grade(env, instance, patch, sandboxes)
    assert verdict.patch_applied and not verdict.resolved
    await sandbox.exec("rm -rf .git", timeout_s=10)
    assert (await collect_patch(sandbox, instance.base_commit, 10)).text == ""
    await sandbox.close()


async def test_the_tree_has_one_commit_and_no_trace_of_the_fix(env, sandboxes):
    for instance in (*env.instances("train")[:3], *env.instances("heldout")[:3]):
        sandbox = await sandboxes.create(env.workspace(instance), owner="look")
        log = await sandbox.exec(
            "git log --all --oneline | wc -l; git rev-parse HEAD; git status --porcelain", timeout_s=10
        )
        assert log.output.split() == ["1", instance.base_commit]
        for test in instance.fail_to_pass:
            name = test.split("::")[1]
            found = await sandbox.exec(
                f"grep -rn 'def {name}(' . ; git grep -n 'def {name}(' $(git rev-list --all)", timeout_s=10
            )
            assert found.output == ""
        await sandbox.close()


async def test_a_policy_that_filled_its_disk_has_no_patch_and_breaks_nothing(env, sandboxes):
    """The sandbox's own bounds end each later command: that is the policy's doing, and no failure to be repeated."""
    instance = env.instances("train")[0]
    sandbox = await sandboxes.create(env.workspace(instance), owner="agent")

    async def over(command, **options):
        return ExecResult(137, f"half\n{USED_TOO_MUCH} 2.10 GB of disk.\n", False, 0, 0.1)

    sandbox.exec = over
    taken = await collect_patch(sandbox, instance.base_commit, 10)
    assert taken.text == "" and "over its limits" in taken.note
    await sandbox.close()


@pytest.mark.slow
async def test_a_row_that_names_thousands_of_paths(env, sandboxes):
    """They are more than a command can hold."""
    instance = env.instances("train")[0]
    theirs = {f"data/{number:031}.txt": "theirs\n" for number in range(6000)}
    workspace = env.workspace(instance)
    instance = dataclasses.replace(instance, test_patch=instance.test_patch + patch_between({}, theirs))
    assert len(" ".join(protected_paths(instance))) > 2 * MAX_COMMAND_BYTES
    mine = {min(theirs): "mine\n", "data/other.txt": "mine\n"}
    verdict = await grade_by_pytest(instance, instance.patch + patch_between({}, mine), workspace, sandboxes, 60.0)
    assert verdict.resolved and verdict.restored == (min(theirs),), verdict.log_tail


@pytest.mark.parametrize(
    ("test", "passed"),
    [
        ("t.py", False),
        ("t.py::T", True),
        ("t.py::T::a", True),
        ("t.py::b[x", False),
        ("t.py::c", False),
        ("u.py", False),
    ],
)
def test_what_an_id_stands_for(test, passed):
    tests = {"t.py::T::a": "passed", "t.py::b[x y]": "passed", "t.py::b[x z]": "failed", "t.py::T::d": "xfailed"}
    assert PytestSession(tests).passed([test]) == {test: passed}


def test_made_up_tests_take_no_time_for_each_pair():
    """It would take minutes."""
    tests = {f"t.py::test_{number}": "passed" for number in range(50_000)} | {"t.py" + "::a" * 1_000_000: "passed"}
    named = [f"u.py::test_{number}" for number in range(50_000)]
    assert not any(PytestSession(tests).passed(named).values())
    assert all(PytestSession(tests).passed(tests).values())
