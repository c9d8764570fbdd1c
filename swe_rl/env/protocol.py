"""The environment interface: instances of a split, their workspace and prompt, and the verdict on a patch."""

import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from swe_rl.env.instance import Instance
from swe_rl.errors import RunError
from swe_rl.sandbox.protocol import Sandbox, SandboxProvider, Workspace


class GradeError(RunError):
    """The grader itself failed (sandbox, harness, timeout of the infrastructure): no verdict, never a reward."""


class NotStartedError(GradeError):
    """The tests do not start, with a patch or without one: it is the environment. `log` is what they printed."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


# Findings that an honest run cannot have. Others (`ended_early`, `marker_missing`, `timed_out`) a crash has as well.
TRICKS = frozenset(
    {
        *("marker_repeated", "status_contradicted", "no_closing_line", "witness_missing", "results_forged"),
        *("results_unsigned", "runner_changed", "environment_changed"),
    }
)
_PASSING = frozenset({"passed", "xfailed"})
_RULER = re.compile(r"([-=_*#])\1{20,}")  # of more than 20; pytest's would take over half of a log's end


def end_of(log: str, chars: int = 2000) -> str:
    """The last characters of a log, its long rulers shortened first."""
    return _RULER.sub(lambda ruler: ruler[1] * 20, log[-10 * chars :])[-chars:]


@dataclass(frozen=True, slots=True)
class Session:
    """What one pytest session proved; `tests` is empty as soon as there is a finding."""

    tests: Mapping[str, str] = field(default_factory=dict)  # test id -> passed, failed, skipped, xfailed, xpassed
    findings: tuple[str, ...] = ()
    log: str = ""
    killed: bool = False  # a process of it got SIGKILL: from outside, for memory, or from what it tested

    def passed(self, test: str) -> bool:
        """An id without its parameters' text after a space stands for all tests that begin so."""
        if test in self.tests:
            return self.tests[test] in _PASSING
        same = [outcome for name, outcome in self.tests.items() if name.split(" ", 1)[0] == test]
        return bool(same) and all(outcome in _PASSING for outcome in same)


@dataclass(frozen=True, slots=True)
class Grade:
    """The tests' verdict; `resolved` iff every FAIL_TO_PASS and every PASS_TO_PASS test passed."""

    resolved: bool
    patch_applied: bool  # else nothing was run
    fail_to_pass: dict[str, bool] = field(default_factory=dict)
    pass_to_pass: dict[str, bool] = field(default_factory=dict)
    log_tail: str = ""
    log: str = field(default="", repr=False)  # whole, where the grader keeps it
    duration_s: float = 0.0
    cached: bool = False
    timed_out: bool = False  # the tests did not end within the grading's time
    findings: tuple[str, ...] = ()  # facts about this run beyond passed or not: forged output, a changed test runner
    score: float | None = None  # the environment's own number, finite, which env.reward=score pays
    resolution: str = ""  # the official harness's: RESOLVED_FULL, RESOLVED_PARTIAL or RESOLVED_NO
    restored: tuple[str, ...] = ()  # files of the patch that were put back before the tests ran
    infra_hint: str = ""  # the official harness's guess at a fault of the image, where no test gave a result
    started: bool = True  # a test gave a result, or none was to be run
    unsigned: frozenset[str] = frozenset()  # tests that the log alone calls passed, not the witness in the runner
    tests_s: float = 0.0  # of duration_s: the test run itself
    session: Session = field(default_factory=Session)  # of pytest gradings

    def worthless(self, *findings: str) -> "Grade":
        """The same run, and nothing of it counts as passed."""
        return replace(
            self,
            resolved=False,
            score=None if self.score is None else 0.0,
            fail_to_pass=dict.fromkeys(self.fail_to_pass, False),
            pass_to_pass=dict.fromkeys(self.pass_to_pass, False),
            findings=(*self.findings, *findings),
        )


Grading = Callable[[Instance, str, Workspace, SandboxProvider, float], Awaitable[Grade]]  # of a patch, in seconds


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """Every test that one run of the suite names, and whether it passed; none where the patch did not apply."""

    passed: Mapping[str, bool]
    log: str = field(default="", repr=False)
    patch_applied: bool = True
    timed_out: bool = False


class Env(Protocol):
    """What is to be solved, and how it is graded."""

    name: str

    @abstractmethod
    def instances(self, split: str) -> Sequence[Instance]:
        """In a fixed order. Raises InstanceError."""
        ...

    def split_instances(self, split: str) -> int | None:
        """How many the split has before a slice, a list or a filter chose `instances`; None where nobody knows."""
        del split
        return None

    def left_out(self, split: str) -> Mapping[str, str]:
        """Instances of `instances` that cannot be used, with the reason: env.unproven=skip leaves them out."""
        del split
        return {}

    @abstractmethod
    def workspace(self, instance: Instance) -> Workspace:
        """What a sandbox for this instance starts from; prepared once, then reused."""
        ...

    @abstractmethod
    def prompt(self, instance: Instance) -> str:
        """The task as the agent's first user message."""
        ...

    @abstractmethod
    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Runs the tests in a fresh sandbox that no agent touched. Raises GradeError."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What an instance itself allows, in seconds; the run's own limits hold as well."""

    agent_s: float
    grade_s: float


@runtime_checkable
class GradesInPlace(Protocol):
    """Of an environment whose answer is no patch: what the agent's own sandbox looks like is graded."""

    @abstractmethod
    def limits(self, instance: Instance) -> Limits: ...

    @abstractmethod
    async def grade_in(self, instance: Instance, sandbox: Sandbox, timeout_s: float) -> Grade:
        """Called once the agent has ended; nothing that the agent wrote is trusted. Whether the agent broke a verifier
        that has not `started` is found out by `grade` with NOOP_PATCH. Raises GradeError, SandboxError."""
        ...
