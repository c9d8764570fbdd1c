"""Bugs that are put into a release: which are kept, what an agent sees of them, and which tests are hidden."""

import asyncio
import re
from dataclasses import replace

import pytest

from swe_rl.dataset.instance import Instance, Source
from swe_rl.env.env import SuiteRun
from swe_rl.env.mining.candidate import Reason, TaskCandidate
from swe_rl.env.mining.hidden_tests import without_tests
from swe_rl.env.mining.mutants import (
    Refusal,
    SoundRelease,
    bug_again,
    bugs_of,
    changes_code,
    is_shipped_module,
    is_test_module,
    whole_suite,
    with_early_end,
)
from swe_rl.env.mining.recipe import Edition, TaskRecipe
from swe_rl.env.mining.runs import CountedRuns, RunBudget
from swe_rl.env.mining.tests_text import descriptions_in
from swe_rl.env.patch_files import NOOP_PATCH

CODE = "def low(a, b):\n    return min(a, b)\n\n\ndef is_less(a, b):\n    return a < b\n"
TEST_FILE = '''from summer import is_less, low


class TestLow:
    def test_low(self):
        """The smaller of two."""
        assert low(1, 2) == 1


def test_less():
    assert is_less(1, 2)


@staticmethod
def test_more():
    assert not is_less(2, 1)
'''
SOUND = Instance(
    "summer__summer-1.1-sound",
    "index/summer",
    "c" * 40,
    "s",
    NOOP_PATCH,
    "t",
    (),
    (),
    source=Source("s-1", python="3.11"),
)
RELEASE = SoundRelease(
    TaskCandidate("summer-1.1", "summer", SOUND, licence="MIT"),
    {"summer.py": CODE, "tests/test_summer.py": TEST_FILE, "setup.py": CODE, "docs/conf.py": CODE},
    "pytest -rA",
)
OTHERS = ("no_file::test_a", "summary")
ALL = ("tests/test_summer.py::TestLow::test_low", "tests/test_summer.py::test_less", "tests/test_summer.py::test_more")


def hunt(
    fails, number=5, runs=50, release=RELEASE, is_slow=lambda patch: False, build_s=0.0, run_s=0.0, log="", more=()
):
    """Returns the candidates where `fails(patch)` names the tests that a patch breaks."""
    asked = []

    async def run(instance, patch, timeout_s):
        asked.append((patch, timeout_s))
        if is_slow(patch):
            return SuiteRun({}, timed_out=True)
        await asyncio.sleep(run_s)
        return SuiteRun({test: test not in fails(patch) for test in (*ALL, *OTHERS, *more)}, log)

    counted = CountedRuns(run, RunBudget(runs, 1e6), build_s)
    return asyncio.run(bugs_of(release, SOUND, counted, number)), asked


def low_fails(patch):
    return ALL[:1] if "max(" in patch else ()


def test_a_bug_that_a_test_shows_is_a_task_and_its_test_is_hidden():
    (found,), asked = hunt(low_fails)
    row = found.instance
    assert row.instance_id.startswith("summer__summer-1.1-bug-") and row.source.reverse and found.licence == "MIT"
    assert "-    return max(a, b)" in row.patch and "+    return min(a, b)" in row.patch
    assert "+class TestLow:" in row.test_patch and "test_less" not in row.test_patch.replace(" def test_less", "")
    assert "- The smaller of two." in row.problem_statement and "min" not in row.problem_statement
    assert row.source.test_command == "pytest -rA" and row.is_unmeasured
    touched = {line for patch, _ in asked for line in patch.split("\n") if line.startswith("+++")}
    assert touched == {"+++ b/.changed_nothing", "+++ b/summer.py"}  # no test, and nothing that only builds
    assert all(limit > 1e5 for patch, limit in asked if patch == NOOP_PATCH)
    assert hunt(low_fails)[0][0].instance == row


def test_a_docstring_is_told_to_its_sentences_end_and_rows_of_older_lists_keep_its_first_line():
    text = '''"""The smaller of two\n        numbers is given.\n\n        More.\n        """'''
    files = {**RELEASE.files, "tests/test_summer.py": TEST_FILE.replace('"""The smaller of two."""', text)}
    release = replace(RELEASE, files=files)
    (found,), _ = hunt(low_fails, release=release)
    assert "- The smaller of two numbers is given.\n" in found.instance.problem_statement
    old = replace(release, edition=Edition.first)
    (kept,), _ = hunt(low_fails, release=old)
    assert "- The smaller of two\n" in kept.instance.problem_statement
    recipe = replace(found.recipe, release="1.1")
    assert "edition" not in kept.recipe.to_record() and TaskRecipe.from_record(recipe.to_record()) == recipe
    assert bug_again(old, kept.recipe).instance == kept.instance
    examples = descriptions_in(
        'def test_a():\n    """Adds:\n    more"""\ndef test_b():\n    """One\n    >>> two"""', Edition.second
    )
    assert examples == {"test_a": "Adds:", "test_b": "One"}


