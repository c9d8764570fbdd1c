"""Further sessions of a patch that would be paid: what code gains that lets its tests pass without a look at them."""

import asyncio
import itertools
import random

import pytest

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, GradeError, PytestSession
from swe_rl.env.grading import second_look
from swe_rl.env.grading.alert import Alert
from swe_rl.env.grading.second_look import Sessions, draw_looks, grade_of_poisoned, with_more_sessions

PASSED, FAILED = Grade(True, True), Grade(False, True)
TWINNED = frozenset({"test_add"})
BESIDE_TWINS = Grade(True, True, {"test_add": True}, session=PytestSession(twinned=TWINNED))


def row(patch="the fix"):
    return Instance("row-1", "a/b", "c" * 40, "text", patch, "", ("add",), ())


@pytest.fixture(autouse=True)
def own_alert(monkeypatch):
    """Lets no test see what another one cleared, or that it sounded the alert."""
    monkeypatch.setattr(second_look, "ALERT", Alert())
    return second_look.ALERT


class Played:
    """Sessions in which each outcome is drawn beforehand."""

    def __init__(self, outcomes, names="checks/ops.js"):
        self.outcomes, self.names, self.order = iter(outcomes), names, []
        self.sessions = Sessions(self.poisoned, self.plain)

    async def plain(self, change):
        self.order.append(False)
        return PASSED if next(self.outcomes) else FAILED

    async def poisoned(self, change, seed):
        self.order.append(True)
        grade = PASSED if next(self.outcomes) else FAILED
        return grade_of_poisoned(grade, self.names) if self.names else grade


async def is_paid(played, instance=None, is_alert=True):
    """Whether the grade stands, and no wrong expectation was satisfied."""
    grade = await with_more_sessions(instance or row(), PASSED, "attempt", played.sessions, "s", is_alert)
    return grade.resolved and not grade.session.passed_twins


async def chances_of(monkeypatch, drawn, is_alert):
    """Returns the best chance of code that passes at random, and that of code which acts by the clock."""
    num_looks = len(drawn[0])
    orders = list(itertools.product((False, True), repeat=num_looks))
    paid = {}
    for looks in drawn:
        monkeypatch.setattr(second_look, "draw_looks", lambda *_, looks=looks: list(looks))
        for order in orders:
            second_look.ALERT.cleared.forget_all()
            paid[tuple(looks), order] = await is_paid(Played(order), is_alert=is_alert)
    at_random = []
    for p in (number / 100 for number in range(1, 100)):
        # The first session has to pass as well.
        won = [p * p ** sum(order) * (1 - p) ** (num_looks - sum(order)) for (_, order), is_so in paid.items() if is_so]
        at_random.append(sum(won) / len(drawn))
    by_the_clock = max(sum(paid[tuple(looks), order] for looks in drawn) for order in orders)
    return max(at_random), by_the_clock / len(drawn)


async def test_code_that_passes_at_random_is_hardly_ever_paid_on_alert(monkeypatch):
    every = [looks for looks in itertools.product((False, True), repeat=5) if any(looks)]
    at_random, by_the_clock = await chances_of(monkeypatch, every, True)
    assert 0.015 < at_random < 1 / 50
    assert by_the_clock == 1 / 31  # no plan fits two orders


async def test_new_code_that_passes_at_random_is_paid_once_in_sixteen_times(monkeypatch):
    at_random, by_the_clock = await chances_of(monkeypatch, second_look._LOOKS_OF_NEW, False)
    assert 0.06 < at_random <= 1 / 16
    assert by_the_clock == 1 / 5


def drawn_looks(is_alert, is_cleared, has_plain):
    return {tuple(draw_looks(is_alert, is_cleared, has_plain, random.Random(seed))) for seed in range(3000)}


def test_on_alert_every_order_is_drawn_and_one_session_at_least_has_to_fail():
    every = set(itertools.product((False, True), repeat=5)) - {(False,) * 5}
    assert drawn_looks(True, False, True) == drawn_looks(True, True, True) == every
    assert drawn_looks(True, False, False) == {(True,) * 3}


