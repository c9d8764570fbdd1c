"""The oracle's pure parts: bugs, the tests that are taken out for them, and the verdict."""

import ast
import random
import subprocess
from pathlib import Path

import pytest

from swe_rl.dataset.instance import Instance
from tests.support.oracle.mutants import MAX_FUNCTIONS, UnfitError, diff, hide_tests, mutants
from tests.support.oracle.packages import PACKAGES
from tests.support.oracle.run import Arm
from tests.support.oracle.table import WANTED_INSTANCES, WANTED_PACKAGES, shortfalls, table

CODE = """def low(values):
    return min(values)


def is_big(value, limit):
    if value > limit and limit is not None:
        return True
    return False
"""
TESTS = """import pytest


class TestBig:
    @pytest.mark.parametrize("value", [3, 4])
    def test_yes(self, value):
        assert is_big(value, 2)

    def test_no(self):
        assert not is_big(1, 2)


async def test_low():
    assert low([1, 2]) == 1


make = [test_low]
"""


def applied(tmp_path, files, patch):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    return {name: (tmp_path / name).read_text() for name in files}


def test_each_mutant_is_one_bug_and_its_patch_the_way_back(tmp_path):
    found = list(mutants({"code.py": CODE}, "", random.Random(0)))
    assert len({one.buggy for one in found}) == len(found) >= 5
    for one in found:
        assert one.buggy != CODE and ast.parse(one.buggy)
        assert applied(tmp_path, {"code.py": one.buggy}, one.gold_patch) == {"code.py": CODE}


def test_functions_that_tests_name_come_first_and_a_seed_decides_the_rest():
    def order(seed):
        return [one.site.function for one in mutants({"code.py": CODE}, "is_big(1)", random.Random(seed))]

    assert order(1)[0] == order(2)[0] == "is_big" and order(1) == order(1)
    assert "low" in order(1)[:2]  # functions take turns


def test_hidden_tests_are_gone_and_their_patch_puts_them_back(tmp_path):
    failing = {"t.py::TestBig::test_yes[3]", "t.py::TestBig::test_yes[4]", "t.py::test_low"}
    hidden = hide_tests({"t.py": TESTS, "other.py": ""}, failing)
    assert set(hidden) == {"t.py"}
    assert "test_yes" not in hidden["t.py"] and "parametrize" not in hidden["t.py"] and "test_no" in hidden["t.py"]
    assert applied(tmp_path, hidden, diff("t.py", hidden["t.py"], TESTS)) == {"t.py": TESTS}


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        ((), "0 test functions"),
        ({f"t.py::test_{number}" for number in range(MAX_FUNCTIONS + 1)}, "test functions fail"),
        ({"t.py"}, "as a whole"),
        ({"lib.py::doctest"}, "no test file"),
        ({"t.py::TestBig::test_inherited"}, "not written as one function"),
        ({"t.py::TestBig::test_yes[3]", "t.py::TestBig::test_no"}, "empty"),
    ],
)
def test_what_cannot_be_taken_out_alone_makes_no_instance(failing, why):
    with pytest.raises(UnfitError, match=why):
        hide_tests({"t.py": TESTS}, failing)


def instance(number, repo="a/b"):
    name = f"{repo.replace('/', '__')}-{number}"
    return Instance(name, repo, "0" * 40, "s", "p", "t", ("t.py::f",), ("t.py::g",))


def arm(agent, instances, status):
    records = [
        {"instance_id": one.instance_id, "status": status, "error": None, "times_s": {"grade": 2.0}}
        for one in instances
    ]
    return Arm(agent, Path("run"), 1.0, records)


def test_the_verdict_names_every_shortfall():
    ours = [instance(number, f"a/{number % WANTED_PACKAGES}") for number in range(WANTED_INSTANCES)]
    gold, no_op = arm("gold", ours, "resolved"), arm("noop", ours, "unresolved")
    assert shortfalls(ours, gold, no_op, whole=True) == []
    assert "100.0 %" in table(ours, gold, no_op).splitlines()[-1]
    assert any("too few" in line for line in shortfalls(ours[1:], gold, no_op, whole=True))
    gold.trajectories[0]["status"] = "infra_error"
    no_op.trajectories[1]["status"] = "resolved"
    left_out = Arm("noop", Path("run"), 1.0, no_op.trajectories[:-1])
    found = "\n".join(shortfalls(ours, gold, left_out, whole=True))
    assert all(words in found for words in ("gold patch is infra_error", "fixes nothing is resolved", "left out"))


def test_there_are_enough_packages_each_pinned_once():
    assert len({package.repo for package in PACKAGES}) == len(PACKAGES) >= WANTED_PACKAGES
    assert all(package.version[0].isdigit() for package in PACKAGES)