@pytest.mark.parametrize(("created_at", "kept"), [("", "2026-11-29"), ("2026-11-01T00:00:00Z", "")])
def test_a_bug_in_a_release_without_a_date_keeps_the_day_of_its_packages(created_at, kept):
    sound = replace(SOUND, created_at=created_at, source=replace(SOUND.source, until="2026-11-29"))
    release = replace(RELEASE, candidate=replace(RELEASE.candidate, instance=sound))
    (found,), _ = hunt(low_fails, release=release)
    assert found.recipe.until == kept and found.instance.source.until == "2026-11-29"


def test_no_run_lasts_longer_than_what_the_budget_has_left():
    limits = []

    async def run(instance, patch, timeout_s):
        limits.append(timeout_s)
        await asyncio.sleep(0.2)
        return SuiteRun({}, timed_out=len(limits) > 1)

    counted = CountedRuns(run, RunBudget(50, 0.3))
    (found,) = asyncio.run(bugs_of(RELEASE, SOUND, counted, 5))
    assert found.reason is Reason.budget and limits[0] == 0.3 and limits[1] < 0.2


def test_a_run_with_a_bug_may_last_four_times_as_long_as_one_without():
    _, asked = hunt(low_fails, run_s=0.2, build_s=1000.0)
    limits = [limit for patch, limit in asked if patch != NOOP_PATCH]
    assert limits and all(8.8 <= limit < 10.0 for limit in limits), "8 s and four times 0.2 s, without the building"


def test_a_bug_whose_tests_do_not_end_in_time_is_no_task():
    (other,), _ = hunt(lambda patch: ALL[1:2] if "<=" in patch else (), is_slow=lambda patch: "max(" in patch)
    assert "max(" not in other.instance.patch and "1 did not end in time" in other.detail
    (none,), _ = hunt(low_fails, is_slow=lambda patch: "max(" in patch)
    assert none.reason is Reason.no_bug and "1 did not end in time" in none.detail


def test_a_release_whose_tests_do_not_end_in_time_is_named_as_infrastructure():
    (found,), asked = hunt(low_fails, is_slow=lambda patch: True)
    assert found.reason is Reason.timed_out and len(asked) == 1


def test_a_bug_of_an_inner_function_is_one_task():
    code = "def limited(c):\n    def low(a, b):\n        return min(a, b)\n\n    return low\n"
    release = replace(RELEASE, files={**RELEASE.files, "summer.py": code})
    found, _ = hunt(low_fails, release=release)
    assert len({candidate.instance.instance_id for candidate in found}) == len(found) == 1


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        ((), Refusal.unseen),
        (("no_file::test_a",), Refusal.unhidden),
        (("summary",), Refusal.unhidden),
        (("tests/test_summer.py::TestLow::test_of_a_base_class",), Refusal.unhidden),
        (tuple(f"tests/test_summer.py::test_{number}" for number in range(7)), Refusal.broad),
    ],
)
def test_a_bug_that_no_function_of_a_file_shows_is_none_and_the_report_says_why(failing, why):
    (found,), asked = hunt(lambda patch: () if patch == NOOP_PATCH else failing, more=failing)
    assert found.reason is Reason.no_bug and "runs of tests" in found.detail
    others = {patch for patch, _ in asked} - {NOOP_PATCH}
    refusals = re.findall(r"; (\d+) times ([^;]+)", found.detail)
    assert sum(int(number) for number, _ in refusals) == len(others) == 3, "each swap is counted once"
    assert refusals[0][1] == why


def test_a_release_whose_tests_all_fail_has_no_bug_put_in():
    (found,), asked = hunt(lambda patch: (*ALL, *OTHERS), log="usage: pytest\nunrecognized arguments: --cov\n")
    assert found.reason is Reason.unrunnable and len(asked) == 2
    assert found.detail.endswith("unrecognized arguments: --cov")


