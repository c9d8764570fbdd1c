"""Grading by a data set's own script in a fresh sandbox: by its exit status, or by what it says of each test.

Invariants:
- With a log reader (`log_parser`) every FAIL_TO_PASS and PASS_TO_PASS test must be said to pass; without one the tests'
  exit status decides, and what the log says of these tests must not contradict it.
- An exit status of 0 from a pytest that did not get to its end resolves nothing.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping

from swe_rl.env.grading.apply import Applied, set_up
from swe_rl.env.grading.log_check import DECISIVE, PASSING, check_log, mark_script, pytest_statuses, status_of_tests
from swe_rl.env.grading.swebench import LOG_TAIL_CHARS, evaluate, grade_by_swebench
from swe_rl.env.instance import Instance
from swe_rl.env.protocol import Grade, GradeError
from swe_rl.env.swe.r2e_gym import LOG_PARSER, parse_log
from swe_rl.sandbox.protocol import ExecResult, SandboxError, SandboxProvider, Workspace


async def grade_by_eval_script(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """A reader of the official harness's hands over to the harness. Raises GradeError."""
    if not instance.eval_script:
        raise GradeError(f"{instance.instance_id} has no eval_script; env.grading=swebench or pytest may fit this row")
    if instance.log_parser not in ("", LOG_PARSER):
        return await grade_by_swebench(instance, patch, workspace, sandboxes, timeout_s)
    started_s, nonce = time.monotonic(), secrets.token_hex(16)
    try:
        sandbox = await sandboxes.create(workspace, owner=f"grade-{instance.instance_id}-{nonce[:8]}")
        try:
            await set_up(sandbox, instance)
            script = mark_script(instance.eval_script, nonce)
            applied, result = await evaluate(sandbox, instance, patch, script, timeout_s)
        finally:
            await sandbox.close()
    except SandboxError as error:
        raise GradeError(f"grading {instance.instance_id} failed: {error}") from error
    return await asyncio.to_thread(_verdict, instance, applied, result, nonce, time.monotonic() - started_s)


def _verdict(instance: Instance, applied: Applied, result: ExecResult | None, nonce: str, duration_s: float) -> Grade:
    tests = instance.fail_to_pass + instance.pass_to_pass
    log = result.output if result else applied.output
    passed, findings = frozenset[str](), tuple[str, ...]()
    if result and not result.timed_out:
        statuses = parse_log(log) if instance.log_parser else pytest_statuses(log)
        findings = tuple(check_log(log, statuses, instance.log_parser, nonce))
        if not DECISIVE.intersection(findings):
            status = status_of_tests(log, nonce, result.exit_code)
            passed = _by_log(tests, statuses) if instance.log_parser else _by_status(tests, statuses, status)
    whole = result is not None and passed.issuperset(tests or ("",))
    return Grade(
        resolved=whole,
        patch_applied=applied.ok,
        fail_to_pass={test: test in passed for test in instance.fail_to_pass},
        pass_to_pass={test: test in passed for test in instance.pass_to_pass},
        log_tail=log[-LOG_TAIL_CHARS:],
        log=log,
        duration_s=duration_s,
        timed_out=bool(result and result.timed_out),
        findings=findings,
        restored=applied.restored,
        tests_s=result.duration_s if result else 0.0,
    )


def _by_log(tests: tuple[str, ...], statuses: Mapping[str, str]) -> frozenset[str]:
    return frozenset(test for test in tests if statuses.get(test) in PASSING)


def _by_status(tests: tuple[str, ...], statuses: Mapping[str, str], status: int) -> frozenset[str]:
    """All or nothing; the empty name stands for the run where a row names no tests."""
    if status or any(statuses.get(test, "PASSED") not in PASSING for test in tests):
        return frozenset()
    return frozenset((*tests, ""))
