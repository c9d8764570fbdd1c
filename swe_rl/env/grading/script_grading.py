"""Comes to a verdict by runs of a row's script, whoever reads what the script printed.

Invariants:
- Twins run beside Python tests. Other tests run again, with wrong expectations.
- Twins fail, so no exit status decides beside them. A lone pytest says which tests failed, and so what its status
  would be without them. Where anything else decides, a patch that would be paid runs once more, with twins.
- A test run that was killed may be a fault of the machine, so it is repeated once.
"""

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade
from swe_rl.env.grading.evidence import EVIDENCES
from swe_rl.env.grading.log_check import commands_of_tests
from swe_rl.env.grading.script_run import RowScript, ScriptRun, TwinPlan, counted_tests
from swe_rl.env.grading.second_look import Sessions, with_more_sessions
from swe_rl.env.grading.stages import runs_pytest_alone
from swe_rl.env.grading.twin_trial import draw_seed, judge_with_twins, weak_tests
from swe_rl.env.patch_files import touched_paths
from swe_rl.env.twins.poisoned_files import test_files

_OF_PYTHON = re.compile(r"\.py\b|\bpytest\b|\bunittest\b")
_KILLED = 137  # a shell reports so that SIGKILL ended its program


@dataclass(frozen=True, slots=True)
class ScriptGrading:
    """Grades patches of one instance.

    `read` returns the grade that a run shows; what the grade is worth is decided here.
    """

    row: RowScript
    read: Callable[[ScriptRun], Awaitable[Grade]]

    @property
    def instance(self) -> Instance:
        return self.row.instance

    async def judge(self, patch: str) -> Grade:
        """Returns the verdict on a patch. Raises GradeError."""
        started_s = time.monotonic()
        seed = draw_seed()

        async def with_twins(change: str, weak: frozenset[str]) -> Grade:
            return await self._judge_once(change, weak, seed)

        verdict = await judge_with_twins(self.instance, patch, with_twins)
        return replace(verdict, duration_s=time.monotonic() - started_s)

    async def _judge_once(self, patch: str, weak: frozenset[str], seed: str) -> Grade:
        """Returns the verdict of a run, beside twins or confirmed by further runs."""
        counted = counted_tests(self.instance)
        by_status = not self.instance.log_parser

        async def first_run(change: str | None, without_twins: frozenset[str]) -> tuple[ScriptRun, Grade]:
            return await self._run(change, None if by_status else TwinPlan(seed, without_twins, counted))

        async def other(change: str | None) -> Grade:
            return (await first_run(change, weak_tests(self.instance)))[1]

        beside_twins: tuple[ScriptRun, Grade] | None = None
        if by_status and self.instance.patch.strip() and runs_pytest_alone(self.row.script):
            beside_twins = await self._run(patch, TwinPlan(seed, weak, counted))
            run, verdict = beside_twins
            if run.names.twin_of and verdict.started:
                return verdict
        run, verdict = await first_run(patch, weak)
        is_killed = bool(run.result and run.result.exit_code == _KILLED)
        if not verdict.started and (is_killed or verdict.infra_hint):
            run, verdict = await first_run(patch, weak)
        verdict = await EVIDENCES.judge(self.instance, self.row.workspace, verdict, other)
        if run.names.twin_of or not (by_status or test_files(self.instance)):
            return verdict
        if by_status and verdict.resolved and self.instance.patch.strip() and self._has_python_tests():
            run, shown = beside_twins or await self._run(patch, TwinPlan(seed, weak, counted))
            if run.names.twin_of:
                is_failed = bool(shown.session.twinned_failed)
                return replace(verdict.worthless() if is_failed else verdict, session=shown.session)
        sessions = self._sessions(weak)
        return await with_more_sessions(self.instance, verdict, patch, sessions, seed)

    def _has_python_tests(self) -> bool:
        """Tells whether a row names files or a runner of Python."""
        ids = (*self.instance.fail_to_pass, *self.instance.pass_to_pass)
        named = [*touched_paths(self.instance.test_patch), *ids, commands_of_tests(self.row.script)]
        return any(_OF_PYTHON.search(words) for words in named)

    def _sessions(self, weak: frozenset[str]) -> Sessions:
        """Returns the further sessions of tests beside which no twin can stand."""

        async def plain(change: str | None) -> Grade:
            return (await self._run(change, None))[1]

        async def judged(change: str) -> Grade:
            return await EVIDENCES.judge(self.instance, self.row.workspace, await plain(change), plain)

        async def poisoned(change: str, look_seed: str) -> tuple[str, Grade]:
            plan = TwinPlan(look_seed, weak, counted_tests(self.instance), alone=True)
            run, shown = await self._run(change, plan)
            return run.poisoned, shown

        async def measure_fix() -> float:
            return await EVIDENCES.seconds_of_the_fix(self.instance, self.row.workspace, plain)

        return Sessions(judged, poisoned, measure_fix)

    async def _run(self, change: str | None, plan: TwinPlan | None) -> tuple[ScriptRun, Grade]:
        run = await self.row.run(change, plan)
        grade = await self.read(run)
        tests_s = run.result.duration_s if run.result else 0.0
        return run, replace(grade, restored=run.applied.restored, tests_s=tests_s)
