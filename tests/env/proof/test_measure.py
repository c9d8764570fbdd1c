"""Tests that a fix turns, measured: by runs that are given, by a prover, and by a real runner in a real repository."""

import asyncio
import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.choices import GradingKind, Isolation, SandboxKind, Unproven
from swe_rl.config.schema import EnvConfig, SandboxConfig
from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.commits import CommitChange, instance_of
from swe_rl.env.env import Grade, GradeError, SuiteRun
from swe_rl.env.grading.swebench import grade_by_swebench, suite_by_swebench
from swe_rl.env.make import make_env
from swe_rl.env.patch import NOOP_PATCH
from swe_rl.env.proof.measure import RUNS, TIMED_OUT, measure_fix
from swe_rl.env.proof.prove import Prover, UntriedError
from swe_rl.env.proof.record import Proof, Standing, book_of
from swe_rl.env.proof.shared_runs import SharedRuns
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.releases import FORWARD, REVERSE
from swe_rl.env.swe.read import to_instance
from swe_rl.errors import UserError
from swe_rl.run.proving import line_of
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Workspace
from tests.support.pytest_alone import OPTIONS

SOURCE = Source(tree="calc", python="3.11", test_command="pytest -rA")
ROW = Instance("a__b-1", "a/b", "c" * 40, "s", "GOLD", "t", (), (), source=SOURCE)


def runs(*sides):
    """`+name` passed and `-name` failed, a word each."""
    return [SuiteRun({word[1:]: word[0] == "+" for word in side.split()}) for side in sides]


def test_what_passes_in_each_run_and_failed_in_each_before_is_turned():
    tests = measure_fix(runs("+kept -fixed", "+kept -fixed"), runs("+kept +fixed +new -broken", "+kept +fixed +new"))
    assert tests.fail_to_pass == ("fixed", "new") and tests.pass_to_pass == ("kept",)
    assert not tests.flaky and not tests.reason


def test_a_test_that_passes_in_some_runs_of_one_side_is_in_no_list():
    before = runs("+kept -fixed +now +early", "+kept -fixed -now -early")
    after = runs("+kept +fixed +now -late", "+kept +fixed +now +late")
    tests = measure_fix(before, after)
    assert (tests.fail_to_pass, tests.pass_to_pass) == (("fixed",), ("kept",))
    assert tests.flaky == ("early", "late", "now")


OUTCOMES = st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=8)


@given(OUTCOMES)
def test_lists_never_overlap_and_hold_what_every_run_says(outcomes):
    sides = [SuiteRun({f"t{n}": row[run] for n, row in enumerate(outcomes)}) for run in range(6)]
    tests = measure_fix(sides[:3], sides[3:])
    for name, row in ((f"t{n}", row) for n, row in enumerate(outcomes)):
        assert (name in tests.fail_to_pass) == (not any(row[:3]) and all(row[3:]))
        assert (name in tests.pass_to_pass) == all(row)
        assert (name in tests.flaky) == (len({*row[:3]}) > 1 or len({*row[3:]}) > 1)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (runs("+a"), runs("+a"), "none of the 1 tests that pass with its gold patch fails without it"),
        (runs("-a"), runs("-a"), "no test passes with its gold patch"),
        (
            runs("-a"),
            [SuiteRun({}, f"No module named\npytest\n+ echo 'swe_rl {'0a' * 16} end'\nswe_rl {'0a' * 16} end\n")],
            "its log names no test with its gold patch; its command and its log_parser must fit: "
            "No module named pytest",
        ),
        (
            runs("-a"),
            [SuiteRun({}, "patch failed", patch_applied=False)],
            "its gold patch does not apply: patch failed",
        ),
        ([SuiteRun({}, timed_out=True)], runs("+a"), "did not end in time without its gold patch"),
    ],
)
def test_why_nothing_can_be_judged_is_said(before, after, reason):
    said = measure_fix(before, after).reason
    assert reason in said and "swe_rl " not in said


