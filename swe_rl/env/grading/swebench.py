"""Grading by the official SWE-bench harness's own code, in any sandbox.

Invariants:
- Specification, ways to apply a patch, log reader, verdict and resolution status are the installed harness's
  (`swebench` >= 5.0.2); this file only runs its script where the sandboxes are.
- A test run that times out is unresolved, as there; a sandbox that fails is a GradeError and no verdict.
- Beyond the harness: what a patch changes in the tests' own files is put back, and a log that was forged resolves
  nothing.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swe_rl.env.grading.apply import Applied
from swe_rl.env.grading.evidence import Evidence, Evidences, findings_of
from swe_rl.env.grading.log_check import PASSING
from swe_rl.env.grading.script_run import ScriptRun, run_script
from swe_rl.env.grading.swebench_process import HarnessTimeoutError, OfficialHarness
from swe_rl.env.grading.swebench_spec import complete
from swe_rl.env.grading.testimony import as_log
from swe_rl.env.instance import Instance
from swe_rl.env.protocol import Grade, SuiteRun, end_of
from swe_rl.sandbox.protocol import SandboxProvider, Workspace

_HARNESS = OfficialHarness()
_EVIDENCES = Evidences()
_KILLED = 137


async def grade_by_swebench(
    instance: Instance,
    patch: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    harness: OfficialHarness = _HARNESS,
    evidences: Evidences = _EVIDENCES,
) -> Grade:
    """`timeout_s` is for the evaluation script. Raises GradeError; UserError when `swebench` is missing."""
    started_s = time.monotonic()
    instance = complete(instance)
    record = instance.to_record()
    if not patch.strip():  # never run by the harness either
        return _untested(instance, Applied(False, (), "the patch is empty", 0.0))
    spec = await asyncio.to_thread(harness.ask, {"ask": "spec", "record": record})

    async def once(change: str | None) -> tuple[ScriptRun, Grade]:
        script, commands = spec["eval_script"], spec["apply_commands"]
        run = await run_script(instance, change, script, workspace, sandboxes, timeout_s, commands)
        return run, await _verdict(instance, record, run, harness)

    async def other(change: str | None) -> Evidence:
        return Evidence.of(*await once(change))

    run, verdict = await once(patch)
    if not verdict.started and (run.result and run.result.exit_code == _KILLED or verdict.infra_hint):
        run, verdict = await once(patch)  # a killed runner, or what looks like a fault of the machine
    verdict = await evidences.judge(instance, workspace, run, verdict, other)
    return replace(
        verdict,
        restored=run.applied.restored,
        duration_s=time.monotonic() - started_s,
        tests_s=run.result.duration_s if run.result else 0.0,
    )


async def suite_by_swebench(
    instance: Instance,
    patch: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    harness: OfficialHarness = _HARNESS,
) -> SuiteRun:
    """All tests that run with `patch`, whatever the row names. Raises GradeError; UserError without `swebench`."""
    record = complete(instance).to_record()
    spec = await asyncio.to_thread(harness.ask, {"ask": "spec", "record": record})
    script, commands = spec["eval_script"], spec["apply_commands"]
    run = await run_script(instance, patch, script, workspace, sandboxes, timeout_s, commands)
    if run.result is None:
        return SuiteRun({}, run.applied.output, patch_applied=False)
    log = run.result.output
    if run.result.timed_out:
        return SuiteRun({}, log, timed_out=True)
    tests = (await asyncio.to_thread(harness.ask, {"ask": "tests", "record": record, "log": log}))["tests"]
    return SuiteRun({name: status in PASSING for name, status in tests.items()}, log)


async def _verdict(instance: Instance, record: Mapping[str, Any], run: ScriptRun, harness: OfficialHarness) -> Grade:
    """What log and witness say; what it is worth is not decided here."""
    if run.result is None:
        return _untested(instance, run.applied)
    if run.result.timed_out:
        return replace(_all_failed(instance, run.result.output), timed_out=True)
    request = {"ask": "report", "record": record, "patch": "patch", "log": run.result.output, "nonce": run.nonce}
    if run.testimony.started:
        request["signed"] = as_log(run.testimony, instance.log_parser)
    return await _report(instance, request, run, harness)


async def _report(instance: Instance, request: Mapping[str, Any], run: ScriptRun, harness: OfficialHarness) -> Grade:
    try:
        answer = await asyncio.to_thread(harness.ask, request)
    except HarnessTimeoutError:  # only an odd log makes a reader that slow, and the patch wrote the log
        return replace(_all_failed(instance, request["log"]), findings=("log_unreadable",))
    report = answer["report"]
    tests = report.get("tests_status") or {}
    signed = frozenset(answer["signed"]) if "signed" in answer else None
    fail_to_pass = _passed(instance.fail_to_pass, tests.get("FAIL_TO_PASS"))
    pass_to_pass = _passed(instance.pass_to_pass, tests.get("PASS_TO_PASS"))
    said = [test for test, passed in (fail_to_pass | pass_to_pass).items() if passed]
    return Grade(
        resolved=bool(report["resolved"]),
        patch_applied=True,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        log_tail=end_of(request["log"]),
        log=request["log"],
        resolution=answer["resolution"],
        findings=findings_of(answer["findings"], run, said, signed),
        infra_hint=str(report.get("infra_failure_reason") or ""),
        started=bool(answer["num_results"]),
        unsigned=frozenset(said) - signed if signed is not None else frozenset(),
    )


def _passed(tests: tuple[str, ...], statuses: Mapping[str, list[str]] | None) -> dict[str, bool]:
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


def _untested(instance: Instance, applied: Applied) -> Grade:
    return replace(_all_failed(instance, applied.output), patch_applied=False)
