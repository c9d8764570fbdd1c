"""Changes that are split by their tests: sets of hunks, their names, their statements, and the budget of runs."""

import asyncio

import pytest

from swe_rl.dataset.instance import Instance, Source
from swe_rl.env.folder import patch_between
from swe_rl.env.mining.candidate import Reason, TaskCandidate
from swe_rl.env.mining.recipe import TaskRecipe
from swe_rl.env.mining.split import CountedRuns, RunBudget, split_candidate
from swe_rl.env.mining.wording import ChangeWords
from swe_rl.env.patch_files import NOOP_PATCH
from swe_rl.env.protocol import SuiteRun

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
