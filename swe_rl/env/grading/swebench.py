"""Grades by the official SWE-bench harness's own code, in any sandbox.

Invariants:
- Specification, ways to apply a patch, log reader, verdict and resolution status are the installed harness's
  (`swebench` >= 5.0.2); this file only runs its script where the sandboxes are.
- A test run that times out is unresolved, as there; a sandbox that fails is a GradeError and no verdict.
- A log that its reader cannot read is unresolved too (`log_unreadable`): the tested code wrote it.
- Beyond the harness: what a patch changes in the tests' own files is put back, and a log that was forged resolves
  nothing.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swe_rl.dataset.instance import Instance
from swe_rl.env.grading.apply import Applied
from swe_rl.env.grading.blame import blames_the_attempt
from swe_rl.env.grading.evidence import Evidence, Evidences
from swe_rl.env.grading.log_check import PASSING
from swe_rl.env.grading.script_run import ScriptRun, TwinPlan, counted_tests, log_as_expected, run_script, session_of
from swe_rl.env.grading.second_look import (
    Sessions,
    confirm_without_twins,
    runs_several_commands,
    with_more_sessions,
)
from swe_rl.env.grading.swebench_process import HarnessDiedError, OfficialHarness, UnreadableLogError
from swe_rl.env.grading.swebench_spec import complete_instance
from swe_rl.env.grading.twin_trial import draw_seed, judge_with_twins, weak_tests
from swe_rl.env.protocol import Grade, SuiteRun, end_of
from swe_rl.env.twins.poisoned_files import test_files
from swe_rl.sandbox.protocol import SandboxProvider, Workspace

_HARNESS = OfficialHarness()
_EVIDENCES = Evidences()
_KILLED = 137  # a shell reports so that SIGKILL ended its program


@blames_the_attempt
async def grade_by_swebench(
    instance: Instance,
    patch: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    harness: OfficialHarness = _HARNESS,
    evidences: Evidences = _EVIDENCES,
) -> Grade:
    """Returns the harness's verdict. `timeout_s` is for the evaluation script.

    Raises GradeError, and UserError when `swebench` is missing.
    """
    started_s = time.monotonic()
    instance = complete_instance(instance)
    record = instance.to_record()
    if not patch.strip():  # the harness never runs it either
        return _untested_grade(instance, Applied(False, (), "the patch is empty", 0.0))
    spec = await asyncio.to_thread(harness.ask, {"ask": "spec", "record": record})

    seed = draw_seed()
    counted = counted_tests(instance)

    async def once(change: str | None, plan: TwinPlan | None) -> tuple[ScriptRun, Grade]:
        script = spec["eval_script"]
        commands = spec["apply_commands"]
        run = await run_script(instance, change, script, workspace, sandboxes, timeout_s, commands, plan)
        return run, await _grade_of_log(instance, record, run, harness)

    async def other(change: str | None) -> Evidence:
        return Evidence.of((await once(change, TwinPlan(seed, weak_tests(instance), counted)))[1])

    async def without_twins(change: str | None) -> Grade:
        return (await once(change, None))[1]

    async def with_twins(change: str, weak: frozenset[str]) -> Grade:
        plan = TwinPlan(seed, weak, counted)
        run, verdict = await once(change, plan)
        if not verdict.started and (run.result and run.result.exit_code == _KILLED or verdict.infra_hint):
            run, verdict = await once(change, plan)  # a killed runner may be a fault of the machine
        verdict = await evidences.judge(instance, workspace, verdict, other)
        if verdict.resolved and run.names.twin_of and runs_several_commands(spec["eval_script"]):
            verdict = await confirm_without_twins(instance, workspace, verdict, without_twins, change)
        tests_s = run.result.duration_s if run.result else 0.0
        verdict = replace(verdict, restored=run.applied.restored, tests_s=tests_s)

        async def poisoned(poisoned_change: str, look_seed: str) -> tuple[str, Grade]:
            again, shown = await once(poisoned_change, TwinPlan(look_seed, weak, counted, alone=True))
            return again.poisoned, shown

        if run.names.twin_of or not test_files(instance):
            return verdict
        return await with_more_sessions(instance, workspace, verdict, change, Sessions(without_twins, poisoned), seed)

    verdict = await judge_with_twins(instance, patch, with_twins)
    return replace(verdict, duration_s=time.monotonic() - started_s)


async def suite_by_swebench(
    instance: Instance,
    patch: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    harness: OfficialHarness = _HARNESS,
) -> SuiteRun:
    """Returns all tests that run with `patch`, whatever the row names.

    Raises GradeError, and UserError without `swebench`.
    """
    record = complete_instance(instance).to_record()
    spec = await asyncio.to_thread(harness.ask, {"ask": "spec", "record": record})
    script = spec["eval_script"]
    commands = spec["apply_commands"]
    run = await run_script(instance, patch, script, workspace, sandboxes, timeout_s, commands)
    if run.result is None:
        return SuiteRun({}, run.applied.output, patch_applied=False)
    log = run.result.output
    if run.result.timed_out:
        return SuiteRun({}, log, timed_out=True)
    try:
        tests = (await _answer_on_log(harness, {"ask": "tests", "record": record, "log": log}))["tests"]
    except UnreadableLogError as error:
        return SuiteRun({}, f"{log}\n{error}")
    return SuiteRun({name: status in PASSING for name, status in tests.items()}, log)


async def _grade_of_log(
    instance: Instance, record: Mapping[str, Any], run: ScriptRun, harness: OfficialHarness
) -> Grade:
    """Returns what the log says. What it is worth is not decided here."""
    if run.result is None:
        return _untested_grade(instance, run.applied)
    if run.result.timed_out:
        return replace(_all_failed(instance, run.result.output), timed_out=True)
    request = {"ask": "report", "record": record, "log": run.result.output, "nonce": run.nonce}
    request["without_twins"] = log_as_expected(run)
    return await _ask_report(instance, request, run, harness)


async def _answer_on_log(harness: OfficialHarness, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the harness's answer to a question about a log.

    Raises UnreadableLogError also for a log of which the harness's process dies twice: once may be the machine.
    """
    try:
        return await asyncio.to_thread(harness.ask, request)
    except HarnessDiedError:
        pass
    try:
        return await asyncio.to_thread(harness.ask, request)
    except HarnessDiedError as error:
        raise UnreadableLogError(str(error)) from error


