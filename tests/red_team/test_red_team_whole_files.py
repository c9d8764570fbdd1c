"""Tricks against rows that name files of tests, or none: each test that pytest finds counts, and has twins."""

import dataclasses

import pytest

from swe_rl.env.grading.make import grade_by_tests
from tests.red_team.test_red_team_twins import CHOICES, CODE, READS_ALL, TRICKS, written

pytestmark = pytest.mark.slow
PATCHES = {
    name: written(TRICKS[name])
    for name in ("a result that equals everything", "the expectation is read from the caller's line")
}
PATCHES |= {name: READS_ALL.replace("CHOSEN", choice) for name, choice in CHOICES.items()}


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
