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


async def test_code_that_passes_at_random_is_hardly_ever_paid_on_alert(monkeypatch):
    every = [list(looks) for looks in itertools.product((False, True), repeat=5) if any(looks)]
    paid = {}
    for looks in every:
        monkeypatch.setattr(second_look, "draw_looks", lambda *_, drawn=looks: drawn)
        for outcomes in itertools.product((False, True), repeat=5):
            paid[tuple(looks), outcomes] = await is_paid(Played(outcomes))
    chances = []
    for p in (number / 100 for number in range(1, 100)):
        # The first session has to pass as well.
        won = [
            p * p ** sum(outcomes) * (1 - p) ** (5 - sum(outcomes)) for (_, outcomes), is_so in paid.items() if is_so
        ]
        chances.append(sum(won) / len(every))
    assert 0.015 < max(chances) < 1 / 50
    by_the_clock = [
        sum(paid[tuple(looks), outcomes] for looks in every) for outcomes in itertools.product((False, True), repeat=5)
    ]
    assert max(by_the_clock) == 1  # no plan fits two orders


def test_on_alert_every_order_is_drawn_and_one_session_at_least_has_to_fail():
    drawn = {tuple(draw_looks(True, True, random.Random(seed))) for seed in range(3000)}
    assert drawn == set(itertools.product((False, True), repeat=5)) - {(False,) * 5}
    assert draw_looks(True, False, random.Random(0)) == [True] * 3


async def test_without_an_alert_there_is_one_session_that_has_to_fail():
    assert draw_looks(False, True, random.Random(0)) == draw_looks(False, False, random.Random(0)) == [True]
    assert await is_paid(Played([False]), is_alert=False) and not await is_paid(Played([True]), is_alert=False)


def test_an_alert_ends_after_many_patches_without_a_conviction():
    alert = Alert()
    assert not alert.ask()
    alert.sound()
    asked = [alert.ask() for _ in range(300)]
    assert asked == sorted(asked, reverse=True) and 150 < sum(asked) < 250


async def test_right_code_is_paid_and_its_poisoned_tests_are_named():
    looks = draw_looks(True, True, random.Random("s"))
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


async def test_sessions_run_side_by_side_and_an_error_ends_those_that_still_run(monkeypatch):
    monkeypatch.setattr(second_look, "draw_looks", lambda *_: [True, True, False])
    all_run = asyncio.Barrier(3)
    ended = []

    async def plain(change):
        await all_run.wait()
        raise GradeError("the machine is at fault")

    async def poisoned(change, seed):
        await all_run.wait()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(seed)

    with pytest.raises(GradeError, match="the machine"):
        await with_more_sessions(row(), PASSED, "attempt", Sessions(poisoned, plain), "s", True)
    assert sorted(ended) == ["s-0", "s-1"]


async def test_nothing_more_is_run_where_it_would_decide_nothing():
    unknown = Played([True] * 5, names="")
    assert await is_paid(unknown) and True in unknown.order
    no_fix = Played([])
    assert await is_paid(no_fix, row(patch="")) and no_fix.order == []
    failed = Played([])
    assert await with_more_sessions(row(), FAILED, "attempt", failed.sessions, "s", True) is FAILED
    assert failed.order == []
