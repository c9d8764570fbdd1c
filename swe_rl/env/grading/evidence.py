"""Judges what a run shows: whether its tests started, whether they failed, and whether its results are forged.

Invariants:
- Nothing that a patch prints or does makes its own run an infrastructure failure: that is decided by a run without it.
- A finding that the run without the patch shows as well says nothing about the patch.
- A run whose exit status contradicts its tests counts where it is so without the patch, or with the known fix: some
  suites end so.
- The runs without a patch and with the known fix are made when needed, once for an instance; failed ones are not kept.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.grading.log_check import DECISIVE
from swe_rl.env.protocol import Grade, NotStartedError
from swe_rl.sandbox.protocol import Workspace

_WORDS = 300  # so many characters of a log are quoted
# The known fix may show these as well. The other findings are what no fix causes by itself.
_ALSO_OF_THE_FIX = frozenset({"status_unexplained", "failures_unreported"})


@dataclass(frozen=True, slots=True)
class Evidence:
    """Says what the tests of an instance do without any patch, or with the known fix."""

    started: bool
    findings: frozenset[str]
    words: str
    tests_s: float = 0.0

    @classmethod
    def of(cls, grade: Grade) -> "Evidence":
        """Returns the evidence that a grade holds."""
        return cls(
            started=grade.started and not grade.timed_out,
            findings=frozenset(grade.findings),
            words=grade.infra_hint or grade.log_tail[-_WORDS:],
            tests_s=grade.tests_s,
        )


class Evidences:
    """Keeps evidence by instance and workspace."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Evidence] = {}
        self._locks: dict[tuple[int | str, ...], asyncio.Lock] = {}

    async def judge(
        self,
        instance: Instance,
        workspace: Workspace,
        grade: Grade,
        once: Callable[[str | None], Awaitable[Evidence]],
    ) -> Grade:
        """Returns the grade for what it is worth.

        `once` runs the tests with another patch, or none. Raises NotStartedError where they do not start then either.
        """
        if not grade.patch_applied or grade.timed_out:
            return grade
        suspicious = DECISIVE.intersection(grade.findings)
        if grade.started and not suspicious:
            return grade
        evidence = await self._asked(instance, workspace, None, once)
        if not grade.started:
            if not evidence.started and await self._passes_with_the_fix(instance, workspace, once):
                return grade.worthless()
            if not evidence.started:
                raise NotStartedError(
                    f"the tests of {instance.instance_id} did not start, and without the patch they do not either: "
                    f"{evidence.words}",
                    grade.log,
                )
            return grade.worthless("not_started")
        left = tuple(name for name in grade.findings if not excuses_finding(name, evidence))
        if _ALSO_OF_THE_FIX.intersection(left) and instance.patch.strip():
            fix = await self._asked(instance, workspace, instance.patch, once)
            left = tuple(name for name in left if name not in _ALSO_OF_THE_FIX or not excuses_finding(name, fix))
        grade = replace(grade, findings=left)
        return grade.worthless() if DECISIVE.intersection(left) else grade

    async def seconds_of_the_fix(
        self, instance: Instance, workspace: Workspace, once: Callable[[str | None], Awaitable[Evidence]]
    ) -> float:
        """Returns how long the tests take with the known fix. `once` is as `judge` has it. Raises GradeError."""
        return (await self._asked(instance, workspace, instance.patch, once)).tests_s

    async def _passes_with_the_fix(
        self, instance: Instance, workspace: Workspace, once: Callable[[str | None], Awaitable[Evidence]]
    ) -> bool:
        """Tells whether the tests of a row without a log reader start with the known fix.

        Where nothing but an exit status tells of the tests, tests that fail look as if they had not started.
        """
        if instance.log_parser or not instance.patch.strip():
            return False
        return (await self._asked(instance, workspace, instance.patch, once)).started

    async def _asked(
        self,
        instance: Instance,
        workspace: Workspace,
        change: str | None,
        once: Callable[[str | None], Awaitable[Evidence]],
    ) -> Evidence:
        """Returns the evidence of a run with a change, which is made once for an instance and workspace.

        Evidence of tests that did not start is not kept.
        """
        environment = workspace.toolchain.folder if workspace.toolchain else ""
        key = (instance.instance_id, f"{workspace.image} {workspace.path} {environment}", "fix" if change else "")
        lock = self._locks.setdefault((id(asyncio.get_running_loop()), *key), asyncio.Lock())
        async with lock:
            evidence = self._known.get(key) or await once(change)
            if evidence.started:
                self._known[key] = evidence
            return evidence


def excuses_finding(finding: str, evidence: Evidence) -> bool:
    """Tells whether the tests show the same finding without the patch, or with the known fix.

    A run in which none of them started excuses nothing.
    """
    return evidence.started and finding in evidence.findings
