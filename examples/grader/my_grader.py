"""A grader of your own: what the tests say, and no change that is larger than it may be."""

from dataclasses import replace

from swe_rl.api import Grade, Instance, SandboxProvider, Workspace, grade_by_tests


class MyGrader:
    """A change that passes the tests is not resolved where it adds and removes more than `max_lines`."""

    def __init__(self, max_lines: int = 200) -> None:
        self._max_lines = max_lines

    async def grade(
        self, instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
    ) -> Grade:
        grade = await grade_by_tests(instance, patch, workspace, sandboxes, timeout_s)
        lines = [line for line in patch.splitlines() if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")]
        if len(lines) <= self._max_lines:
            return grade
        return replace(grade, resolved=False, log_tail=f"{grade.log_tail}\n{len(lines)} lines were changed")