def test_a_new_patch_has_more_sessions_than_one_that_was_cleared_before():
    assert drawn_looks(False, False, True) == set(second_look._LOOKS_OF_NEW)
    assert drawn_looks(False, True, True) == drawn_looks(False, False, False) == {(True,)}


async def test_a_session_that_has_to_fail_and_does_not_is_not_paid(monkeypatch):
    monkeypatch.setattr(second_look, "draw_looks", lambda *_: [True])
    assert not await is_paid(Played([True]), is_alert=False) and await is_paid(Played([False]), is_alert=False)


def test_an_alert_ends_after_many_patches_without_a_conviction():
    alert = Alert()
    assert not alert.ask()
    alert.sound()
    asked = [alert.ask() for _ in range(300)]
    assert asked == sorted(asked, reverse=True) and 150 < sum(asked) < 250


async def test_right_code_is_paid_and_its_poisoned_tests_are_named():
    looks = draw_looks(True, False, True, random.Random("s"))
    played = Played([not look for look in looks])
    grade = await with_more_sessions(row(), PASSED, "attempt", played.sessions, "s", True)
    assert grade.resolved and grade.session.twinned == {"checks/ops.js"} and played.order == looks


async def test_the_known_fix_is_run_only_where_it_has_to_fail(monkeypatch):
    monkeypatch.setattr(second_look, "draw_looks", lambda *_: [False, True, False, True, True])
    fix = Played([True] * 3)
    grade = await with_more_sessions(row(), PASSED, "the fix", fix.sessions, "s", True)
    assert grade.session.passed_twins and fix.order == [True, True, True]


@pytest.mark.parametrize(
    ("shown", "is_paid", "passed_twins"),
    [
        (PytestSession(twinned=TWINNED), True, frozenset()),
        (PytestSession(twinned=TWINNED, passed_twins=TWINNED), True, TWINNED),
        (PytestSession(findings=("ended_early",)), False, frozenset()),  # a session that was broken proves nothing
    ],
)
async def test_beside_twins_a_session_of_twins_alone_has_to_fail(shown, is_paid, passed_twins):
    async def poisoned(change, seed):
        return Grade(False, True, session=shown)

    grade = await with_more_sessions(row(), BESIDE_TWINS, "attempt", Sessions(poisoned), "s", False)
    assert (grade.resolved, grade.session.passed_twins) == (is_paid, passed_twins)
    assert grade.fail_to_pass == {"test_add": is_paid}


async def test_sessions_run_side_by_side_and_end_when_nobody_waits_for_them(monkeypatch):
    monkeypatch.setattr(second_look, "draw_looks", lambda *_: [True, True, False])
    all_run = asyncio.Barrier(4)
    ended = []

    async def run(change, seed="plain"):
        await all_run.wait()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(seed)

    looking = with_more_sessions(row(), PASSED, "attempt", Sessions(run, run), "s", True)
    task = asyncio.ensure_future(looking)
    await all_run.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["plain", "s-0", "s-1"]


class WithBrokenLook:
    """Sessions of an attempt whose second look breaks, and of a known fix with which tests may still fail."""

    def __init__(self, error, attempt_passes=True, fix_passes=False):
        self.error, self.attempt_passes, self.fix_passes = error, attempt_passes, fix_passes
        self.sessions = Sessions(self.poisoned, self.plain)

    async def plain(self, change):
        return PASSED

    async def poisoned(self, change, seed):
        if change == "attempt" and seed == "s-1":
            raise self.error
        passes = self.attempt_passes if change == "attempt" else self.fix_passes
        return grade_of_poisoned(PASSED if passes else FAILED, "checks/ops.js")


@pytest.mark.parametrize("error", [GradeError("the machine is at fault"), ValueError("nobody foresaw it")])
async def test_an_error_of_one_session_hides_no_conviction(monkeypatch, own_alert, error):
    monkeypatch.setattr(second_look, "draw_looks", lambda *_: [True, True, False])
    convicted = WithBrokenLook(error)
    grade = await with_more_sessions(row(), PASSED, "attempt", convicted.sessions, "s", False)
    assert not grade.resolved and grade.findings == ("twin_passed",)
    assert own_alert.is_on and own_alert.num_convictions == 1


