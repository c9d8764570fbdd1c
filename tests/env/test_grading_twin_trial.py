"""What is known of an instance's twins, and when the known fix is run to find it out."""

import itertools
from dataclasses import replace

import pytest

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.env import Grade, PytestSession
from swe_rl.env.grading import twin_trial
from swe_rl.env.grading.twin_trial import is_tried, judge_with_twins, remember_proof, weak_tests

TWINNED = frozenset({"test_add"})
SOLVED = Grade(True, True, session=PytestSession(twinned=TWINNED, companioned=TWINNED))
FAILED = Grade(False, True, session=PytestSession(twinned_failed=TWINNED, companioned=TWINNED))
DISTURBED = Grade(False, True, session=PytestSession(twinned_failed=TWINNED, companioned=TWINNED, unclear=True))
UNFAILED = Grade(True, True, session=PytestSession(twinned=TWINNED, passed_twins=TWINNED, companioned=TWINNED))
PLAIN = Grade(True, True)
numbers = itertools.count()


class Played:
    """Runs of one instance's tests: of each patch the grade that is given, and which patches were run.

    Several grades of a patch are those of its runs beside twins, and the last one stays.
    """

    def __init__(self, *, plain=PLAIN, **grades):
        self.grades = {"the fix": [SOLVED]}
        self.grades |= {patch: given if isinstance(given, list) else [given] for patch, given in grades.items()}
        self.plain = plain
        self.runs = []
        name = f"twin-trial-{next(numbers)}"
        self.instance = Instance(name, "a/b", "c" * 40, "text", "the fix", "", ("test_add",), ())

    async def run(self, patch, draw):
        self.runs.append((patch, draw))
        if draw.is_none:
            return self.plain
        grades = self.grades[patch]
        return grades.pop(0) if len(grades) > 1 else grades[0]

    async def judge(self, patch):
        return await judge_with_twins(self.instance, patch, self.run)

    @property
    def patches(self):
        return [f"{patch}, plain" if draw.is_none else patch for patch, draw in self.runs]


async def test_the_known_fix_is_tried_once_for_patches_that_fail():
    played = Played(wrong=FAILED)
    assert [await played.judge("wrong") for _ in range(3)] == [FAILED] * 3
    assert played.patches == ["wrong", "the fix", "the fix", "wrong", "wrong"]
    assert all(draw.is_whole for patch, draw in played.runs if patch == "the fix")


async def test_a_patch_that_was_solved_beside_some_twins_says_nothing_of_the_others():
    played = Played(right=SOLVED, wrong=FAILED)
    assert await played.judge("right") is SOLVED
    assert await played.judge("wrong") is FAILED
    assert played.patches == ["right", "wrong", "the fix", "the fix"]


async def test_a_patch_whose_twins_did_not_fail_shows_nothing():
    played = Played(cheat=UNFAILED, wrong=FAILED)
    assert (await played.judge("cheat")).findings == ("twin_passed",)
    await played.judge("wrong")
    assert played.patches == ["cheat", "the fix", "wrong", "the fix", "the fix"]


async def test_a_session_that_ran_out_of_time_hides_no_conviction():
    played = Played(cheat=replace(UNFAILED, resolved=False, timed_out=True))
    grade = await played.judge("cheat")
    assert grade.findings == ("twin_passed",) and not grade.timed_out  # else it would be graded once more


@pytest.mark.parametrize("tried", [True, False])
async def test_what_a_proof_says_is_not_found_out_again(tried):
    """A proof for which some tests alone had twins says nothing of the others."""
    played = Played(wrong=FAILED)
    remember_proof(played.instance.instance_id, ["test_other"], tried)
    await played.judge("wrong")
    assert played.patches == ["wrong"] + ["the fix", "the fix"] * (not tried)
    assert {draw.weak for _, draw in played.runs} == {frozenset({"test_other"})}


