"""Grading by a data set's own script in a fresh sandbox: by its exit status, or by what it says of each test.

Invariants:
- With a log reader (`log_parser`) every FAIL_TO_PASS and PASS_TO_PASS test must be said to pass; without one the tests'
  exit status decides, and what the log says of these tests must not contradict it.
- An exit status of 0 from a pytest that did not get to its end resolves nothing.
"""

import asyncio
import time
from collections.abc import Mapping

from swe_rl.env.grading.evidence import Evidence, Evidences, findings_of
from swe_rl.env.grading.log_check import PASSING, check_log, pytest_statuses, status_of_tests
from swe_rl.env.grading.script_run import ScriptRun, run_script
from swe_rl.env.grading.swebench import grade_by_swebench
from swe_rl.env.grading.testimony import as_log
from swe_rl.env.instance import Instance
from swe_rl.env.protocol import Grade, GradeError, end_of
from swe_rl.env.swe.r2e_gym import LOG_PARSER, parse_log
from swe_rl.sandbox.protocol import SandboxProvider, Workspace

_EVIDENCES = Evidences()


async def grade_by_eval_script(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """A reader of the official harness's hands over to the harness. Raises GradeError."""
    if not instance.eval_script:
        raise GradeError(f"{instance.instance_id} has no eval_script; env.grading=swebench or pytest may fit this row")
    if instance.log_parser not in ("", LOG_PARSER):
        return await grade_by_swebench(instance, patch, workspace, sandboxes, timeout_s)
    started_s = time.monotonic()

    async def once(change: str | None) -> tuple[ScriptRun, Grade]:
        run = await run_script(instance, change, instance.eval_script, workspace, sandboxes, timeout_s)
        return run, await asyncio.to_thread(_verdict, instance, run, time.monotonic() - started_s)

    async def other(change: str | None) -> Evidence:
        return Evidence.of(*await once(change))

    run, grade = await once(patch)
    return await _EVIDENCES.judge(instance, workspace, run, grade, other)


def _verdict(instance: Instance, run: ScriptRun, duration_s: float) -> Grade:
    tests, result = instance.fail_to_pass + instance.pass_to_pass, run.result
    log = result.output if result else run.applied.output
    passed, findings, unsigned = frozenset[str](), tuple[str, ...](), frozenset[str]()
    started = True
    if result and not result.timed_out:
        statuses = parse_log(log) if instance.log_parser else pytest_statuses(log)
        status = status_of_tests(log, run.nonce, result.exit_code)
        passed = _by_log(tests, statuses) if instance.log_parser else _by_status(tests, statuses, status)
        signed = _signed(instance, run, statuses)
        claims = passed & {*(tests or ("",))}
        unsigned = claims - signed if signed is not None else frozenset()
        findings = findings_of(check_log(log, statuses, instance.log_parser, run.nonce), run, claims, signed)
        started = bool(statuses) or not status or bool(run.testimony.records)
    whole = result is not None and passed.issuperset(tests or ("",))
    return Grade(
        resolved=whole,
        patch_applied=run.applied.ok,
        fail_to_pass={test: test in passed for test in instance.fail_to_pass},
        pass_to_pass={test: test in passed for test in instance.pass_to_pass},
        log_tail=end_of(log),
        log=log,
        duration_s=duration_s,
        timed_out=bool(result and result.timed_out),
        findings=findings,
        restored=run.applied.restored,
        tests_s=result.duration_s if result else 0.0,
        started=started,
        unsigned=unsigned,
    )


def _signed(instance: Instance, run: ScriptRun, statuses: Mapping[str, str]) -> frozenset[str] | None:
    """Names that the witness calls passed; None where it was not there. Without names all of them must have."""
    if not run.testimony.started:
        return None
    log = as_log(run.testimony, "").split("Start Test Output'\n", 1)[-1]
    words = "=" * 10 + " short test summary info " + "=" * 10 + "\n" + log
    mine = parse_log(words) if instance.log_parser else pytest_statuses(words)
    names = frozenset(name for name, status in mine.items() if status in PASSING)
    failed = not {"FAILED", "ERROR"}.isdisjoint(mine.values())
    return names | ({""} if names and not failed else frozenset())


def _by_log(tests: tuple[str, ...], statuses: Mapping[str, str]) -> frozenset[str]:
    """As R2E-Gym has it: a test that is to pass may not be expected to fail."""
    return frozenset(test for test in tests if statuses.get(test) == "PASSED")


def _by_status(tests: tuple[str, ...], statuses: Mapping[str, str], status: int) -> frozenset[str]:
    """All or nothing; the empty name stands for the run where a row names no tests."""
    if status or any(statuses.get(test, "PASSED") not in PASSING for test in tests):
        return frozenset()
    return frozenset((*tests, ""))