def test_a_swap_inside_of_a_text_is_no_bug():
    code = CODE.replace("return a < b", 'return a < b, "a < b", f"{a} < {b}"')
    release = replace(RELEASE, files={**RELEASE.files, "summer.py": code})
    _, asked = hunt(lambda patch: (), release=release)
    assert changes_code(code, code.replace("return a < b", "return a <= b"))
    assert not changes_code(code, code.replace('"a < b"', '"a <= b"').replace("} < {", "} <= {"))
    only_text = replace(RELEASE, files={**RELEASE.files, "summer.py": 'def low():\n    return "min( is a < b"\n'})
    assert len(hunt(lambda patch: (), release=only_text)[1]) == 2 < len(asked)


def test_functions_that_tests_name_come_first():
    others = "".join(f"def unknown_{number}(a, b):\n    return a < b\n\n\n" for number in range(20))
    release = replace(RELEASE, files={**RELEASE.files, "summer.py": others + CODE})
    _, asked = hunt(lambda patch: (), release=release)
    assert all("unknown" not in patch.split("@@")[-1] for patch, _ in asked[2:4])
    assert len(asked) == 2 + 16, "nothing is found"
    assert 2 + 16 < len(hunt(low_fails, release=release)[1]) <= 2 + 2 + 16, "nothing more is found after that of low"
    assert {line for patch, _ in asked[2:4] for line in patch.split("\n") if line.startswith("-")} >= {
        "-    return min(a, b)",
        "-    return a < b",
    }


@pytest.mark.parametrize(
    ("path", "is_module"),
    [
        ("tests/test_low.py", True),
        ("tests/low_test.py", True),
        ("tests/test_workbench.py", True),
        ("tests/test_benchmarks.py", False),
        ("tests/bench_test.py", False),
        ("tests/conftest.py", False),
        ("tests/test_bencher.py", True),
        ("low.py", False),
    ],
)
def test_benchmarks_are_no_tests(path, is_module):
    assert is_test_module(path) is is_module


@pytest.mark.parametrize("command", ["pytest -rA", "python -m unittest"])
def test_only_pytest_is_told_how_to_search(command):
    options = " --tb=no --continue-on-collection-errors" if "pytest" in command else ""
    assert whole_suite(command) == command + options


@pytest.mark.parametrize("command", ["pytest -rA", "python -m unittest"])
def test_a_run_ends_when_more_tests_failed_than_those_of_a_task(command):
    """The release as it is has three tests that do not pass; a bug that fails 31 cases more says too little."""
    sound = replace(SOUND, eval_script=f"cd /testbed\n{whole_suite(command)} tests/test_a.py\n")
    early = with_early_end(sound, not_passed=3).eval_script
    assert ("--maxfail=34 tests/test_a.py" in early) is ("pytest" in command)
    assert early.replace(" --maxfail=34", "") == sound.eval_script


def test_a_function_that_had_its_turn_gets_a_second_bug_after_all_others():
    """Two functions have places for three bugs and one: the third bug of one function is not tried."""
    code = "def low(a, b):\n    if a == b:\n        return a\n    return min(a, b)\n\n\n" + CODE.split("\n\n\n")[1]
    release = replace(RELEASE, files={**RELEASE.files, "summer.py": code})
    _, asked = hunt(lambda patch: (), release=release)
    functions = ["is_less" if "is_less" in patch.split("-    ")[0] else "low" for patch, _ in asked[2:]]
    assert functions[:2] in (["low", "is_less"], ["is_less", "low"]) and functions.count("low") == 2
    assert len({patch for patch, _ in asked[2:]}) == len(asked) - 2


def test_tests_that_show_a_bug_make_no_second_task():
    found, _ = hunt(lambda patch: () if patch == NOOP_PATCH else ALL[:1])
    assert len(found) == 1


def test_a_bug_whose_tests_have_short_names_shows_one_of_them_or_is_no_task():
    (found,), _ = hunt(lambda patch: ALL[1:2] if "<=" in patch else ())
    assert "- less\n\nThis is one of them" in found.instance.problem_statement
    assert "```python\nassert is_less(1, 2)\n```" in found.instance.problem_statement
    (told,), _ = hunt(low_fails, release=renamed("test_less", "test_one_is_less_than_two"))
    assert "```" not in told.instance.problem_statement or "- less" not in told.instance.problem_statement
    long = "def test_less():\n" + "".join(f"    a{number} = {number}\n" for number in range(20)) + "    assert a1\n"
    without = renamed("def test_less():\n    assert is_less(1, 2)\n", long)
    (none,), _ = hunt(lambda patch: ALL[1:2] if "<=" in patch else (), release=without)
    assert none.reason is Reason.no_bug


