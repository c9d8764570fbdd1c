"""Grading by the official SWE-bench harness's own code, in any sandbox.

Invariants:
- Specification, ways to apply a patch, log reader, verdict and resolution status are the installed harness's
  (`swebench` >= 5.0.2); this file only runs its script where the sandboxes are.
- A test run that times out is unresolved, as there; a sandbox that fails is a GradeError and no verdict.
- Beyond the harness: what a patch changes in the tests' own files is put back, and a log that was forged resolves
  nothing.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from swe_rl.env.grading.apply import APPLY_COMMANDS, Applied, apply_patch, protected, put_files, set_up
from swe_rl.env.grading.log_check import DECISIVE, mark_script
from swe_rl.env.grading.swebench_process import HarnessTimeoutError, OfficialHarness
from swe_rl.env.grading.swebench_spec import complete
from swe_rl.env.instance import Instance
from swe_rl.env.protocol import Grade, GradeError
from swe_rl.sandbox.protocol import ExecResult, Sandbox, SandboxError, SandboxProvider, Workspace

LOG_TAIL_CHARS = 2000
_MAX_LOG_BYTES = 32 * 1024**2
_APPLY_S = 300.0
_HARNESS = OfficialHarness()
# Read whole into memory before it runs: a script on disk could be changed by the code that it tests. In the image's own
# environment: with the sandbox's GIT_CONFIG_GLOBAL=/dev/null the script's `git config --global` would, as root, put a
# file in the place of /dev/null.
_RUN_SCRIPT = (
    "for name in $(compgen -e GIT_) $(compgen -e PYTHON); do unset $name; done; "
    "{ cat %s/eval.sh; rm -rf %s; } | bash -c 'script=$(cat); exec </dev/null; eval \"$script\"'"
)


async def grade_by_swebench(
    instance: Instance,
    patch: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    harness: OfficialHarness = _HARNESS,
) -> Grade:
    """`timeout_s` is for the evaluation script. Raises GradeError; UserError when `swebench` is missing."""
    started_s = time.monotonic()
    instance = complete(instance)
    record = instance.to_record()
    if not patch.strip():  # never run by the harness either
        return _untested(instance, Applied(False, (), "the patch is empty", 0.0))
    nonce = secrets.token_hex(16)
    asking = asyncio.create_task(asyncio.to_thread(harness.ask, {"ask": "spec", "record": record}))
    try:
        sandbox = await sandboxes.create(workspace, owner=f"grade-{instance.instance_id}-{nonce[:8]}")
        try:
            await set_up(sandbox, instance)
            spec = await asking
            script = mark_script(spec["eval_script"], nonce)
            applied, result = await evaluate(sandbox, instance, patch, script, timeout_s, spec["apply_commands"])
        finally:
            await sandbox.close()
    except SandboxError as error:
        raise GradeError(f"grading {instance.instance_id} failed: {error}") from error
    finally:
        await asyncio.wait([asking])  # its thread is not to be left behind, nor its error unseen
        _ = asking.cancelled() or asking.exception()
    if result is None:
        verdict = _untested(instance, applied)
    elif result.timed_out:
        verdict = replace(_all_failed(instance, result.output), timed_out=True)
    else:
        request = {"ask": "report", "record": record, "patch": patch, "log": result.output, "nonce": nonce}
        verdict = await _report(instance, {**request, "patch": _printable(patch)}, harness)
    return replace(
        verdict,
        restored=applied.restored,
        duration_s=time.monotonic() - started_s,
        tests_s=result.duration_s if result else 0.0,
    )


async def evaluate(
    sandbox: Sandbox,
    instance: Instance,
    patch: str,
    script: str,
    timeout_s: float,
    commands: Sequence[str] = APPLY_COMMANDS,
) -> tuple[Applied, ExecResult | None]:
    """`script` over the patched tree; no result where the patch does not apply. Raises GradeError, SandboxError."""
    files = {"model.patch": patch.encode("utf-8", "surrogateescape"), "eval.sh": script.encode()}
    folder = await put_files(sandbox, files)
    applied = await apply_patch(sandbox, folder, protected(instance), _APPLY_S, commands)
    if not applied.ok:
        return applied, None
    result = await sandbox.exec(_RUN_SCRIPT % (folder, folder), timeout_s=timeout_s, max_output_bytes=_MAX_LOG_BYTES)
    return applied, result


async def _report(instance: Instance, request: Mapping[str, Any], harness: OfficialHarness) -> Grade:
    try:
        answer = await asyncio.to_thread(harness.ask, request)
    except HarnessTimeoutError:  # only an odd log makes a reader that slow, and the patch wrote the log
        return replace(_all_failed(instance, request["log"]), findings=("log_unreadable",))
    report, findings = answer["report"], tuple(answer["findings"])
    honest = not DECISIVE.intersection(findings)
    tests = report.get("tests_status") or {}
    return Grade(
        resolved=bool(report["resolved"]) and honest,
        patch_applied=True,
        fail_to_pass=_passed(instance.fail_to_pass, tests.get("FAIL_TO_PASS"), honest),
        pass_to_pass=_passed(instance.pass_to_pass, tests.get("PASS_TO_PASS"), honest),
        log_tail=request["log"][-LOG_TAIL_CHARS:],
        log=request["log"],
        resolution=answer["resolution"],
        findings=findings,
        infra_hint=str(report.get("infra_failure_reason") or ""),
    )


def _passed(tests: tuple[str, ...], statuses: Mapping[str, list[str]] | None, honest: bool) -> dict[str, bool]:
    success = frozenset(statuses["success"] if statuses and honest else ())
    return {test: test in success for test in tests}


def _all_failed(instance: Instance, log: str) -> Grade:
    return Grade(
        resolved=False,
        patch_applied=True,
        fail_to_pass=dict.fromkeys(instance.fail_to_pass, False),
        pass_to_pass=dict.fromkeys(instance.pass_to_pass, False),
        log_tail=log[-LOG_TAIL_CHARS:],
        log=log,
        resolution="RESOLVED_NO",
    )


def _untested(instance: Instance, applied: Applied) -> Grade:
    return replace(_all_failed(instance, applied.output), patch_applied=False)


def _printable(patch: str) -> str:
    """Bytes that are no UTF-8 travel as surrogates, which JSON's readers refuse."""
    return patch.encode("utf-8", "replace").decode()