async def _ask_report(
    instance: Instance, request: Mapping[str, Any], run: ScriptRun, harness: OfficialHarness
) -> Grade:
    try:
        answer = await _answer_on_log(harness, request)
    except UnreadableLogError:  # only an odd log does that to a reader, and the patch wrote the log
        return replace(_all_failed(instance, request["log"]), findings=("log_unreadable",))
    report = answer["report"]
    tests = report.get("tests_status") or {}
    fail_to_pass = _passed_tests(instance.fail_to_pass, tests.get("FAIL_TO_PASS"))
    pass_to_pass = _passed_tests(instance.pass_to_pass, tests.get("PASS_TO_PASS"))
    return Grade(
        resolved=bool(report["resolved"]),
        patch_applied=True,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        log_tail=end_of(run.log),
        log=run.log,
        session=session_of(answer["tests"], run),
        resolution=answer["resolution"],
        findings=tuple(answer["findings"]),
        infra_hint=str(report.get("infra_failure_reason") or ""),
        started=bool(answer["num_results"]),
    )


def _passed_tests(tests: tuple[str, ...], statuses: Mapping[str, list[str]] | None) -> dict[str, bool]:
    success = frozenset(statuses["success"] if statuses else ())
    return {test: test in success for test in tests}


def _all_failed(instance: Instance, log: str) -> Grade:
    return Grade(
        resolved=False,
        patch_applied=True,
        fail_to_pass=dict.fromkeys(instance.fail_to_pass, False),
        pass_to_pass=dict.fromkeys(instance.pass_to_pass, False),
        log_tail=end_of(log),
        log=log,
        resolution="RESOLVED_NO",
    )


def _untested_grade(instance: Instance, applied: Applied) -> Grade:
    return replace(_all_failed(instance, applied.output), patch_applied=False)
