"""Grading by one pytest session over an instance's test files, in a fresh sandbox.

Invariants:
- The sandbox starts from the pristine workspace; only the agent's patch comes in, and its changes to tests and to files
  that configure the test runner are put back.
- A patch that does not apply is a verdict (unresolved); a sandbox that fails is a GradeError and no verdict.
- A session that was killed from outside looks like a patch that kills its grader. It is run once more: what is killed
  twice is the patch's own doing.
- An expected failure of tested code's making passes where the tree shows it without the patch or with the known fix.
"""

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import replace

from swe_rl.env.grading.apply import Applied, apply_patch, files_to_apply, set_up
from swe_rl.env.grading.evidence import Evidence, Evidences
from swe_rl.env.grading.pinned import protected
from swe_rl.env.grading.runner_process import ELSEWHERE
from swe_rl.env.grading.session import (
    MAX_OUTPUT_BYTES,
    SESSION_ENVIRONMENT,
    read_session,
    session_command,
    session_files,
)
from swe_rl.env.instance import Instance
from swe_rl.env.protocol import Grade, GradeError, Session, end_of
from swe_rl.sandbox.protocol import Sandbox, SandboxError, SandboxProvider, Workspace, put_files

_APPLY_S = 120.0
_TEST_FOLDERS = ("tests",)
_ODD = f"xfailed{ELSEWHERE}"
_EVIDENCES = Evidences()
_STRICT = ("git apply --whitespace=nowarn",)


async def grade_by_pytest(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """The files of FAIL_TO_PASS and PASS_TO_PASS, each run whole. Raises GradeError."""
    files = sorted({test.split("::")[0] for test in instance.fail_to_pass + instance.pass_to_pass})
    return await grade_session(instance, patch, workspace, sandboxes, timeout_s, files)


async def grade_session(
    instance: Instance,
    patch: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    files: Sequence[str],
) -> Grade:
    """One session over `files`; a second one where the first was killed, others where a test that counts is odd."""
    verdict = await _in_a_sandbox(instance, patch, workspace, sandboxes, timeout_s, files)
    if verdict.session.killed:
        verdict = await _in_a_sandbox(instance, patch, workspace, sandboxes, timeout_s, files)
    counted = {*instance.fail_to_pass, *instance.pass_to_pass}
    odd = frozenset(t for t in _odd(verdict) if not counted or counted & {t, t.split(" ", 1)[0]})
    if not odd:
        return verdict

    async def once(change: str | None) -> Evidence:
        shown = await _in_a_sandbox(instance, change or "", workspace, sandboxes, timeout_s, files)
        nothing, started = frozenset[str](), not (shown.session.killed or shown.timed_out)
        return Evidence(started, started, nothing, nothing, nothing, _odd(shown), "")

    unexplained = await _EVIDENCES.unexplained(instance, workspace, odd, once)
    tests = dict(verdict.session.tests) | dict.fromkeys(odd - unexplained, "xfailed")
    verdict = _counted(verdict, instance, replace(verdict.session, tests=tests))
    return verdict.worthless("results_unsigned") if unexplained else verdict


def _odd(verdict: Grade) -> frozenset[str]:
    """Expected failures that no test's own text explains."""
    return frozenset(test for test, outcome in verdict.session.tests.items() if outcome == _ODD)


async def _in_a_sandbox(
    instance: Instance,
    patch: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    files: Sequence[str],
) -> Grade:
    digest = hashlib.sha256(patch.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    try:
        sandbox = await sandboxes.create(workspace, owner=f"grade-{instance.instance_id}-{digest}")
        try:
            return await _run(sandbox, instance, patch, timeout_s, files)
        finally:
            await sandbox.close()
    except SandboxError as error:
        raise GradeError(f"grading {instance.instance_id} failed: {error}") from error


async def _run(sandbox: Sandbox, instance: Instance, patch: str, timeout_s: float, files: Sequence[str]) -> Grade:
    await set_up(sandbox, instance)
    programs, secret = session_files()
    folder = await put_files(
        sandbox,
        {
            **programs,
            **files_to_apply(patch, protected(instance, _TEST_FOLDERS)),
            "test.patch": instance.test_patch.encode("utf-8", "surrogateescape"),
        },
    )
    applied = await apply_patch(sandbox, folder, _APPLY_S, _STRICT)
    if not applied.ok:
        return _verdict(instance, Session(log=applied.output), applied, 0.0)
    if instance.test_patch.strip():
        command = f"git apply --whitespace=nowarn {shlex.quote(folder)}/test.patch"
        tests = await sandbox.exec(command, timeout_s=_APPLY_S)
        if tests.exit_code:
            words = end_of(tests.output)
            raise GradeError(f"grading {instance.instance_id}: its own test patch does not apply: {words}")
    result = await sandbox.exec(
        session_command(folder, files),
        timeout_s=timeout_s,
        env=SESSION_ENVIRONMENT,
        max_output_bytes=MAX_OUTPUT_BYTES,
    )
    return _verdict(instance, read_session(result, secret), applied, result.duration_s)


def _verdict(instance: Instance, session: Session, applied: Applied, tests_s: float) -> Grade:
    verdict = Grade(
        resolved=False,
        patch_applied=applied.ok,
        log_tail=end_of(session.log),
        duration_s=applied.duration_s + tests_s,
        timed_out="timed_out" in session.findings,
        findings=session.findings,
        restored=applied.restored,
        tests_s=tests_s,
    )
    return _counted(verdict, instance, session)


def _counted(verdict: Grade, instance: Instance, session: Session) -> Grade:
    fail_to_pass = {test: session.passed(test) for test in instance.fail_to_pass}
    pass_to_pass = {test: session.passed(test) for test in instance.pass_to_pass}
    resolved = bool(fail_to_pass) and all((fail_to_pass | pass_to_pass).values())
    return replace(verdict, resolved=resolved, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass, session=session)