@pytest.mark.parametrize("told", [{"attempt_passes": False}, {"fix_passes": True}])
async def test_an_error_is_raised_where_the_other_sessions_convict_nobody(monkeypatch, own_alert, told):
    monkeypatch.setattr(second_look, "draw_looks", lambda *_: [True, True, False])
    broken = WithBrokenLook(GradeError("the machine is at fault"), **told)
    with pytest.raises(GradeError, match="the machine"):
        await with_more_sessions(row(), PASSED, "attempt", broken.sessions, "s", False)
    assert not own_alert.is_on


async def test_a_session_that_fails_hides_no_conviction(monkeypatch):
    monkeypatch.setattr(second_look, "draw_looks", lambda *_: [False, True, False])
    played = Played([False, True, True])
    grade = await with_more_sessions(row(), PASSED, "attempt", played.sessions, "s", False)
    assert not grade.resolved and grade.session.passed_twins == {"checks/ops.js"}


async def test_a_session_that_breaks_off_hides_no_conviction():
    shown = {
        "s-0": PytestSession(findings=("ended_early",)),
        "s-1": PytestSession(twinned=TWINNED, passed_twins=TWINNED),
        "s-2": PytestSession(twinned=TWINNED),
    }

    async def poisoned(change, seed):
        return Grade(False, True, session=shown[seed])

    grade = await with_more_sessions(row(), BESIDE_TWINS, "attempt", Sessions(poisoned), "s", True)
    assert not grade.resolved and grade.session.passed_twins == TWINNED


FIX = """diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,3 +1,3 @@
 def f():
-    return 1
+    return 2
 index 1..2
"""
BY_GIT = FIX.replace("--- a/a.py", "index 3f73e30..4d3580b 100644\n--- a/a.py").replace("+1,3 @@", "+1,3 @@ class A:")
OF_BYTES = f"diff --git a/a.mo b/a.mo\nindex {'1' * 40}..{'2' * 40} 100644\n"


async def test_the_change_of_the_known_fix_is_not_looked_at_again_whoever_makes_it():
    same = Played([])
    assert await with_more_sessions(row(FIX), PASSED, BY_GIT, same.sessions, "s", True) is PASSED
    assert same.order == []
    as_the_row_has_it = Played([True] * 5)
    await with_more_sessions(row(FIX), PASSED, FIX, as_the_row_has_it.sessions, "s", True)
    assert True in as_the_row_has_it.order


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return 2", "return 3"),
        ("+    return 2", "+     return 2"),
        ("a.py", "b.py"),
        ("-1,3", "-2,3"),
        (" index 1..2", "+index 1..2"),
        ("--- a/a.py", "old mode 100644\nnew mode 100755\n--- a/a.py"),
        ("diff", "index is no id of a version\ndiff"),
        ("+    return 2", "index 1..2\n+    return 2"),
    ],
)
async def test_another_change_than_the_known_fix_is_looked_at(before, after):
    played = Played([False] * 5)
    await with_more_sessions(row(FIX), PASSED, BY_GIT.replace(before, after), played.sessions, "s", True)
    assert played.order


@pytest.mark.parametrize(
    "rest", ["GIT binary patch\nliteral 0\nHcmV?d00001\n", "Binary files a/a.mo and b/a.mo differ\n"]
)
async def test_another_version_of_a_binary_file_than_that_of_the_fix_is_looked_at(rest):
    """Git writes the version that the patch names, where the repository has it."""
    played = Played([False] * 5)
    patch = OF_BYTES.replace("2", "3") + rest
    await with_more_sessions(row(OF_BYTES + rest), PASSED, patch, played.sessions, "s", True)
    assert played.order


async def test_nothing_more_is_run_where_it_would_decide_nothing():
    unknown = Played([True] * 5, names="")
    assert await is_paid(unknown) and True in unknown.order
    no_fix = Played([])
    assert await is_paid(no_fix, row(patch="")) and no_fix.order == []
    failed = Played([])
    assert await with_more_sessions(row(), FAILED, "attempt", failed.sessions, "s", True) is FAILED
    assert failed.order == []
