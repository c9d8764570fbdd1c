"""Grading by an instance's own test file: the data set gives pytest source, not a list of test names.

Invariants:
- Without names every test of the file counts, and there must be at least one.
- An instance that comes with a script of its own is graded by that script.
"""

from dataclasses import replace

from swe_rl.env.grading_eval_script import grade_by_eval_script
from swe_rl.env.grading_pytest import grade_by_pytest, grade_session
from swe_rl.env.instance import Instance
from swe_rl.env.patch_files import touched_paths
from swe_rl.env.protocol import Grade, GradeError
from swe_rl.sandbox.protocol import SandboxProvider, Workspace


async def grade_by_tests(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """Raises GradeError."""
    if instance.eval_script:
        return await grade_by_eval_script(instance, patch, workspace, sandboxes, timeout_s)
    if instance.fail_to_pass:
        return await grade_by_pytest(instance, patch, workspace, sandboxes, timeout_s)
    files = [path for path in touched_paths(instance.test_patch) if path.endswith(".py")]
    if not files:
        raise GradeError(f"{instance.instance_id} has neither names of tests nor a test file to grade by")
    verdict = await grade_session(instance, patch, workspace, sandboxes, timeout_s, files)
    tests = {test: verdict.session.passed(test) for test in verdict.session.tests}
    return replace(verdict, fail_to_pass=tests, resolved=bool(tests) and all(tests.values()))
