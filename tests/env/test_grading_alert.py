"""A patch that was cleared is trusted within bounds, each of which has its test."""

import asyncio
import random
import threading
from dataclasses import replace

import pytest

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, GradeError, PytestSession
from swe_rl.env.grading import second_look
from swe_rl.env.grading.alert import LOOKS_AGAIN, LOOKS_TO_TRUST, Alert, ClearedPatches, digest_of, is_looked_at_again
from swe_rl.env.grading.second_look import Sessions, with_more_sessions

TWINNED = frozenset({"test_add"})
PAID = Grade(True, True, {"test_add": True}, session=PytestSession(twinned=TWINNED))
ROW = Instance("row-1", "a/b", "c" * 40, "text", "the fix", "", ("test_add",), ())
# These seeds draw no look at a patch that was cleared, so a look in these tests has another reason.
QUIET = [seed for seed in map(str, range(200)) if not is_looked_at_again(seed)]
AGAIN = next(seed for seed in map(str, range(200)) if is_looked_at_again(seed))


class Code:
    """Code whose sessions with wrong expectations satisfy one as `cheats` tells, for each that is run."""

    def __init__(self, cheats=lambda: False):
        self.cheats = cheats
        self.looks = 0
        self.shown = Grade(False, True, session=PytestSession(twinned=TWINNED))

    async def poisoned(self, change, seed):
        self.looks += 1
        await asyncio.sleep(0)
        passed = TWINNED if self.cheats() else frozenset()
        return replace(self.shown, session=replace(self.shown.session, passed_twins=passed))

    async def grade(self, seed, patch="attempt", row=ROW, is_alert=False):
        """Tells whether one grading pays. A conviction sounds the alert, as a comparison with the known fix does."""
        grade = await with_more_sessions(row, PAID, patch, Sessions(self.poisoned), seed, is_alert)
        if grade.session.passed_twins:
            second_look.ALERT.sound()
            return False
        return grade.resolved

    async def clear(self):
        for seed in QUIET[:LOOKS_TO_TRUST]:
            assert await self.grade(seed)


@pytest.fixture(autouse=True)
def alert(monkeypatch):
    monkeypatch.setattr(second_look, "ALERT", Alert())
    return second_look.ALERT


async def test_the_same_patch_is_looked_at_twice():
    code = Code()
    assert [await code.grade(seed) for seed in QUIET[:10]] == [True] * 10
    assert code.looks == 2


async def test_attempts_that_are_graded_at_the_same_time_wait_for_two_looks():
    code = Code()
    assert all(await asyncio.gather(*(code.grade(seed) for seed in QUIET[:8])))
    assert code.looks == 2


@pytest.mark.parametrize(
    ("patch", "row"),
    [
        ("attempt ", ROW),
        ("attempt", replace(ROW, test_patch="other tests")),
        ("attempt", replace(ROW, instance_id="row-2")),
        ("attempt", replace(ROW, pass_to_pass=("test_sub",))),
        ("attempt", replace(ROW, eval_script="pytest")),
    ],
)
async def test_another_patch_or_other_tests_are_looked_at(patch, row):
    code = Code()
    await code.clear()
    assert await code.grade(QUIET[2], patch, row)
    assert code.looks == 3


async def test_one_grading_in_eight_looks_again_at_a_cleared_patch():
    seeds = [str(number) for number in range(4000)]
    assert abs(sum(map(is_looked_at_again, seeds)) / len(seeds) - 1 / LOOKS_AGAIN) < 0.02
    code = Code()
    await code.clear()
    assert await code.grade(AGAIN) and code.looks == 3


async def test_two_lucky_looks_are_followed_by_at_most_sixteen_payments():
    lucky = Code(iter([False, False, True]).__next__)
    paid = [await lucky.grade(seed) for seed in QUIET[:19]]
    assert paid == [True] * 18 + [False] and lucky.looks == 3


async def test_a_conviction_makes_all_cleared_patches_new_ones(alert):
    honest, cheat = Code(), Code(lambda: True)
    await honest.clear()
    assert not await cheat.grade(QUIET[2], "cheat")
    alert.gradings_left = 0  # the alert is over
    assert await honest.grade(QUIET[3])
    assert honest.looks == 3


