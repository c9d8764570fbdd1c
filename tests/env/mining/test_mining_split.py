"""Changes that are split by their tests: sets of hunks, their names, their statements, and the budget of runs."""

import asyncio
from dataclasses import replace

import pytest

from swe_rl.dataset.instance import Instance, Source
from swe_rl.env.env import SuiteRun
from swe_rl.env.folder import patch_between
from swe_rl.env.mining.candidate import Reason, TaskCandidate
from swe_rl.env.mining.recipe import TaskRecipe
from swe_rl.env.mining.runs import CountedRuns, RunBudget
from swe_rl.env.mining.split import split_candidate
from swe_rl.env.mining.tests_text import examples_in
from swe_rl.env.mining.wording import ChangeWords
from swe_rl.env.patch_files import NOOP_PATCH

BEFORE = "".join(f"line {number}\n" for number in range(60))
AFTER = BEFORE.replace("line 5\n", "the first\n").replace("line 25\n", "the second\n").replace("line 45\n", "third\n")
PATCH = patch_between({"a.py": BEFORE}, {"a.py": AFTER})
# Each test needs these words of the patch.
TESTS = {
    "t.py::test_empty": ("the first",),
    "t.py::test_empty_twice[a::b]": ("the first",),
    "t.py::TestC::test_both": ("the first", "third"),
    "t.py::test_old": (),
}
WORDS = ChangeWords(
    "The next release makes these changes:",
    "* An empty list has a total\n* Faster files\n  of note\n* Works for both kinds",
    {"test_empty": "Nothing has a total.", "test_both": ""},
)
ROW = Instance("a__a-2", "index/a", "c" * 40, "all", PATCH, "t", (), (), source=Source("a-1", python="3.11"))
CANDIDATE = TaskCandidate("a-2", "a", ROW, words=WORDS, recipe=TaskRecipe("a", "2", older="1"))


def split(tests=TESTS, runs=100, max_changed_lines=200, candidate=CANDIDATE):
    """Returns the candidates, and the patches whose tests were run."""
    asked = []

    async def run(instance, patch, timeout_s):
        asked.append(patch)
        return SuiteRun({name: all(word in patch for word in words) for name, words in tests.items()})

    counted = CountedRuns(run, RunBudget(runs, 1e6))
    return asyncio.run(split_candidate(candidate, counted, max_changed_lines)), asked


def test_each_set_of_hunks_is_a_task_of_its_own():
    (both, first), asked = split()
    assert [(part.recipe.hunks, part.reason) for part in (both, first)] == [((0, 2), None), ((0,), None)]
    assert "third" in both.instance.patch and "second" not in both.instance.patch
    assert first.instance.patch.count("@@ -") == 1 and first.instance.test_patch == ROW.test_patch
    assert asked[:4] == [NOOP_PATCH, NOOP_PATCH, PATCH, PATCH]
    assert len(asked[3:]) == len(set(asked[3:]))  # no set is run twice
    assert split()[0] == [both, first] or [part.name for part in split()[0]] == [both.name, first.name]


def test_its_id_follows_from_its_patch_alone():
    (both, first), _ = split()
    assert both.instance.instance_id.startswith("a__a-2-") and both.instance.instance_id != first.instance.instance_id
    (alone,), _ = split({"t.py::test_empty": ("the first",)})
    assert alone.instance.instance_id == first.instance.instance_id and alone.name == first.name


def test_a_part_says_only_what_is_about_it():
    (both, first), _ = split()
    said = first.instance.problem_statement
    assert "An empty list has a total" in said and "Faster files" not in said and "both kinds" not in said
    assert "- Nothing has a total." in said and "- empty twice" in said and "both" not in said
    assert "Works for both kinds" in both.instance.problem_statement and "- both" in both.instance.problem_statement


def test_a_part_that_only_a_short_name_tells_of_shows_its_test_or_is_no_task():
    tests = {"t.py::test_persist": ("the first",), "t.py::test_old": ()}
    (thin,), _ = split(tests)
    assert thin.instance is None and thin.reason is Reason.no_statement
    words = replace(WORDS, examples={"test_persist": "assert total([]) == 0"})
    (shown,), _ = split(tests, candidate=replace(CANDIDATE, words=words))
    assert "- persist\n" in shown.instance.problem_statement
    assert "```python\nassert total([]) == 0\n```" in shown.instance.problem_statement
    patch = patch_between({"a.py": "x = 1\n"}, {"a.py": "x = total([the first])\n"})
    leaking = replace(CANDIDATE, instance=replace(ROW, patch=patch, problem_statement=""))
    leaking = replace(leaking, words=replace(WORDS, heading="", examples={"test_persist": "x = total([the first])"}))
    assert [part.reason for part in split(tests, candidate=leaking)[0]] == [Reason.leak]
    long = {"t.py::test_persist_says_where_it_is": ("the first",)}
    assert "```" not in split(long)[0][0].instance.problem_statement


