"""Defines the environment interface: instances of a split, their workspace and prompt, and the verdict on a patch."""

import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol, runtime_checkable

from swe_rl.dataset.instance import Instance
from swe_rl.errors import RunError
from swe_rl.sandbox.sandbox import Sandbox, SandboxProvider, Workspace


class GradeError(RunError):
    """Says that the grader itself failed (sandbox, harness, timeout of the infrastructure).

    There is no verdict then, and never a reward.
    """


class NotStartedError(GradeError):
    """Says that the tests start neither with a patch nor without one, so the environment is at fault.

    `log` is what they printed.
    """

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


# An honest run cannot have this finding. A crash has others (`ended_early`, `not_started`, `timed_out`).
TRICKS = frozenset({"twin_passed"})
_PASSING = frozenset({"passed", "xfailed"})
_DEEPEST_CLASS = 20
# Rulers of more than 20 characters are cut: pytest's would take over half of a log's end.
_RULER = re.compile(r"([-=_*#])\1{20,}")


def end_of(log: str, chars: int = 2000) -> str:
    """Returns the last characters of a log. Its long rulers are shortened first."""
    return _RULER.sub(lambda ruler: ruler[1] * 20, log[-10 * chars :])[-chars:]


def _ids_of(name: str) -> Iterator[str]:
    """Yields the ids by which a row may mean a test: its file or class, and what is left where it was cut at a blank.

    A longer path than any test has is not followed to its end: tested code may have made it up.
    """
    yield name.split(" ", 1)[0]
    for separator in islice(re.finditer("::", name), _DEEPEST_CLASS):
        yield name[: separator.start()]


@dataclass(frozen=True, slots=True)
class PytestSession:
    """Holds what one pytest session proved. `tests` is empty as soon as there is a finding."""

    # Each test id has passed, failed, skipped, xfailed or xpassed.
    tests: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    log: str = ""
    killed: bool = False  # A process of the session got SIGKILL: from outside, for memory, or from what it tested.
    twinned: frozenset[str] = frozenset()  # These functions have twins, and they passed.
    twinned_failed: frozenset[str] = frozenset()  # These functions have twins, and they did not pass.
    passed_twins: frozenset[str] = frozenset()  # These functions have twins, and a twin or its copy did not fail.
    companioned: frozenset[str] = frozenset()  # These functions have twins, whatever became of them.
    # It ended among its tests, or tests and their copies disagree: something disturbed them.
    unclear: bool = False

    def passed(self, ids: Collection[str]) -> dict[str, bool]:
        """Tells of each id whether all tests passed that it stands for. There has to be at least one.

        It takes no time for each pair of an id and a test: tested code may make up as many tests as it likes.
        """
        outcomes = {test: {self.tests[test]} for test in ids if test in self.tests}
        of_several = set(ids) - outcomes.keys()
        for name, outcome in self.tests.items() if of_several else ():
            for test in of_several.intersection(_ids_of(name)):
                outcomes.setdefault(test, set()).add(outcome)
        return {test: test in outcomes and outcomes[test] <= _PASSING for test in ids}


