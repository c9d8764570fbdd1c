"""The graders beside pytest's: a data set's own script, a row's own test file."""

import asyncio
import dataclasses
import re

import pytest

from swe_rl.config.choices import GradingKind, Isolation
from swe_rl.config.schema import EnvConfig, SandboxConfig
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.env import Grade, GradeError
from swe_rl.env.grading import make as grading
from swe_rl.env.grading.alert import Alert
from swe_rl.env.grading.make import GRADERS, VerdictCache, grade_by_eval_script, grade_by_tests
from swe_rl.env.patch_files import touched_paths
from swe_rl.sandbox import base
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import ExecResult, SandboxError
from tests.support.pytest_alone import EXPORTED
from tests.support.scripted_sandbox import ScriptedProvider


@pytest.fixture
def env(tmp_path):
    return BugsEnv(EnvConfig(), tmp_path / "cache")


@pytest.fixture
async def sandboxes(tmp_path):
    provider = make_provider(SandboxConfig(), tmp_path / "scratch", print)
    yield provider
    await provider.close()


def test_every_kind_has_its_grader():
    assert set(GRADERS) == set(GradingKind)


async def test_the_rows_own_test_file(env, sandboxes):
    known = env.instances("train")[0]
    instance = dataclasses.replace(known, fail_to_pass=(), pass_to_pass=())
    gold = await grade_by_tests(instance, known.patch, env.workspace(known), sandboxes, 60)
    assert gold.resolved and set(known.fail_to_pass) <= set(gold.fail_to_pass)
    noop = await grade_by_tests(instance, "", env.workspace(known), sandboxes, 60)
    assert not noop.resolved and set(noop.fail_to_pass) == set(gold.fail_to_pass)
    with pytest.raises(GradeError, match="neither names of tests nor"):
        await grade_by_tests(dataclasses.replace(instance, test_patch=""), "", env.workspace(known), sandboxes, 60)


async def test_a_script_with_a_reader_of_the_data_sets_own(env, sandboxes):
    """R2E-Gym: names without files, with dots; and the tree is made by a script."""
    known = env.instances("train")[0]
    files = " ".join(touched_paths(known.test_patch))
    instance = dataclasses.replace(
        known,
        fail_to_pass=tuple(test.split("::", 1)[1].replace("::", ".") for test in known.fail_to_pass),
        pass_to_pass=(),
        log_parser="r2e_gym",
        setup_script=f"set -e\necho {'x' * 200_000} | cat > made_by_setup\n",  # longer than a command may be
        eval_script=(
            f"#!/bin/bash\nset -uxo pipefail\n{EXPORTED}ls made_by_setup || exit 1\n"
            f"git apply <<'EOF_1'\n{known.test_patch}\nEOF_1\n"
            ": '>>>>> Start Test Output'\n"
            f"python -m pytest -rA -p no:cacheprovider {files}\n: '>>>>> End Test Output'\n"
        ),
    )
    gold = await grade_by_eval_script(instance, known.patch, env.workspace(known), sandboxes, 60)
    assert gold.resolved and all(gold.fail_to_pass.values()), gold.log_tail
    noop = await grade_by_eval_script(instance, "", env.workspace(known), sandboxes, 60)
    assert not noop.resolved and not any(noop.fail_to_pass.values()) and noop.patch_applied
    broken = dataclasses.replace(instance, setup_script="exit 3")
    with pytest.raises(GradeError, match="setup_script fails"):
        await grade_by_eval_script(broken, known.patch, env.workspace(known), sandboxes, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GradingKind.pytest, GradingKind.eval_script])
async def test_a_tmpdir_with_blanks_and_a_variable_that_is_called_script(env, tmp_path, monkeypatch, kind):
    monkeypatch.setitem(base._GIT, "script", "of the image")  # of every command
    known = env.instances("train")[0]
    script = (
        f"git apply <<'EOF_1'\n{known.test_patch}\nEOF_1\npython -m pytest -rA -p no:cacheprovider # {'x' * 200_000}\n"
    )
    instance = dataclasses.replace(known, eval_script=script if kind is GradingKind.eval_script else "")
    provider = make_provider(SandboxConfig(isolation=Isolation.none), tmp_path / "with  blanks", print)
    gold = await GRADERS[kind](instance, known.patch, env.workspace(known), provider, 60)
    noop = await GRADERS[kind](instance, "", env.workspace(known), provider, 60)
    await provider.close()
    assert gold.resolved and not noop.resolved and noop.patch_applied, noop.log_tail


async def test_a_row_without_a_script_is_refused(env):
    with pytest.raises(GradeError, match="no eval_script"):
        await grade_by_eval_script(env.instances("train")[0], "x", None, ScriptedProvider(), 60)


