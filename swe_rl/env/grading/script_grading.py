"""Comes to a verdict by runs of a row's script, whoever reads what the script printed.

A patch is judged by one run, and in the end by a further one in which its tests have to fail (`second_look.py`).
How the first run is judged depends on what tells of its tests:

- A log names each test. Twins run beside Python tests, and are left out of the log that its reader gets.
- An exit status says nothing beside twins, because they fail. But a lone pytest says in its log which tests failed, and
  so what its status would be without them. Where anything else decides, a patch that would be paid runs once more, with
  twins.

Invariants:
- A test run that was killed may be a fault of the machine, so it is repeated once.
"""

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from swe_rl.env.env import Grade
from swe_rl.env.grading.alert import ALERT
from swe_rl.env.grading.evidence import EVIDENCES
from swe_rl.env.grading.log_check import commands_of_tests
from swe_rl.env.grading.script_run import RowScript, ScriptRun, TwinPlan, counted_tests
from swe_rl.env.grading.second_look import Sessions, grade_of_poisoned, with_more_sessions
from swe_rl.env.grading.stages import runs_pytest_alone
from swe_rl.env.grading.twin_trial import judge_with_twins
from swe_rl.env.patch_files import touched_paths
from swe_rl.env.twins.poisoned_files import test_files
from swe_rl.env.twins.session import TwinDraw

_OF_PYTHON = re.compile(r"\.py\b|\bpytest\b|\bunittest\b")
_KILLED = 137  # a shell reports so that SIGKILL ended its program


@dataclass(frozen=True, slots=True)
class ScriptGrading:
    """Grades patches of one instance.

    `read` returns the grade that a run shows; what the grade is worth is decided here.
    """

    row: RowScript
    read: Callable[[ScriptRun], Awaitable[Grade]]

    async def judge(self, patch: str) -> Grade:
        """Returns the verdict on a patch. Raises GradeError."""
        started_s = time.monotonic()
        is_alert = ALERT.ask()

        async def with_twins(change: str, draw: TwinDraw) -> Grade:
            if draw.is_none:
                return await self._judge_run(change, None)
            plan = TwinPlan(draw.seed, draw.weak, counted_tests(self.row.instance, draw))
            return await self._judge_twice(change, plan, is_alert)

        verdict = await judge_with_twins(self.row.instance, patch, with_twins)
        return replace(verdict, duration_s=time.monotonic() - started_s)

    async def _judge_twice(self, patch: str, plan: TwinPlan, is_alert: bool) -> Grade:
        """Returns the verdict of a first run, confirmed by further ones in which the tests have to fail."""
        instance = self.row.instance
        by_log = bool(instance.log_parser)
        verdict = await (self._judge_run(patch, plan) if by_log else self._judge_by_status(patch, plan))
        if by_log and not _has_twins(verdict) and not test_files(instance):
            return verdict

        async def plain(change: str) -> Grade:
            return await self._judge_run(change, None)

        async def poisoned(change: str, look_seed: str) -> Grade:
            return await self._run(change, replace(plan, seed=look_seed, is_poisoned=True))

        sessions = Sessions(poisoned, None if _has_twins(verdict) else plain)
        return await with_more_sessions(instance, verdict, patch, sessions, plan.seed, is_alert)

    async def _judge_by_status(self, patch: str, plan: TwinPlan) -> Grade:
        """Returns the verdict of an exit status, with what twins say where Python tests can have them."""
        instance = self.row.instance
        is_known = bool(instance.patch.strip())  # without a known fix no twin proves anything
        beside_twins: Grade | None = None
        if is_known and runs_pytest_alone(self.row.script):
            beside_twins = await self._run(patch, plan)
            if _has_twins(beside_twins) and beside_twins.started:
                return beside_twins
        verdict = await self._judge_run(patch, None)
        if verdict.resolved and is_known and self._has_python_tests():
            shown = beside_twins or await self._run(patch, plan)
            if _has_twins(shown):
                is_failed = bool(shown.session.twinned_failed)
                session = replace(shown.session, unclear=shown.session.unclear or is_failed)
                return replace(verdict.worthless() if is_failed else verdict, session=session)
        return verdict

    async def _judge_run(self, patch: str, plan: TwinPlan | None) -> Grade:
        """Returns what a run is worth. Raises GradeError where its tests start without a patch neither."""

        async def run(change: str | None) -> Grade:
            return await self._run(change, plan)

        verdict = await run(patch)
        if not verdict.started and (verdict.session.killed or verdict.infra_hint):
            verdict = await run(patch)
        return await EVIDENCES.judge(self.row.instance, self.row.workspace, verdict, run)

    async def _run(self, change: str | None, plan: TwinPlan | None) -> Grade:
        """Returns the grade that a run shows."""
        run = await self.row.run(change, plan)
        grade = await self.read(run)
        if run.poisoned:
            grade = grade_of_poisoned(grade, run.poisoned)
        is_killed = bool(run.result and run.result.exit_code == _KILLED)
        session = replace(grade.session, killed=is_killed)
        tests_s = run.result.duration_s if run.result else 0.0
        return replace(grade, session=session, restored=run.applied.restored, tests_s=tests_s)

    def _has_python_tests(self) -> bool:
        """Tells whether a row names files or a runner of Python."""
        instance = self.row.instance
        ids = (*instance.fail_to_pass, *instance.pass_to_pass)
        named = [*touched_paths(instance.test_patch), *ids, commands_of_tests(self.row.script)]
        return any(_OF_PYTHON.search(words) for words in named)


def _has_twins(grade: Grade) -> bool:
    """Tells whether twins stood beside the tests of a run."""
    return bool(grade.session.twinned or grade.session.twinned_failed)
