"""The environment interface: instances of a split, their workspace and prompt, and the verdict on a patch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from swe_rl.env.instance import Instance
from swe_rl.errors import RunError
from swe_rl.sandbox.protocol import SandboxProvider, Workspace


class GradeError(RunError):
    """The grader itself failed (sandbox, harness, timeout of the infrastructure): no verdict, never a reward."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The tests' verdict; `resolved` iff every FAIL_TO_PASS and every PASS_TO_PASS test passed."""

    resolved: bool
    patch_applied: bool
    fail_to_pass: dict[str, bool] = field(default_factory=dict)
    pass_to_pass: dict[str, bool] = field(default_factory=dict)
    log_tail: str = ""
    duration_s: float = 0.0
    cached: bool = False
    timed_out: bool = False  # the tests did not end within the grading's time
    findings: tuple[str, ...] = ()  # facts about this run beyond passed or not: forged output, a changed test runner


class Env(Protocol):
    name: str

    def instances(self, split: str) -> Sequence[Instance]:
        """In a fixed order. Raises InstanceError."""
        ...

    def split_instances(self, split: str) -> int | None:
        """How many the split has before a slice, a list or a filter chose `instances`; None where nobody knows."""
        ...

    def workspace(self, instance: Instance) -> Workspace:
        """What a sandbox for this instance starts from; prepared once, then reused."""
        ...

    def prompt(self, instance: Instance) -> str:
        """The task as the agent's first user message."""
        ...

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Runs the tests in a fresh sandbox that no agent touched. Raises GradeError."""
        ...