def test_where_tests_have_short_names_the_function_is_told_or_it_is_no_task():
    """`test_less` says nothing of the function `low`, and its example names `is_less`."""
    (none,), _ = hunt(lambda patch: ALL[1:2] if "max(" in patch else ())
    assert none.reason is Reason.no_bug and Refusal.untold in none.detail
    two = renamed(
        "def test_less():\n", "def test_less():\n    assert is_less(low(1, 2), 3)\n\n\ndef test_more_or_less():\n"
    )
    both = (ALL[1], "tests/test_summer.py::test_more_or_less")
    (found,), _ = hunt(lambda patch: both if "max(" in patch else (), release=two, more=both)
    assert "assert is_less(low(1, 2), 3)" in found.instance.problem_statement
    again = bug_again(two, found.recipe)
    assert again.instance == found.instance


def test_a_list_names_functions_of_tests_and_none_of_their_cases():
    cases = [f"{ALL[0]}[{number}]" for number in range(3)]
    (found,), _ = hunt(lambda patch: cases if "max(" in patch else (), more=cases)
    assert found.recipe.tests == ALL[:1] and bug_again(RELEASE, found.recipe).instance == found.instance


def renamed(old, new):
    return replace(RELEASE, files={**RELEASE.files, "tests/test_summer.py": TEST_FILE.replace(old, new)})


def test_a_budget_that_ends_keeps_what_was_found():
    found, asked = hunt(lambda patch: ALL[:1] if patch != NOOP_PATCH else (), runs=3)
    assert len(asked) == 3 and [candidate.reason for candidate in found] == [None]
    (nothing,), _ = hunt(low_fails, runs=2)
    assert nothing.reason is Reason.no_bug


def test_hidden_tests_go_with_their_decorators_and_empty_classes():
    left = without_tests(TEST_FILE, ["TestLow::test_low", "test_more"])
    assert left == "from summer import is_less, low\n\n\ndef test_less():\n    assert is_less(1, 2)\n"
    two = "class TestA:\n    x = 1\n\n    def test_a(self):\n        pass\n"
    assert without_tests(two, ["TestA::test_a"]) == "class TestA:\n    x = 1\n"


@pytest.mark.parametrize(
    ("path", "is_shipped"),
    [
        ("summer.py", True),
        ("src/summer.py", True),
        ("pkg/low.py", True),
        ("pkg/inner/low.py", True),
        ("src/other/low.py", True),
        ("tools/check.py", False),
        ("src/tools/check.py", False),
        ("pkg/tests/test_low.py", False),
        ("setup.py", False),
    ],
)
def test_bugs_are_put_into_modules_that_the_project_ships(path, is_shipped):
    files = dict.fromkeys(["pkg/__init__.py", "src/other/__init__.py", path], CODE)
    assert is_shipped_module(path, files) is is_shipped
    release = replace(RELEASE, files={path: CODE, "tests/test_summer.py": TEST_FILE, **files})
    _, asked = hunt(low_fails, release=release)
    assert any(f"+++ b/{path}\n" in patch for patch, _ in asked) is is_shipped


def test_comments_about_hidden_tests_are_hidden_with_them():
    source = (
        "# Tests of numbers.\n\n"
        "def test_less():\n    assert is_less(1, 2)\n    # is_less must be a < b\n\n\n"
        "# Low is min(a, b).\n# It was wrong once.\n@slow\ndef test_low():\n    assert low(1, 2) == 1\n"
        "    # return min(a, b)\n\n    # and nothing else\n\n"
        "# Other tests.\n\ndef test_more():\n    pass\n"
    )
    left = without_tests(source, ["test_low"])
    assert left is not None and "min" not in left and "wrong once" not in left and "nothing else" not in left
    assert "# Tests of numbers." in left and "# is_less must be a < b" in left and "# Other tests." in left
    assert "a < b" not in (without_tests(source, ["test_less"]) or "a < b")
    method = "class TestA:\n    x = 1\n\n    # The sum is a + b.\n    def test_a(self):\n        pass\n"
    assert without_tests(method, ["TestA::test_a"]) == "class TestA:\n    x = 1\n"


def test_a_bug_whose_test_says_the_code_is_no_task():
    told = TEST_FILE.replace("The smaller of two.", "Low is ``min(a, b)``.")
    release = replace(RELEASE, files={**RELEASE.files, "tests/test_summer.py": told})
    (found,), _ = hunt(low_fails, release=release)
    assert found.reason is Reason.no_bug and Refusal.leak in found.detail


@pytest.mark.parametrize("names", [["test_none"], ["TestLow::test_other"], ["TestLow"]])
def test_what_cannot_be_hidden_is_no_judge(names):
    assert without_tests(TEST_FILE, names) is None
    assert without_tests("def test_a(:", ["test_a"]) is None
