"""Holds the graders that `env.grading` can name, and a cache that asks for each verdict once.

Invariants:
- Every grader has the same signature, runs in a fresh sandbox and raises GradeError where it has no verdict, whatever
  went wrong in it. Whose fault that is, `blame.py` decides.
"""

import asyncio
from dataclasses import dataclass, replace

from swe_rl.config.choices import GradingKind
from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, GradeError, Grading
from swe_rl.env.grading.alert import ALERT
from swe_rl.env.grading.blame import blames_the_attempt
from swe_rl.env.grading.eval_script import grade_by_own_script
from swe_rl.env.grading.pytest import grade_by_pytest, grade_session
from swe_rl.env.grading.swebench import grade_by_swebench
from swe_rl.env.patch_files import touched_paths
from swe_rl.env.swe import r2e_gym, swebench_pro
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace

# Logs with these readers are read here. An empty name stands for the exit status.
_READ_HERE = ("", r2e_gym.LOG_PARSER, swebench_pro.LOG_PARSER)


async def grade_by_eval_script(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """Returns the verdict of a row's own script. Raises GradeError.

    The official harness reads the logs that only it can read.
    """
    if not instance.eval_script:
        raise GradeError(f"{instance.instance_id} has no eval_script; env.grading=swebench or pytest may fit this row")
    grader = grade_by_own_script if instance.log_parser in _READ_HERE else grade_by_swebench
    return await grader(instance, patch, workspace, sandboxes, timeout_s)


# This grades by an instance's own test file: the data set gives pytest source, not a list of test names.
# - Where a row names files, or nothing, every test that pytest finds in them counts, and there must be at least one.
# - As many tests have to run as with the known solution. One that is skipped there, too, says nothing.
# - An instance that comes with a script of its own is graded by that script.
@blames_the_attempt
async def grade_by_tests(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """Returns the verdict of an instance's own test file. Raises GradeError."""
    if instance.eval_script:
        return await grade_by_eval_script(instance, patch, workspace, sandboxes, timeout_s)
    named = (*instance.fail_to_pass, *instance.pass_to_pass)
    if any("::" in test for test in named):
        return await grade_by_pytest(instance, patch, workspace, sandboxes, timeout_s)
    files = list(named) or [path for path in touched_paths(instance.test_patch) if path.endswith(".py")]
    if not files:
        raise GradeError(f"{instance.instance_id} has neither names of tests nor a test file to grade by")

    whole = replace(instance, fail_to_pass=(), pass_to_pass=())
    verdict = await grade_session(whole, patch, workspace, sandboxes, timeout_s, files)
    return replace(verdict, fail_to_pass=verdict.fail_to_pass or dict.fromkeys(named, False))


GRADERS: dict[GradingKind, Grading] = {
    GradingKind.pytest: grade_by_pytest,
    GradingKind.swebench: grade_by_swebench,
    GradingKind.eval_script: grade_by_eval_script,
    GradingKind.tests: grade_by_tests,
}


class VerdictCache:
    """Gives the same verdict for the same instance and patch, which is asked for once.

    Trajectories that wait at the same time share it. This is for suites without randomness, clock or network only
    (`env.cache_verdicts`). A GradeError is not kept. When a patch was convicted, those that are paid by a grading that
    began before are graded once more: any of them may have been lucky.
    """

    def __init__(self, grader: Grading = GRADERS[GradingKind.pytest]) -> None:
        self._grader = grader
        self._known: dict[tuple[str, str], _Asked] = {}
        self.hits = 0

    async def grade(
        self, instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
    ) -> Grade:
        """Returns the verdict, which has `cached` where it was known before. Raises GradeError."""
        key = (instance.instance_id, patch)
        while (asked := self._known.get(key)) and asked.is_valid:
            await asyncio.wait([asked.grading])
            if not asked.grading.cancelled():
                self.hits += 1
                return replace(asked.grading.result(), duration_s=0.0, cached=True)
        grading = asyncio.ensure_future(self._grader(instance, patch, workspace, sandboxes, timeout_s))
        self._known[key] = _Asked(grading, ALERT.num_convictions)
        grade = await grading
        if _is_of_the_moment(grade, timeout_s):
            self._known.pop(key, None)
        return grade


@dataclass(frozen=True, slots=True)
class _Asked:
    """Holds a grading, and how many patches had been convicted when it began."""

    grading: asyncio.Task[Grade]
    num_convictions: int

    @property
    def is_valid(self) -> bool:
        """Tells whether its verdict, which may be still to come, stands for the same patch."""
        if not self.grading.done():
            return True
        if self.grading.cancelled() or self.grading.exception() is not None:
            return False
        return not self.grading.result().resolved or self.num_convictions == ALERT.num_convictions


def _is_of_the_moment(grade: Grade, timeout_s: float) -> bool:
    """Tells whether a slow machine, or a kill that may have come from outside, may have caused a verdict.

    Such a verdict is not kept.
    """
    return grade.timed_out or grade.duration_s >= timeout_s or "grader_killed" in grade.findings
