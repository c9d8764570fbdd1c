"""Grading by running an instance's tests in a fresh sandbox.

Invariants:
- The sandbox starts from the pristine workspace; only the agent's patch comes in, without its changes to tests
  and to files that configure the test runner.
- A patch that does not apply is a verdict (unresolved); a sandbox that fails is a GradeError and no verdict.
"""

import asyncio
import hashlib

from swe_rl.env.instance import Instance
from swe_rl.env.protocol import Grade, GradeError
from swe_rl.env.pytest_run import ENVIRONMENT, passed_tests, suite_command
from swe_rl.sandbox.protocol import ExecResult, Sandbox, SandboxError, SandboxProvider, Workspace

_PATCH_FAILED = 97
_TESTS_FAILED_TO_APPLY = 98
_FOLDER = ".swe_rl_grade"
_PROTECTED = (
    f"{_FOLDER}/*",
    "tests/*",
    "conftest.py",
    "*/conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "sitecustomize.py",
    "usercustomize.py",
)
_LOG_TAIL_CHARS = 2000
_MAX_REPORT_BYTES = 1_000_000


async def grade_by_pytest(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """One pytest run over the files of FAIL_TO_PASS and PASS_TO_PASS. Raises GradeError."""
    digest = hashlib.sha256(patch.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    try:
        sandbox = await sandboxes.create(workspace, owner=f"grade-{instance.instance_id}-{digest}")
        try:
            result = await _run(sandbox, instance, patch, timeout_s)
        finally:
            await sandbox.close()
    except SandboxError as error:
        raise GradeError(f"grading {instance.instance_id} failed: {error}") from error
    return _verdict(instance, result)


async def _run(sandbox: Sandbox, instance: Instance, patch: str, timeout_s: float) -> ExecResult:
    await sandbox.write_file(f"{_FOLDER}/model.patch", patch.encode("utf-8", "surrogateescape"))
    await sandbox.write_file(f"{_FOLDER}/test.patch", instance.test_patch.encode())
    excluded = " ".join(f"--exclude='{pattern}'" for pattern in _PROTECTED)
    apply = f"git apply --whitespace=nowarn {excluded} {_FOLDER}/model.patch || exit {_PATCH_FAILED}\n"
    script = (
        f"{apply if patch.strip() else ''}"  # git refuses an empty patch
        f"git apply --whitespace=nowarn {_FOLDER}/test.patch || exit {_TESTS_FAILED_TO_APPLY}\n"
        f"rm -rf {_FOLDER}\n"
        f"{suite_command(instance.fail_to_pass + instance.pass_to_pass)}\n"
        # The agent's code runs in there: its exit status must not pass for one of the two above.
        f"status=$?; case $status in {_PATCH_FAILED}|{_TESTS_FAILED_TO_APPLY}) exit 3;; esac; exit $status"
    )
    return await sandbox.exec(script, timeout_s=timeout_s, env=ENVIRONMENT, max_output_bytes=_MAX_REPORT_BYTES)


def _verdict(instance: Instance, result: ExecResult) -> Grade:
    tail = result.output[-_LOG_TAIL_CHARS:]
    if result.exit_code == _TESTS_FAILED_TO_APPLY:
        raise GradeError(f"grading {instance.instance_id}: its own test patch does not apply: {tail}")
    applied = result.exit_code != _PATCH_FAILED
    verdicts = passed_tests(result.output, result.exit_code) if applied and not result.timed_out else {}
    fail_to_pass = {test: verdicts.get(test, False) for test in instance.fail_to_pass}
    pass_to_pass = {test: verdicts.get(test, False) for test in instance.pass_to_pass}
    return Grade(
        resolved=all(fail_to_pass.values()) and all(pass_to_pass.values()) and bool(fail_to_pass),
        patch_applied=applied,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        log_tail=tail,
        duration_s=result.duration_s,
    )


class VerdictCache:
    """Same instance and same patch: same verdict, asked once, also by trajectories that wait at the same time.

    For suites without randomness, clock or network only (`env.cache_verdicts`). A GradeError is not kept.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], asyncio.Task[Grade]] = {}
        self.hits = 0

    async def grade(
        self, instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
    ) -> Grade:
        key = (instance.instance_id, patch)
        task = self._known.get(key)
        fresh = task is None or (task.done() and (task.cancelled() or task.exception() is not None))
        if fresh or task is None:
            task = asyncio.create_task(grade_by_pytest(instance, patch, workspace, sandboxes, timeout_s))
            self._known[key] = task
            grade = await task
            if grade.duration_s >= timeout_s:  # a slow moment of the machine is nothing to remember
                self._known.pop(key, None)
            return grade
        self.hits += 1
        known = await asyncio.shield(task)
        return Grade(
            resolved=known.resolved,
            patch_applied=known.patch_applied,
            fail_to_pass=known.fail_to_pass,
            pass_to_pass=known.pass_to_pass,
            log_tail=known.log_tail,
            cached=True,
        )
