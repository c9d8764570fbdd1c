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
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, SuiteRun, end_of
from swe_rl.env.grading.apply import Applied
from swe_rl.env.grading.blame import blames_the_attempt
from swe_rl.env.grading.log_check import PASSING
from swe_rl.env.grading.script_grading import ScriptGrading
from swe_rl.env.grading.script_run import RowScript, ScriptRun, log_as_expected, session_of
from swe_rl.env.grading.swebench_process import HarnessDiedError, OfficialHarness, UnreadableLogError
from swe_rl.env.grading.swebench_spec import complete_instance
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace

_HARNESS = OfficialHarness()


@blames_the_attempt
async def grade_by_swebench(
    instance: Instance,
    patch: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    harness: OfficialHarness = _HARNESS,
) -> Grade:
    """Returns the harness's verdict. `timeout_s` is for the evaluation script.

    Raises GradeError, and UserError when `swebench` is missing.
    """
    instance = complete_instance(instance)
    record = instance.to_record()
    if not patch.strip():  # the harness never runs it either
        return _untested_grade(instance, Applied(False, (), "the patch is empty", 0.0))
    spec = await asyncio.to_thread(harness.ask, {"ask": "spec", "record": record})

    async def read(run: ScriptRun) -> Grade:
        return await _grade_of_log(instance, record, run, harness)

    row = RowScript(instance, spec["eval_script"], workspace, sandboxes, timeout_s, spec["apply_commands"])
    return await ScriptGrading(row, read).judge(patch)


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
    row = RowScript(instance, spec["eval_script"], workspace, sandboxes, timeout_s, spec["apply_commands"])
    run = await row.run(patch)
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
    if not run.tests_began:
        return replace(_all_failed(instance, run.result.output), started=False)
    request = {"ask": "report", "record": record, "log": run.result.output}
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
        return replace(_all_failed(instance, request["log"]), started=False, findings=("log_unreadable",))
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
        infra_hint=str(report.get("infra_failure_reason") or ""),
        started=bool(answer["num_results"]),
    )


def _passed_tests(tests: tuple[str, ...], statuses: Mapping[str, list[str]] | None) -> dict[str, bool]:
    success = frozenset(statuses["success"] if statuses else ())
    return {test: test in success for test in tests}


def _all_failed(instance: Instance, log: str) -> Grade:
    return replace(Grade.failed(instance, log), log=log, resolution="RESOLVED_NO")


def _untested_grade(instance: Instance, applied: Applied) -> Grade:
    return replace(_all_failed(instance, applied.output), patch_applied=False)
