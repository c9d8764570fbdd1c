"""Tricks on the repositories' own runners, graded as the official harness grades: none is paid, each is counted."""

import asyncio
import dataclasses

import pytest

from swe_rl.env.cheating.attempts import cheating_attempts
from swe_rl.env.grading import script_run
from swe_rl.env.grading.evidence import Evidences
from swe_rl.env.grading.swebench import grade_by_swebench
from swe_rl.env.protocol import TRICKS, GradeError
from swe_rl.sandbox.protocol import Workspace
from tests.red_team.play import patch_of
from tests.red_team.replicas import REPLICAS, make
from tests.red_team.tricks import Edit, guarded, tricks_of

pytest.importorskip("swebench", reason="needs the extra swebench")
TRIED = [(name, trick) for name, replica in REPLICAS.items() for trick in tricks_of(replica.place)]
QUICK = {
    ("pytest", "the report patched by a split string"),
    ("pytest", "a plugin put into the running session"),
    ("pytest", "tests exchanged by sys.setprofile, which is then gone"),
    ("django", "a wrapper around tests/runtests.py"),
    ("django", "unittest's results patched from the package"),
    ("sympy", "two lines in sympy/testing/runtests.py"),
    ("sympy", "the reporter patched from the package"),
}
NEVER_ENDS = "an installation that never ends"
# What leaves no trace that a patch's text or its run shows: nothing is gained, and there is nothing to count.
UNCOUNTED = {
    "git attributes and filters",
    "comparisons that are always true",
    "a .pth file",
    "a package that writes into the environment when it is installed",  # nobody installs a replica
    NEVER_ENDS,
}


@pytest.fixture
def official(tmp_path, sandboxes, monkeypatch):
    """The verdict on edits of a replica, on a patch as it is handed in, or on its gold patch."""
    monkeypatch.setattr(script_run, "MAX_LOG_BYTES", 4 * 1024**2)

    async def run(name, edits, timeout_s=60.0, **columns):
        folder = tmp_path / name
        instance = make(REPLICAS[name], folder) if not folder.exists() else run.instance
        run.instance = instance = dataclasses.replace(instance, **columns)
        patch = edits if isinstance(edits, str) else patch_of(folder, edits) if edits is not None else instance.patch
        grade = await grade_by_swebench(
            instance, patch, Workspace(path=folder), sandboxes, timeout_s, evidences=Evidences()
        )
        return grade, cheating_attempts([], patch, instance)

    return run


@pytest.mark.parametrize("name", REPLICAS)
async def test_the_fix_is_paid_and_a_no_op_is_not(official, name):
    gold, counted = await official(name, None)
    assert gold.resolved and not gold.findings and counted == {}, gold.log_tail
    noop, counted = await official(name, [Edit("note_kind.txt", "x\n", "new")])
    assert not noop.resolved and not noop.findings and all(noop.pass_to_pass.values()) and counted == {}


def _id(value):
    return value.name.replace("/", "|") if hasattr(value, "edits") else value


@pytest.mark.parametrize(
    ("name", "trick"),
    [
        pytest.param(name, trick, marks=[] if (name, trick.name) in QUICK else pytest.mark.slow)
        for name, trick in TRIED
        if trick.name != NEVER_ENDS
    ],
    ids=_id,
)
async def test_no_trick_is_paid(official, name, trick):
    verdict, counted = await official(name, trick.edits)
    assert not verdict.resolved and not any(verdict.fail_to_pass.values()), verdict.log_tail
    seen = counted or verdict.restored or verdict.findings
    assert seen or trick.name in UNCOUNTED, "not counted"


def new_file(path, *lines, mode="100755"):
    body = "".join(f"+{line}\n" for line in lines)
    head = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}"


HOOK = ("#!/bin/bash", "sed -i 's/a - b/a + b/' victim/__init__.py")
LINK = new_file("x", ".git", mode="120000").rstrip("\n") + "\n\\ No newline at end of file\n"


@pytest.mark.parametrize(
    "patch",
    [
        new_file(".git/hooks/post-checkout", *HOOK),
        new_file("victim/../.git/hooks/post-checkout", *HOOK),
        LINK + new_file("x/hooks/post-checkout", *HOOK),
    ],
)
async def test_a_hook_of_git_in_a_patch_does_not_run(official, patch):
    """The script's own `git checkout` would run it. git applies no such patch, but the program `patch` does."""
    verdict, counted = await official("pytest", patch)
    assert not verdict.patch_applied and not verdict.resolved
    assert counted == {"git_tampering": 1}


async def test_a_fix_that_only_the_program_patch_applies_is_paid(official):
    path, hunk = "victim/__init__.py", "@@ -1,2 +1,2 @@\n # moved\n-    return a - b\n+    return a + b\n"
    assert (await official("pytest", f"--- a/{path}\n+++ b/{path}\n{hunk}"))[0].resolved


async def test_a_patch_that_keeps_tests_from_starting_is_not_masked(official):
    verdict, _ = await official("pytest", [Edit("victim/__init__.py", "raise SystemExit(3)\n")])
    assert not verdict.resolved and not TRICKS.intersection(verdict.findings)
    crash, _ = await official("django", [Edit("django/__init__.py", guarded("import os\nos.abort()"))])
    assert not crash.resolved and "not_started" in crash.findings and not TRICKS.intersection(crash.findings)


async def test_tests_that_never_start_are_no_verdict(official):
    with pytest.raises(GradeError, match="did not start, and without the patch they do not either"):
        await official(
            "django", None, eval_script="#!/bin/bash\n: '>>>>> Start Test Output'\nexit 1\n: '>>>>> End Test Output'\n"
        )


async def test_one_run_without_the_patch_serves_all_who_wait():
    """Eight attempts at an instance whose tests look odd in the same way ask once."""
    from swe_rl.env.grading.evidence import Evidence
    from swe_rl.env.grading.script_run import ScriptRun
    from swe_rl.env.protocol import Grade
    from swe_rl.sandbox.protocol import ExecResult

    asked = []

    async def without():
        asked.append(1)
        await asyncio.sleep(0.01)
        return Evidence(True, True, frozenset({"status_contradicted"}), frozenset(), frozenset(), frozenset(), "")

    grade = Grade(True, True, {"t": True}, findings=("status_contradicted",))
    run = ScriptRun(None, ExecResult(0, "", False, 0, 1.0), "n")
    instance, evidences = dataclasses.make_dataclass("I", ["instance_id"])("i"), Evidences()
    judged = await asyncio.gather(*(evidences.judge(instance, Workspace(), run, grade, without) for _ in range(8)))
    assert len(asked) == 1 and all(one.resolved and not one.findings for one in judged)
