"""Suites in which twins disturb tests of the known fix: it is paid all the same, and the proof names these tests."""

import dataclasses

import pytest

from swe_rl.env.grading import twin_trial
from swe_rl.env.grading.pytest import grade_by_pytest
from swe_rl.env.grading.twin_trial import is_tried, weak_tests
from swe_rl.env.patch_files import NOOP_PATCH
from tests.red_team.conftest import FAIL, PASS, SOURCE

pytestmark = pytest.mark.slow
STATE = """

import itertools
from contextlib import contextmanager

count = itertools.count(1)
state = ["posix"]


class Stop(KeyboardInterrupt):
    pass


def stop():
    raise Stop


def unique_id():
    return next(count)


@contextmanager
def system(name):
    before = state[0]
    state[0] = name
    yield
    state[0] = before
"""
LIAR = """

class Any(int):
    __hash__ = int.__hash__

    def __eq__(self, other):
        return True
"""
DISTURBED = {
    "a count goes on in the next test": "def test_own():\n    assert unique_id() == 1\n",
    "an exception of the project's own ends the session": (
        "import pytest\n\n\ndef test_own():\n    with pytest.raises(Stop):\n        stop()\n"
    ),
    "a context manager that does not put back": (
        "def test_own():\n    with system('nt'):\n        assert state == ['nt']\n\n\n"
        "def test_zz_later():\n    assert ''.join(state) == str('posix')\n"
    ),
}
FILE = "tests/test_more.py"


@pytest.mark.parametrize("case", DISTURBED)
async def test_the_known_fix_is_paid_and_the_test_is_named(victim, sandboxes, monkeypatch, case):
    monkeypatch.setattr(twin_trial, "_KNOWN", {})
    seeds = iter(range(1000))
    monkeypatch.setattr(twin_trial, "draw_seed", lambda: f"{next(seeds)}")
    tests = "from victim import *\nfrom victim import state, stop, Stop, system, unique_id\n\n\n" + DISTURBED[case]
    right = SOURCE.replace("a - b", "a + b") + STATE
    more = ("test_own", "test_zz_later") if "later" in tests else ("test_own",)
    instance = dataclasses.replace(
        victim.instance,
        instance_id=f"disturbed-{len(case)}",
        patch=victim.patch({"victim/__init__.py": right}),
        test_patch=victim.instance.test_patch + victim.patch({FILE: tests}),
        fail_to_pass=(FAIL,),
        pass_to_pass=(PASS, *(f"{FILE}::{name}" for name in more)),
    )

    async def is_paid(patch):
        return (await grade_by_pytest(instance, patch, victim.workspace, sandboxes, 60)).resolved

    assert await is_paid(instance.patch)
    assert "test_add" not in weak_tests(instance) and weak_tests(instance) & set(more) and is_tried(instance)
    for _ in range(2):
        assert await is_paid(instance.patch)
    assert not await is_paid(NOOP_PATCH)
    wrong = SOURCE.replace("return a - b", "return Any(0)") + STATE + LIAR
    assert not await is_paid(victim.patch({"victim/__init__.py": wrong}))