@dataclass(frozen=True, slots=True)
class Grade:
    """Holds the tests' verdict. `resolved` is true iff every FAIL_TO_PASS and every PASS_TO_PASS test passed."""

    resolved: bool
    patch_applied: bool  # If it is false, nothing was run.
    fail_to_pass: dict[str, bool] = field(default_factory=dict)  # Each test that the fix turns, and whether it passed.
    # Each test that passes before and after, and whether it passed.
    pass_to_pass: dict[str, bool] = field(default_factory=dict)
    log_tail: str = ""  # The end of what the tests printed.
    log: str = field(default="", repr=False)  # The log is whole where the grader keeps it, else empty.
    duration_s: float = 0.0  # Seconds of the whole grading.
    cached: bool = False  # The verdict was known from an earlier grading of the same patch.
    timed_out: bool = False  # The tests did not end within the grading's time.
    # These are facts about this run beyond passed or not: forged output, a changed test runner.
    findings: tuple[str, ...] = ()
    score: float | None = None  # This finite number of the environment is what env.reward=score pays.
    resolution: str = ""  # The official harness says RESOLVED_FULL, RESOLVED_PARTIAL or RESOLVED_NO.
    restored: tuple[str, ...] = ()  # These files of the patch were put back before the tests ran.
    infra_hint: str = ""  # The official harness guesses at a fault of the image, where no test gave a result.
    started: bool = True  # A test gave a result, or none was to be run.
    tests_s: float = 0.0  # The test run itself took this part of duration_s.
    session: PytestSession = field(default_factory=PytestSession)  # Only pytest gradings fill it.

    @classmethod
    def failed(cls, instance: Instance, log: str, *findings: str) -> "Grade":
        """Returns the verdict on an attempt with which no test passed."""
        return cls(
            resolved=False,
            patch_applied=True,
            fail_to_pass=dict.fromkeys(instance.fail_to_pass, False),
            pass_to_pass=dict.fromkeys(instance.pass_to_pass, False),
            log_tail=end_of(log),
            findings=findings,
        )

    def worthless(self, *findings: str) -> "Grade":
        """Returns the verdict on the same run with nothing of it counted as passed, and with further findings."""
        return replace(
            self,
            resolved=False,
            score=None if self.score is None else 0.0,
            fail_to_pass=dict.fromkeys(self.fail_to_pass, False),
            pass_to_pass=dict.fromkeys(self.pass_to_pass, False),
            findings=(*self.findings, *findings),
        )


# A grading gets the instance, the patch, the workspace, the sandboxes and a time limit in seconds.
Grading = Callable[[Instance, str, Workspace, SandboxProvider, float], Awaitable[Grade]]


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """Holds every test that one run of the suite names, and whether it passed.

    There are none where the patch did not apply.
    """

    passed: Mapping[str, bool]
    log: str = field(default="", repr=False)
    patch_applied: bool = True
    timed_out: bool = False


class Env(Protocol):
    """Says what is to be solved, and how it is graded."""

    name: str  # Files and figures of a run call the environment so.

    @abstractmethod
    def instances(self, split: str) -> Sequence[Instance]:
        """Returns the split's instances in a fixed order. Raises InstanceError."""
        ...

    def split_instances(self, split: str) -> int | None:
        """Returns the split's size before a slice, a list or a filter chose `instances`.

        Returns None where nobody knows it.
        """
        del split
        return None

    def left_out(self, split: str) -> Mapping[str, str]:
        """Returns the instances that cannot be used, with the reason. env.unproven=skip leaves them out."""
        del split
        return {}

    @abstractmethod
    def workspace(self, instance: Instance) -> Workspace:
        """Returns what a sandbox for this instance starts from. It is prepared once, then reused."""
        ...

    @abstractmethod
    def prompt(self, instance: Instance) -> str:
        """Returns the task as the agent's first user message."""
        ...

    @abstractmethod
    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Runs the tests in a fresh sandbox that no agent touched, and returns their verdict. Raises GradeError."""
        ...


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """Holds what an instance itself allows, in seconds. The run's own limits hold as well."""

    agent_s: float
    grade_s: float


@runtime_checkable
class ComparesWithFix(Protocol):
    """Describes an environment that grades in place, and knows whether tests that have to fail do so with the fix."""

    @abstractmethod
    async def failing_with_fix(
        self, instance: Instance, names: Collection[str], sandboxes: SandboxProvider, timeout_s: float
    ) -> frozenset[str]:
        """Returns those of a session's `passed_twins` that fail with the known fix, in a sandbox of its own.

        Raises GradeError, SandboxError.
        """
        ...


@runtime_checkable
class GradesInPlace(Protocol):
    """Describes an environment whose answer is no patch: the state of the agent's own sandbox is graded."""

    @abstractmethod
    def limits(self, instance: Instance) -> InstanceLimits: ...

    @abstractmethod
    async def grade_in(self, instance: Instance, sandbox: Sandbox, timeout_s: float) -> Grade:
        """Returns the verdict on the sandbox of an agent that has ended.

        Nothing that the agent wrote is trusted. Whether the agent broke a verifier that has not `started` is found out
        by `grade` with NOOP_PATCH. Raises GradeError, SandboxError.
        """
        ...
