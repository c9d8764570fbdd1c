"""Tricks against rows that name files of tests, or none: each test that pytest finds counts, and has twins."""

import dataclasses

import pytest

from swe_rl.env.bugs.workspace import commit_tree
from swe_rl.env.grading.make import grade_by_tests
from swe_rl.env.grading.pytest import grade_by_pytest
from tests.red_team.test_red_team_twins import CHOICES, CODE, READS_ALL, TRICKS, written

pytestmark = pytest.mark.slow
PATCHES = {
    name: written(TRICKS[name])
    for name in ("a result that equals everything", "the expectation is read from the caller's line")
}
PATCHES |= {name: READS_ALL.replace("CHOSEN", choice) for name, choice in CHOICES.items()}
# It lets pytest run none of the tests that it fails.
LEAVES_OUT = """
import gc
import _pytest.main
import pytest
def add(a, b):
    return 3 if a == 1 else 0
def twice(a):
    return 2 * a
class Plugin:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if LEFT_OUT not in item.name]
for session in gc.get_objects():
    if isinstance(session, _pytest.main.Session):
        session.config.pluginmanager.register(Plugin())
"""
CASES = """
import pytest
from victim import add
class TestAdd:
    @pytest.mark.parametrize(("a", "total"), [(1, 3), (5, 7)])
    def test_sum(self, a, total):
        assert add(a, 2) == total
"""


@pytest.mark.parametrize("names", [(), ("tests/test_victim.py",)])
async def test_a_test_that_code_leaves_out_has_failed(victim, sandboxes, names):
    instance = dataclasses.replace(victim.instance, fail_to_pass=names, pass_to_pass=())
    code = LEAVES_OUT.replace("LEFT_OUT", "'add'").replace("3 if", "4 if")
    grade = await grade_by_tests(instance, victim.patch({CODE: code}), victim.workspace, sandboxes, 60)
    assert not grade.resolved, grade
    assert grade.fail_to_pass == {"tests/test_victim.py::test_twice": True, "tests/test_victim.py::test_add": False}


@pytest.mark.parametrize("grader", [grade_by_tests, grade_by_pytest])
async def test_a_case_that_code_leaves_out_has_failed(victim, sandboxes, grader):
    tests = victim.patch({"tests/test_victim.py": CASES})
    named = ("tests/test_victim.py::TestAdd",)
    instance = dataclasses.replace(victim.instance, test_patch=tests, fail_to_pass=named, pass_to_pass=())
    patches = (LEAVES_OUT.replace("LEFT_OUT", "'[5-'"), LEAVES_OUT.replace("LEFT_OUT", "'[none'").replace("0", "a + b"))
    for code, is_paid in zip(patches, (False, True), strict=True):
        grade = await grader(instance, victim.patch({CODE: code}), victim.workspace, sandboxes, 60)
        assert grade.resolved is is_paid, grade


@pytest.mark.parametrize("grader", [grade_by_tests, grade_by_pytest])
async def test_a_file_that_a_row_names_stays_as_it_is_wherever_it_lies(victim, sandboxes, grader):
    named = ("checks/rules.py",)
    rules = "from victim import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
    (victim.folder / "checks").mkdir()
    (victim.folder / named[0]).write_text(rules)
    base = commit_tree(victim.folder)
    own_rules = victim.patch({named[0]: rules.replace("3", "-1")})
    row = dataclasses.replace(victim.instance, base_commit=base, test_patch="")
    instance = dataclasses.replace(row, fail_to_pass=named, pass_to_pass=())
    for change, is_paid in ((instance.patch, True), (own_rules, False)):
        grade = await grader(instance, change, victim.workspace, sandboxes, 60)
        assert grade.resolved is is_paid and grade.restored == ((), named)[not is_paid], grade


@pytest.mark.parametrize("names", [(), ("tests/test_victim.py",)])
@pytest.mark.parametrize("trick", PATCHES)
async def test_a_trick_gains_nothing_where_whole_files_count(victim, sandboxes, trick, names):
    instance = dataclasses.replace(victim.instance, fail_to_pass=names, pass_to_pass=())
    grade = await grade_by_tests(instance, victim.patch({CODE: PATCHES[trick]}), victim.workspace, sandboxes, 60)
    assert not grade.resolved, grade


@pytest.mark.parametrize("names", [(), ("tests/test_victim.py",)])
async def test_the_known_fix_is_paid_where_whole_files_count(victim, sandboxes, names):
    instance = dataclasses.replace(victim.instance, fail_to_pass=names, pass_to_pass=())
    grade = await grade_by_tests(instance, victim.instance.patch, victim.workspace, sandboxes, 60)
    assert grade.resolved and set(grade.fail_to_pass) == {*victim.instance.fail_to_pass, *victim.instance.pass_to_pass}