def test_an_example_is_a_test_up_to_its_first_expectation():
    source = (
        'def test_a():\n    """Words."""\n    # A comment.\n    x = f(1)\n    assert x == 2\n    assert y\n\n\n'
        "class TestB:\n    def test_b(self):\n        with pytest.raises(ValueError):\n            f(0)\n\n\n"
        f"def test_table():\n    for x in {[*range(500)]}:\n        assert f(x)\n\n\n"
        "def test_none():\n    f(1)\n\n\ndef test_long():\n" + "    f(1)\n" * 20 + "    assert f(1)\n"
    )
    assert examples_in(source) == {
        "test_a": "x = f(1)\nassert x == 2",
        "test_b": "with pytest.raises(ValueError):\n    f(0)",
    }
    assert examples_in("def test_a(:") == {}


def test_a_change_that_cannot_be_split_keeps_its_statement():
    (whole,), _ = split({"t.py::test_all": ("the first", "the second", "third")})
    assert whole.instance.problem_statement == "all" and whole.instance.patch == PATCH


@pytest.mark.parametrize("runs", [0, 3, 5, 6])
def test_what_the_budget_does_not_reduce_is_no_task(runs):
    parts, asked = split(runs=runs)
    assert len(asked) <= runs
    reasons = [part.reason for part in parts if part.instance is None]
    assert reasons == [Reason.budget] and f"{runs} runs of tests" in parts[-1].detail
    full = {part.instance.instance_id for part in split()[0]}
    assert {part.instance.instance_id for part in parts if part.instance} <= full  # fewer, and never other ones


def test_what_turns_no_test_and_what_is_too_large_says_so():
    (nothing,), _ = split({"t.py::test_old": ()})
    assert nothing.reason is Reason.nothing_turned and "4 runs of tests" in nothing.detail
    parts, _ = split(max_changed_lines=3)
    assert [part.reason for part in parts] == [Reason.too_large, None]


def test_a_flaky_test_makes_no_task():
    runs = iter([True, False, True, True])

    async def run(instance, patch, timeout_s):
        return SuiteRun({"t.py::test_flaky": next(runs)})

    (found,) = asyncio.run(split_candidate(CANDIDATE, CountedRuns(run, RunBudget(9, 1e6)), 200))
    assert found.reason is Reason.nothing_turned


def split_slowly(is_slow, tests=TESTS):
    """Returns the candidates where runs with certain patches do not end in time; their tests are all said to fail."""

    async def run(instance, patch, timeout_s):
        slow = is_slow(patch)
        passed = {name: not slow and all(word in patch for word in words) for name, words in tests.items()}
        return SuiteRun(passed, timed_out=slow)

    return asyncio.run(split_candidate(CANDIDATE, CountedRuns(run, RunBudget(100, 1e6)), 200))


def test_a_run_that_does_not_end_in_time_makes_no_other_task():
    full = {part.instance.instance_id for part in split()[0]}
    # A slow machine, at the run of one hunk alone: `test_empty` would then seem to need all three hunks.
    parts = split_slowly(lambda patch: "the first" in patch and "third" not in patch)
    assert {part.instance.instance_id for part in parts if part.instance} <= full
    assert parts[-1].reason is Reason.timed_out and "tests, as t.py::" in parts[-1].detail
    assert "1 did not end in time" in parts[-1].detail


@pytest.mark.parametrize("slow_patch", [NOOP_PATCH, PATCH])
def test_a_pair_whose_tests_never_end_is_named_as_infrastructure(slow_patch):
    (found,) = split_slowly(lambda patch: patch == slow_patch)
    assert found.instance is None and found.reason is Reason.timed_out and "infrastructure" in found.reason


def test_only_runs_of_tests_count_against_the_budget():
    async def run(instance, patch, timeout_s):
        return SuiteRun({"t.py::test_empty": "the first" in patch})

    runs = CountedRuns(run, RunBudget(100, 100.0), build_s=1000.0)
    (part,) = asyncio.run(split_candidate(CANDIDATE, runs, 200))
    assert part.instance is not None and "an environment made in 1000 s" in part.detail
    assert 0 < runs.tests_s < 100