class Suite:
    """`+`/`-` words for each run of the suite, without the patch and with it; grading passes what the row names."""

    def __init__(self, before, after):
        self._sides = {NOOP_PATCH: iter(before), "GOLD": iter(after)}
        self.graded = []

    def workspace(self, instance):
        pass

    async def run_tests(self, instance, patch, sandboxes, timeout_s):
        assert instance.is_unmeasured
        run = next(self._sides[patch])
        if isinstance(run, Exception):
            raise run
        return runs(run)[0]

    async def grade(self, instance, patch, sandboxes, timeout_s):
        self.graded.append((instance.fail_to_pass, instance.pass_to_pass))
        solved = patch == "GOLD"
        return Grade(solved, True, dict.fromkeys(instance.fail_to_pass, solved))

    def environment_digest(self, instance):
        return ""

    def digests(self, instance):
        return "tests", f"{instance.is_unmeasured}"


def prove(suite, row=ROW, number=1):
    return asyncio.run(Prover(suite, None, number, 60.0).prove(row))


def test_a_row_without_tests_is_measured_and_then_proven_by_what_was_measured():
    suite = Suite(["+kept -fixed -odd", "+kept -fixed +odd", "+kept -fixed -odd"], ["+kept +fixed +odd"] * RUNS)
    proof = prove(suite)
    assert proof.proven and (proof.fail_to_pass, proof.pass_to_pass, proof.flaky) == (("fixed",), ("kept",), ("odd",))
    assert suite.graded == [(("fixed",), ("kept",))] * 2  # gold, and a change of nothing
    assert proof.made_of == "True"  # of the row as it is in its file
    assert "measured: 1 FAIL_TO_PASS and 1 PASS_TO_PASS tests, flaky and left out: odd" in line_of(proof)
    again = Proof.from_record(json.loads(json.dumps(proof.to_record())))
    assert again == proof and again.applied(ROW) == replace(ROW, fail_to_pass=("fixed",), pass_to_pass=("kept",))
    named = replace(ROW, fail_to_pass=("mine",))
    assert again.applied(named) == named


def test_it_is_run_as_often_as_asked_and_once_more_where_infrastructure_broke():
    suite = Suite([GradeError("no space"), *["-fixed"] * 5], ["+fixed"] * 5)
    assert prove(suite, number=5).gold == ("resolved",) * 5
    with pytest.raises(UntriedError, match="no space"):
        prove(Suite([GradeError("no space")] * 2, []))


def test_runs_that_do_not_end_in_time_are_no_verdict_and_are_tried_again():
    suite = Suite(["-fixed"] * RUNS, ["+fixed"] * RUNS)

    async def late(instance, patch, sandboxes, timeout_s):
        return SuiteRun({}, timed_out=True)

    suite.run_tests = late
    unmeasured = prove(suite)
    assert not unmeasured.proven and not unmeasured.is_verdict and unmeasured.reason.startswith(TIMED_OUT)
    graded = Suite(["-fixed"] * RUNS, ["+fixed"] * RUNS)

    async def late_grade(instance, patch, sandboxes, timeout_s):
        return replace(Grade(False, True, dict.fromkeys(instance.fail_to_pass, False)), timed_out=True)

    graded.grade = late_grade
    ungraded = prove(graded)
    assert not ungraded.proven and not ungraded.is_verdict and ungraded.reason.startswith(TIMED_OUT)


def test_what_cannot_be_measured_is_a_verdict_and_what_cannot_be_built_is_none():
    lost = prove(Suite(["+a"] * RUNS, ["+a"] * RUNS))
    assert not lost.proven and lost.is_verdict and "fails without it" in lost.reason
    suite = Suite([], [])
    suite.workspace = lambda instance: (_ for _ in ()).throw(BuildError("no network"))
    unbuilt = prove(suite)
    assert not unbuilt.proven and not unbuilt.is_verdict and unbuilt.reason == "no network"


def dataset(tmp_path, **columns):
    record = {**ROW.to_record(), "patch": "p", "test_patch": "diff --git a/t.py b/t.py\n", **columns}
    path = tmp_path / "instances.jsonl"
    path.write_text(json.dumps({key: value for key, value in record.items() if value is not None}) + "\n")
    return path