@pytest.mark.parametrize("kind", list(GradingKind))
async def test_a_sandbox_that_dies_is_no_verdict(env, kind):
    def dies(command):
        raise SandboxError("gone")

    provider = ScriptedProvider(dies)
    known = env.instances("train")[0]
    instance = dataclasses.replace(known, eval_script="true" if kind is GradingKind.eval_script else "")
    if kind is GradingKind.swebench:
        pytest.importorskip("swebench")
    with pytest.raises(GradeError, match="gone"):
        await GRADERS[kind](instance, known.patch, env.workspace(known), provider, 60)
    assert not provider.open_sandboxes


@pytest.mark.parametrize("kind", [GradingKind.pytest, GradingKind.eval_script, GradingKind.tests])
async def test_an_error_that_nobody_thought_of_is_no_verdict(env, kind):
    def breaks(command):
        raise ZeroDivisionError("by a patch")

    known = env.instances("train")[0]
    instance = dataclasses.replace(known, eval_script="true" if kind is GradingKind.eval_script else "")
    with pytest.raises(GradeError, match=f"{known.instance_id} failed: ZeroDivisionError: by a patch"):
        await GRADERS[kind](instance, known.patch, env.workspace(known), ScriptedProvider(breaks), 60)


async def test_a_sandbox_without_pytest_is_no_verdict(env, sandboxes):
    """The first line of what a grader runs is not the patch's doing."""
    known = env.instances("train")[0]

    def answers(command):
        if "mktemp" in command.command:
            return "/tmp/x"
        if "python -I /tmp/x/session_program" in command.command:
            end_of_log = re.findall("swe_rl [0-9a-f]{32}", command.command)[-1]
            return ExecResult(127, f"bash: python: command not found\n{end_of_log}\n", False, 0, 0.1)
        return ""

    with pytest.raises(GradeError, match="cannot be started in the sandbox"):
        await GRADERS[GradingKind.pytest](known, known.patch, env.workspace(known), ScriptedProvider(answers), 60)


async def test_a_cache_of_any_grader(env, sandboxes):
    cache, known = VerdictCache(GRADERS[GradingKind.tests]), env.instances("train")[0]
    first = await cache.grade(known, known.patch, env.workspace(known), sandboxes, 60)
    again = await cache.grade(known, known.patch, env.workspace(known), sandboxes, 60)
    assert cache.hits == 1 and again.cached and again.resolved and first.resolved and again.duration_s == 0.0


async def test_after_a_conviction_paid_patches_are_graded_once_more(env, monkeypatch):
    alert = Alert()
    monkeypatch.setattr(grading, "ALERT", alert)
    asked = []

    async def grader(instance, patch, *_):
        asked.append(patch)
        return Grade(patch == "paid", True)

    cache, known = VerdictCache(grader), env.instances("train")[0]
    for _ in range(2):
        for patch in ("paid", "failed", "paid", "failed"):
            await cache.grade(known, patch, None, None, 60)
        alert.sound()
    assert asked == ["paid", "failed", "paid"] and cache.hits == 5


async def test_a_verdict_that_a_conviction_overtook_is_asked_for_once_more(env, monkeypatch):
    """Its grading began when nobody looked closely."""
    alert = Alert()
    monkeypatch.setattr(grading, "ALERT", alert)
    may_end = asyncio.Event()
    asked = []

    async def grader(instance, patch, *_):
        asked.append(patch)
        if patch == "slow":
            await may_end.wait()
        return Grade(True, True)

    cache, known = VerdictCache(grader), env.instances("train")[0]
    first = asyncio.ensure_future(cache.grade(known, "slow", None, None, 60))
    await asyncio.sleep(0)
    alert.sound()
    await cache.grade(known, "another", None, None, 60)
    may_end.set()
    assert (await first).resolved
    assert not (await cache.grade(known, "slow", None, None, 60)).cached
    assert (await cache.grade(known, "slow", None, None, 60)).cached
    assert asked == ["slow", "another", "slow"]


async def test_who_waits_for_a_grading_that_is_cancelled_asks_anew(env):
    asked = []

    has_begun = asyncio.Event()

    async def grader(*_):
        asked.append(1)
        has_begun.set()
        await asyncio.sleep(60 if len(asked) == 1 else 0)
        return Grade(True, True)

    cache, known = VerdictCache(grader), env.instances("train")[0]
    first, *others = (asyncio.ensure_future(cache.grade(known, "paid", None, None, 60)) for _ in range(3))
    await has_begun.wait()
    first.cancel()
    grades = await asyncio.gather(first, *others, return_exceptions=True)
    assert isinstance(grades[0], asyncio.CancelledError)
    assert [grade.cached for grade in grades[1:]] == [False, True] and len(asked) == 2
