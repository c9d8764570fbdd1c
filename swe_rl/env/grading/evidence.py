"""Decides what it means that tests of a run did not start, and remembers what they do without a patch, or with the fix.

Invariants:
- Nothing that a patch prints or does makes its own run an infrastructure failure: that is decided by a run without it.
- A patch does not choose which tests count: where a row does not name each of them, the known fix shows them.
- The runs without a patch and with the known fix are made when needed, once for an instance; failed ones are not kept.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, GradeError, NotStartedError
from swe_rl.sandbox.sandbox import Workspace

_WORDS = 300  # so many characters of a log are quoted
# Such a function runs the tests of an instance with a change, or with none.
RunTests = Callable[[str | None], Awaitable[Grade]]


class Evidences:
    """Knows with what change, or with none, the tests of an instance start in a workspace."""

    def __init__(self) -> None:
        self._started: set[tuple[str, ...]] = set()
        self._tests: dict[tuple[str, ...], Counter[str]] = {}
        self._locks: dict[tuple[int | str, ...], asyncio.Lock] = {}

    async def judge(self, instance: Instance, workspace: Workspace, grade: Grade, run: RunTests) -> Grade:
        """Returns the grade for what it is worth. Raises NotStartedError where tests start with no change either."""
        if not grade.patch_applied or grade.timed_out or grade.started:
            return grade
        printed = await self._printed_instead(instance, workspace, None, run)
        if printed is None:
            return grade if grade.findings else grade.worthless("not_started")
        # Where nothing but an exit status tells of the tests, tests that fail look as if they had not started.
        by_status = not instance.log_parser and bool(instance.patch.strip())
        if by_status and await self._printed_instead(instance, workspace, instance.patch, run) is None:
            return grade.worthless()
        raise NotStartedError(
            f"the tests of {instance.instance_id} did not start, and without the patch they do not either: {printed}",
            grade.log,
        )

    async def left_out_tests(
        self, instance: Instance, workspace: Workspace, tests: Mapping[str, str], run: RunTests
    ) -> list[str]:
        """Returns the test functions of which fewer cases ran, and were not skipped, than do with the known fix.

        `tests` are the outcomes of a session by id. A case may have another id with the fix. Raises GradeError.
        """
        key = _key_of(instance, workspace, "tests")
        async with self._lock(key):
            if key not in self._tests:
                shown = await run(instance.patch)
                if not shown.session.tests:
                    raise GradeError(f"grading {instance.instance_id}: no test runs with its known fix to compare with")
                self._tests[key] = _cases_of(shown.session.tests)
        return sorted(self._tests[key] - _cases_of(tests))

    async def _printed_instead(
        self, instance: Instance, workspace: Workspace, change: str | None, run: RunTests
    ) -> str | None:
        """Returns what was printed where the tests do not start with a change, and None where they start.

        They are run once for an instance and workspace. That they did not start is not remembered.
        """
        key = _key_of(instance, workspace, "fix" if change else "")
        async with self._lock(key):
            if key in self._started:
                return None
            shown = await run(change)
            if not shown.started or shown.timed_out:
                return shown.infra_hint or shown.log_tail[-_WORDS:]
            self._started.add(key)
            return None

    def _lock(self, key: tuple[str, ...]) -> asyncio.Lock:
        return self._locks.setdefault((id(asyncio.get_running_loop()), *key), asyncio.Lock())


def _key_of(instance: Instance, workspace: Workspace, shown: str) -> tuple[str, ...]:
    """Returns what a run's outcome is remembered by. `shown` says what the run is to show."""
    environment = workspace.toolchain.folder if workspace.toolchain else ""
    return (instance.instance_id, f"{workspace.image} {workspace.path} {environment}", shown)


def _cases_of(tests: Mapping[str, str]) -> Counter[str]:
    """Returns how many cases of each test function were not skipped."""
    return Counter(test.partition("[")[0] for test, outcome in tests.items() if outcome != "skipped")


EVIDENCES = Evidences()