@pytest.mark.parametrize("sandbox", [SandboxKind.process, SandboxKind.docker])
@pytest.mark.parametrize("unproven", list(Unproven))
def test_nothing_uses_a_row_before_it_is_measured(tmp_path, sandbox, unproven):
    """Without names of tests any patch would resolve it."""
    path = dataset(tmp_path, FAIL_TO_PASS=None, PASS_TO_PASS=None)
    config = EnvConfig(name="jsonl", dataset=str(path), grading=GradingKind.swebench, unproven=unproven)
    env = make_env(config, tmp_path, sandbox)
    with pytest.raises(InstanceError, match="nobody tried its gold patch and measured its tests here"):
        env.instances("train")
    [row] = env.chosen("train")
    tests, made_of = env.digests(row)
    lists = {"fail_to_pass": ("fixed",), "pass_to_pass": ("kept",)}
    env.book.put(Proof(row.instance_id, True, "", tests, made_of, "", gold=("resolved",), noop="unresolved", **lists))
    env.forget()
    assert env.standing(row)[0] is Standing.proven
    [used] = env.instances("train")
    assert (used.fail_to_pass, used.pass_to_pass) == (("fixed",), ("kept",))
    book_of.cache_clear()


@pytest.mark.parametrize(
    ("names", "standing"),
    [
        ({"FAIL_TO_PASS": ["fixed"], "PASS_TO_PASS": ["kept"]}, Standing.proven),
        ({"FAIL_TO_PASS": ["fixed"], "PASS_TO_PASS": []}, Standing.untried),
        ({"FAIL_TO_PASS": ["other"], "PASS_TO_PASS": ["kept"]}, Standing.untried),
        ({"FAIL_TO_PASS": ["fixed"], "PASS_TO_PASS": ["kept"], "patch": "q"}, Standing.untried),
    ],
)
def test_a_row_that_names_what_its_proof_measured_is_proven(tmp_path, names, standing):
    """So are the rows that `job=mine` writes: gold was graded with these tests."""
    path = dataset(tmp_path, FAIL_TO_PASS=None, PASS_TO_PASS=None)
    config = EnvConfig(name="jsonl", dataset=str(path), grading=GradingKind.swebench)
    env = make_env(config, tmp_path, SandboxKind.process)
    [row] = env.chosen("train")
    lists = {"fail_to_pass": ("fixed",), "pass_to_pass": ("kept",)}
    env.book.put(Proof(row.instance_id, True, "", *env.digests(row), "", gold=("resolved",), **lists))
    dataset(tmp_path, **names)
    named = make_env(config, tmp_path, SandboxKind.process)
    [row] = named.chosen("train")
    assert not row.is_unmeasured and named.standing(row)[0] is standing
    assert named.is_tried(row) is (standing is Standing.proven)
    book_of.cache_clear()


def test_a_row_that_cannot_be_measured_is_left_out_as_before(tmp_path):
    """Without a source there is nothing to measure in, and another grading has no list of tests."""
    for changes in ({"source": None}, {"PASS_TO_PASS": ["kept"]}):
        path = dataset(tmp_path, **changes)
        with pytest.raises(InstanceError, match="1 with no FAIL_TO_PASS test"):
            make_env(
                EnvConfig(name="jsonl", dataset=str(path), grading=GradingKind.swebench), tmp_path, SandboxKind.docker
            ).chosen("train")
    with pytest.raises(InstanceError, match="FAIL_TO_PASS"):
        Instance.from_record({**ROW.to_record(), "source": None, "FAIL_TO_PASS": None})


class Folder:
    """A repository's base commit as a workspace, without an environment of its own."""

    def __init__(self, tree):
        self._workspace = Workspace(path=tree)

    def workspace(self, instance):
        return self._workspace

    async def run_tests(self, instance, patch, sandboxes, timeout_s):
        return await suite_by_swebench(instance, patch, self._workspace, sandboxes, timeout_s)

    async def grade(self, instance, patch, sandboxes, timeout_s):
        return await grade_by_swebench(instance, patch, self._workspace, sandboxes, timeout_s)

    def released(self, instance):
        return datetime(2020, 1, 1, tzinfo=UTC)

    def nearer(self, instance):
        return []

    def environment_digest(self, instance):
        return ""

    def digests(self, instance):
        return "tests", "made of"


