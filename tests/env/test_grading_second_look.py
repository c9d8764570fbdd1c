"""Further sessions of a patch that would be paid: what code gains that lets its tests pass without a look at them."""

import asyncio
import itertools
import random

import pytest

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, GradeError
from swe_rl.env.grading import second_look
from swe_rl.env.grading.second_look import Sessions, draw_looks, looks_within, with_more_sessions

PASSED, FAILED = Grade(True, True), Grade(False, True)


def row(patch="the fix", name="row-1"):
    return Instance(name, "a/b", "c" * 40, "text", patch, "", ("add",), ())


class Played:
    """Sessions in which each outcome is drawn beforehand."""

    def __init__(self, outcomes, names="checks/ops.js", fix_s=1.0):
        self.outcomes, self.names, self.fix_s, self.order = iter(outcomes), names, fix_s, []
        self.sessions = Sessions(self.plain, self.poisoned, self.measure_fix)

    async def plain(self, change):
        self.order.append(False)
        return PASSED if next(self.outcomes) else FAILED

    async def measure_fix(self):
        return self.fix_s

    async def poisoned(self, change, seed):
        self.order.append(True)
        return self.names, PASSED if next(self.outcomes) else FAILED


async def is_paid(played, instance=None, seed="s"):
    """Whether the grade stands, and no wrong expectation was satisfied."""
    grade = await with_more_sessions(instance or row(), PASSED, "attempt", played.sessions, seed)
    return grade.resolved and not grade.session.passed_twins


async def test_code_that_passes_at_random_is_hardly_ever_paid(monkeypatch):
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


def test_every_order_is_drawn_and_one_session_at_least_has_to_fail():
    drawn = {tuple(draw_looks(3, random.Random(seed))) for seed in range(300)}
    assert drawn == set(itertools.product((False, True), repeat=3)) - {(False, False, False)}
    assert draw_looks(1, random.Random(0)) == [True]


@pytest.mark.parametrize(("fix_s", "num_looks"), [(0.2, 5), (12, 5), (15, 4), (31, 1), (600, 1)])
async def test_slow_tests_are_run_less_often(fix_s, num_looks):
    assert looks_within(fix_s) == num_looks
    played = Played([True] * 6, fix_s=fix_s)
    await is_paid(played, row(name=f"row-of-{fix_s}"))
    assert len(played.order) == num_looks and True in played.order


async def test_right_code_is_paid_and_its_poisoned_tests_are_named():
    looks = draw_looks(5, random.Random("s"))
    played = Played([not look for look in looks])
    grade = await with_more_sessions(row(), PASSED, "attempt", played.sessions, "s")
    assert grade.resolved and grade.session.twinned == {"checks/ops.js"} and played.order == looks


async def test_the_known_fix_is_run_only_where_it_has_to_fail(monkeypatch):
    monkeypatch.setattr(second_look, "draw_looks", lambda *_: [False, True, False, True, True])
    fix = Played([True] * 3)
    grade = await with_more_sessions(row(), PASSED, "the fix", fix.sessions, "s")
    assert grade.session.passed_twins and fix.order == [True, True, True]


async def test_sessions_run_side_by_side_and_an_error_ends_those_that_still_run(monkeypatch):
    monkeypatch.setattr(second_look, "draw_looks", lambda *_: [True, True, False])
    all_run = asyncio.Barrier(3)
    ended = []

    async def measure_fix():
        return 1.0

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
        await with_more_sessions(row(), PASSED, "attempt", Sessions(plain, poisoned, measure_fix), "s")
    assert sorted(ended) == ["s-0", "s-1"]


async def test_nothing_more_is_run_where_it_would_decide_nothing():
    unknown = Played([True] * 5, names="")
    assert await is_paid(unknown) and True in unknown.order
    no_fix = Played([])
    assert await is_paid(no_fix, row(patch="")) and no_fix.order == []
    failed = Played([])
    assert await with_more_sessions(row(), FAILED, "attempt", failed.sessions, "s") is FAILED
    assert failed.order == []
