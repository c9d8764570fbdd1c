"""Which grader `env.grading` means, and verdicts that are asked once.

Invariants:
- Every grader has the same signature, runs in a fresh sandbox and raises GradeError where it has no verdict, whatever
  went wrong in it.
"""

import asyncio
import logging
from dataclasses import replace

from swe_rl.config.choices import GradingKind
from swe_rl.env.grading.eval_script import grade_by_eval_script
from swe_rl.env.grading.pytest import grade_by_pytest, grade_session
from swe_rl.env.grading.swebench import grade_by_swebench
from swe_rl.env.instance import Instance
from swe_rl.env.patch_files import touched_paths
from swe_rl.env.protocol import Grade, GradeError, Grading
from swe_rl.errors import SweRlError
from swe_rl.sandbox.protocol import SandboxProvider, Workspace

_log = logging.getLogger(__name__)


# Grading by an instance's own test file: the data set gives pytest source, not a list of test names.
# - Without names every test of the file counts, and there must be at least one.
# - An instance that comes with a script of its own is graded by that script.
async def grade_by_tests(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """Raises GradeError."""
    if instance.eval_script:
        return await grade_by_eval_script(instance, patch, workspace, sandboxes, timeout_s)
    if instance.fail_to_pass:
        return await grade_by_pytest(instance, patch, workspace, sandboxes, timeout_s)
    files = [path for path in touched_paths(instance.test_patch) if path.endswith(".py")]
    if not files:
        raise GradeError(f"{instance.instance_id} has neither names of tests nor a test file to grade by")
    verdict = await grade_session(instance, patch, workspace, sandboxes, timeout_s, files)
    tests = {test: verdict.session.passed(test) for test in verdict.session.tests}
    return replace(verdict, fail_to_pass=tests, resolved=bool(tests) and all(tests.values()))


def _no_crash(grader: Grading) -> Grading:
    """A patch may lead to what nobody has thought of: that is no verdict on it, and ends no run."""

    async def grade(
        instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
    ) -> Grade:
        try:
            return await grader(instance, patch, workspace, sandboxes, timeout_s)
        except (SweRlError, OSError):  # a full disk is the run's affair
            raise
        except Exception as error:
            _log.warning("grading %s", instance.instance_id, exc_info=True)
            words = f"{type(error).__name__}: {error!s:.300}"
            raise GradeError(f"grading {instance.instance_id} failed: {words}") from error

    return grade


GRADERS: dict[GradingKind, Grading] = {
    GradingKind.pytest: _no_crash(grade_by_pytest),
    GradingKind.swebench: _no_crash(grade_by_swebench),
    GradingKind.eval_script: _no_crash(grade_by_eval_script),
    GradingKind.tests: _no_crash(grade_by_tests),
}


class VerdictCache:
    """Same instance and same patch: same verdict, asked once, also by trajectories that wait at the same time.

    For suites without randomness, clock or network only (`env.cache_verdicts`). A GradeError is not kept.
    """

    def __init__(self, grader: Grading = GRADERS[GradingKind.pytest]) -> None:
        self._grader = grader
        self._known: dict[tuple[str, str], asyncio.Task[Grade]] = {}
        self.hits = 0

    async def grade(
        self, instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
    ) -> Grade:
        key = (instance.instance_id, patch)
        task = self._known.get(key)
        fresh = task is None or (task.done() and (task.cancelled() or task.exception() is not None))
        if fresh or task is None:
            task = asyncio.ensure_future(self._grader(instance, patch, workspace, sandboxes, timeout_s))
            self._known[key] = task
            grade = await task
            if _is_of_the_moment(grade, timeout_s):
                self._known.pop(key, None)
            return grade
        self.hits += 1
        known = await asyncio.shield(task)
        return replace(known, duration_s=0.0, cached=True)


def _is_of_the_moment(grade: Grade, timeout_s: float) -> bool:
    """A slow machine, or a kill that may have come from outside: nothing to remember."""
    return grade.timed_out or grade.duration_s >= timeout_s or "grader_killed" in grade.findings