@pytest.mark.slow
async def test_a_merged_change_of_a_repository_becomes_a_proven_instance(tmp_path):
    pytest.importorskip("swebench", reason="needs the extra swebench")

    def git(*words):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *name, *words], cwd=tree, check=True, capture_output=True, text=True).stdout

    tree = tmp_path / "calc"
    (tree / "tests").mkdir(parents=True)
    (tree / "conftest.py").write_text("")
    (tree / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    kept = "from calc import add\n\n\ndef test_zero():\n    assert add(0, 0) == 0\n"
    (tree / "tests/test_calc.py").write_text(kept)
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "base")
    (tree / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (tree / "tests/test_calc.py").write_text(kept + "\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    git("commit", "-qam", "add() subtracts")
    command = f"python -m pytest -rA -p no:cacheprovider {OPTIONS}"
    source = replace(SOURCE, tree=str(tree), test_command=command)
    row = to_instance(instance_of(CommitChange.of(tree, str(tree), "HEAD"), "", source).to_record(), "row")
    git("checkout", "-q", "HEAD~1")
    assert row.is_unmeasured
    try:
        sandboxes = make_provider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "scratch", print)
    except UserError as error:
        pytest.skip(str(error))
    try:
        proof = await Prover(Folder(tree), sandboxes, 1, 120.0).prove(row)
    finally:
        await sandboxes.close()
    assert proof.proven and (proof.gold, proof.noop) == (("resolved",), "unresolved"), proof.reason + proof.log_tail
    assert proof.fail_to_pass == ("tests/test_calc.py::test_add",)
    assert proof.pass_to_pass == ("tests/test_calc.py::test_zero",) and not proof.flaky


def bug(number, test_patch="diff --git a/t.py b/t.py\n", script="run TESTS", fix=REVERSE):
    """Returns the row of a bug in a release: its fix, taken back, made its tree."""
    source = Source("b-1.0", fix, "3.9")
    return replace(
        ROW,
        instance_id=f"b-{number}",
        source=source,
        test_patch=test_patch,
        eval_script=script.replace("TESTS", test_patch),
    )


@pytest.mark.parametrize(
    ("second", "made"),
    [
        (bug(2), RUNS),
        (bug(2, "diff --git a/t.py b/t.py\n+more\n"), RUNS),
        (bug(2, "diff --git a/other.py b/other.py\n"), 2 * RUNS),
        (bug(2, script="run --slow TESTS"), 2 * RUNS),
        (bug(2, fix=FORWARD), 2 * RUNS),
        (bug(2, script="run all"), 2 * RUNS),
    ],
)
def test_bugs_of_one_release_share_the_runs_with_the_fix_where_these_are_the_same(second, made):
    suite = Suite([GradeError("no space"), *["-fixed +kept"] * (2 * RUNS)], ["+fixed +kept"] * made)

    async def proofs():
        prover = Prover(suite, None, 1, 60.0)
        return await asyncio.gather(prover.prove(bug(1)), prover.prove(second))

    for proof in asyncio.run(proofs()):
        assert proof.proven and proof.fail_to_pass == ("fixed",) and proof.pass_to_pass == ("kept",)
    assert len(suite.graded) == 4, "gold and a change of nothing are graded of each"
    with pytest.raises(RuntimeError):
        asyncio.run(suite.run_tests(ROW, "GOLD", None, 1.0))


def test_shared_runs_that_broke_are_made_anew():
    shared = SharedRuns()
    made = []

    async def broken():
        made.append("broken")
        raise UntriedError("no space")

    async def whole():
        made.append("whole")
        return runs("+fixed")

    async def both():
        with pytest.raises(UntriedError):
            await shared.with_gold(bug(1), broken)
        return [await shared.with_gold(bug(number), whole) for number in (2, 3)]

    assert asyncio.run(both()) == [runs("+fixed")] * 2 and made == ["broken", "whole"]