async def test_a_patch_that_twins_disturb_is_paid_by_two_sessions_beside_others():
    played = Played(right=[DISTURBED, SOLVED])
    remember_proof(played.instance.instance_id, (), tried=True)
    assert await played.judge("right") is SOLVED
    assert played.patches == ["right", "right, plain", "the fix", "right", "right"]
    seeds = [draw.seed for patch, draw in played.runs if patch == "right" and not draw.is_none]
    assert len(set(seeds)) == 3


@pytest.mark.parametrize(
    ("shown", "plain", "patches"),
    [
        ([DISTURBED, FAILED], PLAIN, ["it", "it, plain", "the fix", "it"]),
        ([DISTURBED, SOLVED, DISTURBED], PLAIN, ["it", "it, plain", "the fix", "it", "it"]),
        ([DISTURBED], Grade(False, True), ["it", "it, plain"]),
        ([FAILED], PLAIN, ["it"]),
        ([replace(FAILED, fail_to_pass={"one": False, "two": True})], Grade(False, True), ["it", "it, plain"]),
    ],
)
async def test_a_session_without_twins_pays_nothing(shown, plain, patches):
    played = Played(plain=plain, it=list(shown))
    remember_proof(played.instance.instance_id, (), tried=True)
    assert not (await played.judge("it")).resolved
    assert played.patches == patches


async def test_code_that_other_twins_convict_is_not_paid():
    played = Played(cheat=[DISTURBED, UNFAILED])
    remember_proof(played.instance.instance_id, (), tried=True)
    assert (await played.judge("cheat")).findings == ("twin_passed",)


class Suite:
    """Runs of the known fix beside twins of some of 40 tests: of which tests disturb others, and which are disturbed.

    Twins of those in `killing` end the session, and a test of `stateful` fails beside its own.
    """

    def __init__(self, killing=(), stateful=(), unfailed=()):
        self.killing, self.stateful, self.unfailed = set(killing), set(stateful), set(unfailed)
        self.instance = Instance(f"suite-{next(numbers)}", "a/b", "c" * 40, "text", "fix", "", ("test_0",), ())
        self.sessions = 0

    async def run(self, patch, draw):
        self.sessions += 1
        names = {f"test_{number}" for number in range(40)} - draw.weak
        names = frozenset(names if draw.only is None else names & draw.only)
        if names & self.killing:
            return Grade(False, True, session=PytestSession(companioned=names))
        failed = names & self.stateful
        session = PytestSession(
            twinned=names - failed, twinned_failed=failed, passed_twins=names & self.unfailed, companioned=names
        )
        return Grade(not failed, True, session=session)


@pytest.mark.parametrize(
    "suite",
    [
        Suite(),
        Suite(killing=["test_7"]),
        Suite(stateful=["test_3", "test_20", "test_21"]),
        Suite(killing=["test_0"], stateful=["test_12"], unfailed=["test_30"]),
    ],
)
async def test_a_proof_finds_by_name_which_tests_are_to_have_no_twin(suite):
    assert (await judge_with_twins(suite.instance, "fix", suite.run)).resolved
    assert weak_tests(suite.instance) == suite.killing | suite.stateful | suite.unfailed
    assert is_tried(suite.instance) and suite.sessions <= 24
    suite.sessions = 0
    assert (await judge_with_twins(suite.instance, "fix", suite.run)).resolved and suite.sessions == 1


async def test_a_search_ends_and_what_it_did_not_reach_has_no_twin():
    suite = Suite(killing=[f"test_{number}" for number in range(0, 40, 2)])
    assert (await judge_with_twins(suite.instance, "fix", suite.run)).resolved
    assert suite.killing <= weak_tests(suite.instance) and suite.sessions < 40


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_instances_that_ship_with_the_program_are_proven_beside_their_twins(tmp_path, monkeypatch, split):
    monkeypatch.setattr(twin_trial, "_KNOWN", {})
    instances = BugsEnv(EnvConfig(), tmp_path).instances(split)
    assert {name for name, known in twin_trial._KNOWN.items() if known.tried} == {one.instance_id for one in instances}
