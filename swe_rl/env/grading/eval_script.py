"""Grades by a data set's own script in a fresh sandbox: by its exit status, or by what it says of each test.

Invariants:
- With a log reader (`log_parser`) every FAIL_TO_PASS and PASS_TO_PASS test must be said to pass; without one the tests'
  exit status decides, and what the log says of these tests must not contradict it.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.grading.blame import blames_the_attempt
from swe_rl.env.grading.evidence import Evidence, Evidences
from swe_rl.env.grading.log_check import (
    PASSING,
    check_markers,
    check_status,
    pytest_statuses,
    region_of,
    status_of_tests,
)
from swe_rl.env.grading.log_text import failed_names
from swe_rl.env.grading.script_run import ScriptRun, TwinPlan, counted_tests, run_script, session_of
from swe_rl.env.grading.second_look import (
    Sessions,
    confirm_without_twins,
    runs_several_commands,
    with_more_sessions,
)
from swe_rl.env.grading.swebench import grade_by_swebench
from swe_rl.env.grading.twin_trial import draw_seed, judge_with_twins, weak_tests
from swe_rl.env.protocol import Grade, GradeError, PytestSession, end_of
from swe_rl.env.swe.r2e_gym import LOG_PARSER, parse_log
from swe_rl.sandbox.protocol import SandboxProvider, Workspace

_EVIDENCES = Evidences()


@blames_the_attempt
async def grade_by_eval_script(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """Returns the verdict of the row's own script.

    A row whose log only the official harness can read is handed over to the harness. Raises GradeError.
    """
    if not instance.eval_script:
        raise GradeError(f"{instance.instance_id} has no eval_script; env.grading=swebench or pytest may fit this row")
    if instance.log_parser not in ("", LOG_PARSER):
        return await grade_by_swebench(instance, patch, workspace, sandboxes, timeout_s)
    started_s = time.monotonic()

    seed = draw_seed()
    # Where an exit status alone decides, a twin beside its test would always make it say that a test failed.
    counted = counted_tests(instance)

    async def once(change: str | None, plan: TwinPlan | None) -> tuple[ScriptRun, Grade]:
        run = await run_script(instance, change, instance.eval_script, workspace, sandboxes, timeout_s, plan=plan)
        return run, await asyncio.to_thread(_grade_of_run, instance, run)

    def twins_but_of(weak: frozenset[str]) -> TwinPlan | None:
        return TwinPlan(seed, weak, counted) if instance.log_parser else None

    async def without_twins(change: str | None) -> Grade:
        return (await once(change, None))[1]

    async def judged(change: str, weak: frozenset[str]) -> Grade:
        async def other(other_change: str | None) -> Evidence:
            return Evidence.of((await once(other_change, twins_but_of(weak_tests(instance))))[1])

        run, grade = await once(change, twins_but_of(weak))
        grade = await _EVIDENCES.judge(instance, workspace, grade, other)
        if grade.resolved and run.names.twin_of and runs_several_commands(instance.eval_script):
            grade = await confirm_without_twins(instance, workspace, grade, without_twins, change)
        return grade

    async def with_poison(change: str, weak: frozenset[str]) -> Grade:
        async def poisoned(poisoned_change: str, look_seed: str) -> tuple[str, Grade]:
            again, shown = await once(poisoned_change, TwinPlan(look_seed, weak, counted, alone=True))
            return again.poisoned, shown

        grade = await judged(change, weak)
        return await with_more_sessions(instance, workspace, grade, change, Sessions(without_twins, poisoned), seed)

    verdict = await judge_with_twins(instance, patch, judged if instance.log_parser else with_poison)
    return replace(verdict, duration_s=time.monotonic() - started_s)


def _grade_of_run(instance: Instance, run: ScriptRun) -> Grade:
    """Returns the grade that a run shows. What it is worth is not decided here."""
    tests = instance.fail_to_pass + instance.pass_to_pass
    result = run.result
    log = run.log if result else run.applied.output
    session = PytestSession()
    passed = frozenset[str]()
    findings: tuple[str, ...] = ()
    started = True
    if result and not result.timed_out:
        in_summary = parse_log(log) if instance.log_parser else pytest_statuses(log)
        statuses = _with_failed(in_summary, log)
        if instance.log_parser:
            session = session_of(_with_failed(parse_log(result.output), result.output), run)
        status = status_of_tests(log, run.nonce, result.exit_code)
        passed = _by_log(tests, statuses) if instance.log_parser else _by_status(tests, statuses, status)
        claims = passed & {*(tests or ("",))}
        in_log = check_markers(log, run.nonce)
        if not run.names.twin_of:  # a run with twins always has failures
            in_log += check_status(status, log, statuses or dict.fromkeys(claims, "PASSED"))
        findings = tuple(in_log)
        started = bool(statuses) or not status
    whole = result is not None and passed.issuperset(tests or ("",))
    return Grade(
        resolved=whole,
        patch_applied=run.applied.ok,
        fail_to_pass={test: test in passed for test in instance.fail_to_pass},
        pass_to_pass={test: test in passed for test in instance.pass_to_pass},
        log_tail=end_of(log),
        log=log,
        timed_out=bool(result and result.timed_out),
        findings=findings,
        restored=run.applied.restored,
        tests_s=result.duration_s if result else 0.0,
        started=started,
        session=session,
    )


def _with_failed(statuses: Mapping[str, str], log: str) -> Mapping[str, str]:
    """Returns the statuses, in which each test that any line calls failed has failed."""
    return {**statuses, **dict.fromkeys(failed_names(region_of(log)), "FAILED")} if statuses else statuses


def _by_log(tests: tuple[str, ...], statuses: Mapping[str, str]) -> frozenset[str]:
    """Returns the tests that passed as R2E-Gym counts: a test that is to pass may not be expected to fail."""
    return frozenset(test for test in tests if statuses.get(test) == "PASSED")


def _by_status(tests: tuple[str, ...], statuses: Mapping[str, str], status: int | None) -> frozenset[str]:
    """Returns all tests, or none where the exit status or a line of the log says that one failed.

    The empty name stands for the run where a row names no tests.
    """
    if status or any(statuses.get(test, "PASSED") not in PASSING for test in tests):
        return frozenset()
    return frozenset((*tests, ""))
