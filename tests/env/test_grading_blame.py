"""A grading that breaks is the attempt's failure only where the same grading of the known fix does not break."""

import errno
from dataclasses import replace
from types import SimpleNamespace

import pytest

from swe_rl.env.env import Grade, GradeError
from swe_rl.env.grading.apply import with_the_attempt_inside
from swe_rl.env.grading.blame import blames_the_attempt
from swe_rl.env.patch import NOOP_PATCH
from swe_rl.errors import UserError
from swe_rl.sandbox.sandbox import OutsideError, SandboxError

ROW = SimpleNamespace(instance_id="row", patch="fix", fail_to_pass=("a",), pass_to_pass=("b",))
FINE = Grade(True, True)


def grader(errors, inside=True):
    """Raises the errors of a patch one after the other, or grades it."""
    graded = []

    @blames_the_attempt
    async def grade(instance, patch, workspace, sandboxes, timeout_s):
        graded.append(patch)
        waiting = errors.get(patch, [])
        error = waiting.pop(0) if waiting else None
        if error is None:
            return FINE
        if isinstance(error, Grade):
            return error
        if not inside:
            raise error
        with with_the_attempt_inside(instance):
            raise error

    grade.graded = graded
    return grade


async def run(grade, patch="attempt", row=ROW):
    return await grade(row, patch, None, None, 1.0)


@pytest.mark.parametrize("error", [SandboxError, GradeError, ValueError, NotADirectoryError])
async def test_what_the_fix_does_not_show_and_the_attempt_shows_twice_is_the_attempts(error):
    grade = grader({"attempt": [error("broken"), error("broken again")]})
    verdict = await run(grade)
    assert not verdict.resolved and verdict.findings == ("grading_broken",) and "broken again" in verdict.log_tail
    assert verdict.fail_to_pass == {"a": False} and verdict.pass_to_pass == {"b": False}
    assert grade.graded == ["attempt", "fix", "attempt"]


async def test_a_hiccup_of_the_machine_costs_nobody_a_verdict():
    assert (await run(grader({"attempt": [SandboxError("once")]}))) is FINE


@pytest.mark.parametrize(
    "fix", [SandboxError("down"), replace(FINE, started=False), replace(FINE, resolved=False, timed_out=True)]
)
async def test_what_the_fix_shows_as_well_is_the_machines(fix):
    with pytest.raises(GradeError, match="broken"):
        await run(grader({"attempt": [SandboxError("broken")] * 2, "fix": [fix]}))


@pytest.mark.parametrize("error", [SandboxError("no room"), GradeError("no room")])
async def test_what_breaks_before_the_attempts_files_are_there_is_the_machines(error):
    grade = grader({"attempt": [error] * 2}, inside=False)
    with pytest.raises(type(error), match="no room"):
        await run(grade)
    assert grade.graded == ["attempt"]


@pytest.mark.parametrize("error", [OutsideError("gone"), UserError("not installed"), OSError(errno.ENOSPC, "full")])
async def test_what_no_attempt_can_bring_about_is_not_asked_for_again(error):
    grade = grader({"attempt": [error] * 2})
    with pytest.raises(type(error)):
        await run(grade)
    assert grade.graded == ["attempt"]


@pytest.mark.parametrize("patch", ["fix", NOOP_PATCH])
async def test_what_attempts_are_compared_with_is_blamed_for_nothing(patch):
    with pytest.raises(GradeError, match="broken"):
        await run(grader({patch: [SandboxError("broken")] * 2}), patch)


async def test_without_a_known_fix_a_change_that_fixes_nothing_takes_its_place():
    grade = grader({"attempt": [SandboxError("broken")] * 2})
    verdict = await run(grade, row=SimpleNamespace(**{**vars(ROW), "patch": ""}))
    assert verdict.findings == ("grading_broken",) and grade.graded[1] == NOOP_PATCH
