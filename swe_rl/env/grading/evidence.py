"""Decides what it means that the tests of a run did not start, and remembers what they do without any patch.

Invariants:
- Nothing that a patch prints or does makes its own run an infrastructure failure: that is decided by a run without it.
- The runs without a patch and with the known fix are made when needed, once for an instance; failed ones are not kept.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, NotStartedError
from swe_rl.sandbox.sandbox import Workspace

_WORDS = 300  # so many characters of a log are quoted
# Such a function runs the tests of an instance with a change, or with none.
RunTests = Callable[[str | None], Awaitable[Grade]]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Says what the tests of an instance do without any patch, or with the known fix."""

    started: bool
    words: str

    @classmethod
    def of(cls, grade: Grade) -> "Evidence":
        """Returns the evidence that a grade holds."""
        return cls(grade.started and not grade.timed_out, grade.infra_hint or grade.log_tail[-_WORDS:])


class Evidences:
    """Keeps evidence by instance and workspace."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Evidence] = {}
        self._locks: dict[tuple[int | str, ...], asyncio.Lock] = {}

    async def judge(self, instance: Instance, workspace: Workspace, grade: Grade, run: RunTests) -> Grade:
        """Returns the grade for what it is worth. Raises NotStartedError where tests start with no change either."""
        if not grade.patch_applied or grade.timed_out or grade.started:
            return grade
        untouched = await self._asked(instance, workspace, None, run)
        if untouched.started:
            return grade if grade.findings else grade.worthless("not_started")
        # Where nothing but an exit status tells of the tests, tests that fail look as if they had not started.
        by_status = not instance.log_parser and bool(instance.patch.strip())
        if by_status and (await self._asked(instance, workspace, instance.patch, run)).started:
            return grade.worthless()
        raise NotStartedError(
            f"the tests of {instance.instance_id} did not start, and without the patch they do not either: "
            f"{untouched.words}",
            grade.log,
        )

    async def _asked(self, instance: Instance, workspace: Workspace, change: str | None, run: RunTests) -> Evidence:
        """Returns the evidence of a run with a change, which is made once for an instance and workspace.

        Evidence of tests that did not start is not kept.
        """
        environment = workspace.toolchain.folder if workspace.toolchain else ""
        key = (instance.instance_id, f"{workspace.image} {workspace.path} {environment}", "fix" if change else "")
        lock = self._locks.setdefault((id(asyncio.get_running_loop()), *key), asyncio.Lock())
        async with lock:
            evidence = self._known.get(key) or Evidence.of(await run(change))
            if evidence.started:
                self._known[key] = evidence
            return evidence


EVIDENCES = Evidences()
