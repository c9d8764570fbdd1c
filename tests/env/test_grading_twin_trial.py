"""What is known of an instance's twins, and when the known fix is run to find it out."""

import itertools

import pytest

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.env import Grade, PytestSession
from swe_rl.env.grading import twin_trial
from swe_rl.env.grading.twin_trial import judge_with_twins, remember_proof

TWINNED = frozenset({"test_add"})
SOLVED = Grade(True, True, session=PytestSession(twinned=TWINNED))
FAILED = Grade(False, True, session=PytestSession(twinned_failed=TWINNED))
UNFAILED = Grade(True, True, session=PytestSession(twinned=TWINNED, passed_twins=TWINNED))
numbers = itertools.count()


class Played:
    """Runs of one instance's tests: of each patch the grade that is given, and which patches were run."""

    def __init__(self, **grades):
        self.grades, self.runs = {"the fix": SOLVED} | grades, []
        name = f"twin-trial-{next(numbers)}"
        self.instance = Instance(name, "a/b", "c" * 40, "text", "the fix", "", ("test_add",), ())

    async def run(self, patch, weak):
        self.runs.append((patch, weak))
        return self.grades[patch]

    async def judge(self, patch):
        return await judge_with_twins(self.instance, patch, self.run)

    @property
    def patches(self):
        return [patch for patch, _ in self.runs]


async def test_the_known_fix_is_run_once_for_patches_that_fail():
    played = Played(wrong=FAILED)
    assert [await played.judge("wrong") for _ in range(3)] == [FAILED] * 3
    assert played.patches == ["wrong", "the fix", "wrong", "wrong"]


async def test_a_patch_that_was_solved_beside_its_twins_shows_that_they_disturb_nothing():
    played = Played(right=SOLVED, wrong=FAILED)
    assert await played.judge("right") is SOLVED
    assert await played.judge("wrong") is FAILED
    assert played.patches == ["right", "wrong"]


async def test_a_patch_whose_twins_did_not_fail_shows_nothing():
    played = Played(cheat=UNFAILED, wrong=FAILED)
    assert (await played.judge("cheat")).findings == ("twin_passed",)
    await played.judge("wrong")
    assert played.patches == ["cheat", "the fix", "wrong", "the fix"]


async def test_what_a_proof_says_is_not_found_out_again():
    played = Played(wrong=FAILED)
    remember_proof(played.instance.instance_id, ["test_other"])
    await played.judge("wrong")
    assert played.runs == [("wrong", frozenset({"test_other"}))]


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_instances_that_ship_with_the_program_are_proven_beside_their_twins(tmp_path, monkeypatch, split):
    monkeypatch.setattr(twin_trial, "_KNOWN", {})
    instances = BugsEnv(EnvConfig(), tmp_path).instances(split)
    assert {name for name, known in twin_trial._KNOWN.items() if known.proven} == {one.instance_id for one in instances}
