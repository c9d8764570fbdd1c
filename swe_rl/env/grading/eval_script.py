"""Grades by a data set's own script in a fresh sandbox: by its exit status, or by what it says of each test.

Invariants:
- With a log reader (`log_parser`) every FAIL_TO_PASS and PASS_TO_PASS test must be said to pass; without one the tests'
  exit status decides, and what the log says of these tests must not contradict it.
"""

import asyncio
import re
from collections.abc import Callable, Mapping

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, PytestSession, end_of
from swe_rl.env.grading.blame import blames_the_attempt
from swe_rl.env.grading.log_check import PASSING, pytest_statuses, region_of, status_of_tests
from swe_rl.env.grading.log_text import failed_names, failing_lines
from swe_rl.env.grading.script_grading import ScriptGrading
from swe_rl.env.grading.script_run import RowScript, ScriptRun, session_of, status_without_companions
from swe_rl.env.swe import r2e_gym
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace


@blames_the_attempt
async def grade_by_own_script(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """Returns the verdict of the row's own script, by its log or its exit status. Raises GradeError."""

    async def read(run: ScriptRun) -> Grade:
        return await asyncio.to_thread(_grade_of_run, instance, run)

    row = RowScript(instance, instance.eval_script, workspace, sandboxes, timeout_s)
    return await ScriptGrading(row, read).judge(patch)


def _grade_of_run(instance: Instance, run: ScriptRun) -> Grade:
    """Returns the grade that a run shows. What it is worth is not decided here."""
    tests = instance.fail_to_pass + instance.pass_to_pass
    log = run.log if run.result else run.applied.output
    session = PytestSession()
    passed = frozenset[str]()
    started = run.result is None or run.tests_began
    if run.result and run.tests_began and not run.result.timed_out:
        read_log = _reader_of(instance)
        in_summary = read_log(log)
        statuses = _with_failed(in_summary, log)
        status = status_of_tests(instance.eval_script, log, run.result.exit_code)
        if instance.log_parser:
            passed = _by_log(tests, statuses)
            session = session_of(_with_failed(read_log(run.result.output), run.result.output), run)
        else:
            if run.names.twin_of:
                session = session_of(_told_by_failures(run), run)
                status = status_without_companions(run.result.output, status, run.names)
            passed = _by_status(tests, statuses, status)
        started = status == 0 or (bool(statuses) and status is not None)
    return Grade(
        resolved=run.result is not None and passed.issuperset(tests or ("",)),
        patch_applied=run.applied.ok,
        fail_to_pass={test: test in passed for test in instance.fail_to_pass},
        pass_to_pass={test: test in passed for test in instance.pass_to_pass},
        log_tail=end_of(log),
        log=log,
        timed_out=bool(run.result and run.result.timed_out),
        started=started,
        session=session,
    )


def _reader_of(instance: Instance) -> Callable[[str], dict[str, str]]:
    """Returns the reader of the closing summary, which names tests as the row does."""
    if instance.log_parser == r2e_gym.LOG_PARSER:
        return r2e_gym.parse_log
    return pytest_statuses


def _with_failed(statuses: Mapping[str, str], log: str) -> Mapping[str, str]:
    """Returns the statuses, in which each test that any line calls failed has failed."""
    return {**statuses, **dict.fromkeys(failed_names(region_of(log)), "FAILED")} if statuses else statuses


def _told_by_failures(run: ScriptRun) -> dict[str, str]:
    """Returns what became of each function of a session whose log may name those alone that failed."""
    assert run.result is not None
    failed = set(re.findall(r"\w+", "\n".join(failing_lines(region_of(run.result.output)))))
    names = run.names
    functions = {*names.real_names, *names.kept, *names.twin_of, *names.copy_of}
    return {name: "FAILED" if name in failed else "PASSED" for name in functions}


def _by_log(tests: tuple[str, ...], statuses: Mapping[str, str]) -> frozenset[str]:
    """Returns the tests that passed as R2E-Gym counts: a test that is to pass may not be expected to fail."""
    return frozenset(test for test in tests if statuses.get(test) == "PASSED")


def _by_status(tests: tuple[str, ...], statuses: Mapping[str, str], status: int | None) -> frozenset[str]:
    """Returns all tests, or none where the exit status or a line of the log says that one failed.

    The empty name stands for the run where a row names no tests.
    """
    if status != 0 or any(statuses.get(test, "PASSED") not in PASSING for test in tests):
        return frozenset()
    return frozenset((*tests, ""))