async def test_on_alert_nothing_is_trusted_or_cleared(alert):
    code = Code()
    await code.clear()
    alert.gradings_left = 5
    assert await code.grade(QUIET[2]) and code.looks == 2 + 3
    alert.gradings_left = 0
    assert await code.grade(QUIET[3], is_alert=True) and code.looks == 5 + 3  # the grading began on alert


async def test_a_look_that_an_alert_overtook_clears_nobody(alert):
    def sound():
        alert.sound()
        return False

    for seed in QUIET[:2]:
        assert await Code(sound).grade(seed)
        alert.gradings_left = 0
    code = Code()
    assert await code.grade(QUIET[2]) and code.looks == 1


async def test_a_look_that_did_not_come_to_its_end_takes_the_trust_away():
    code = Code()
    await code.clear()
    code.shown = replace(code.shown, session=PytestSession(findings=("ended_early",)))
    assert not await code.grade(AGAIN)
    code.shown = Code().shown
    assert await code.grade(QUIET[2]) and code.looks == 4


async def test_a_look_that_convicts_between_two_that_clear_begins_anew(alert):
    code = Code(iter([False, True, False, False]).__next__)
    paid = []
    for seed in QUIET[:5]:
        paid.append(await code.grade(seed))
        alert.gradings_left = 0
    assert paid == [True, False, True, True, True] and code.looks == 4


async def test_an_error_of_the_machine_clears_nobody_and_lets_the_next_one_look():
    async def broken(change, seed):
        raise GradeError("the machine is at fault")

    with pytest.raises(GradeError):
        await with_more_sessions(ROW, PAID, "attempt", Sessions(broken), QUIET[0], False)
    code = Code()
    assert await code.grade(QUIET[1]) and code.looks == 1


@pytest.mark.parametrize(("p", "most"), [(0.1, 55), (0.3, 14), (0.5, 5), (0.7, 2), (0.9, 1)])
async def test_code_that_cheats_at_random_is_paid_a_bounded_number_of_times_for_each_conviction(p, most, alert):
    """The worst case: one text, sent again and again, and no alert ever."""
    rng = random.Random(1)
    paid = convicted = 0
    code = Code(lambda: rng.random() < p)
    for number in range(3000):
        alert.gradings_left = 0
        if rng.random() > p:
            continue  # its own session fails
        if await code.grade(f"seed {number}"):
            paid += 1
        else:
            convicted += 1
    assert 0 < paid < most * convicted


async def test_a_patch_that_no_twin_stands_beside_shows_what_failed_also_where_it_is_trusted():
    plain_grade = replace(PAID, session=PytestSession())

    async def poisoned(change, seed):
        return Grade(False, True, session=PytestSession(twinned=frozenset({"ops.js"})))

    async def plain(change):
        return plain_grade

    seeds = QUIET[: LOOKS_TO_TRUST + 1]
    shown = [
        await with_more_sessions(ROW, plain_grade, "attempt", Sessions(poisoned, plain), seed, False) for seed in seeds
    ]
    assert [grade.session.twinned for grade in shown] == [{"ops.js"}] * len(seeds)


def test_the_number_of_patches_that_are_kept_is_bounded_and_the_oldest_go_first():
    cleared = ClearedPatches(most_kept=3)
    digests = [digest_of(ROW, str(number)) for number in range(5)]
    for digest in digests:
        for _ in range(LOOKS_TO_TRUST):
            cleared.clear(digest, TWINNED)
    assert [cleared.trust(digest) for digest in digests] == [None, None, TWINNED, TWINNED, TWINNED]


def test_threads_share_one_memory_and_take_each_trust_once():
    cleared = ClearedPatches()
    digest = digest_of(ROW, "attempt")
    for _ in range(LOOKS_TO_TRUST):
        cleared.clear(digest, TWINNED)
    taken = []

    def take():
        for _ in range(50):
            taken.append(cleared.trust(digest))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken.count(TWINNED) == 16
