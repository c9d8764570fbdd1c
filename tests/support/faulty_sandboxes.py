"""A provider that breaks on purpose: drills of everything that handles broken sandboxes.

Invariants:
- A fault hits the sandboxes that its plan names and no other; what it raises is what the real fault raises.
- Everything else is the inner provider's own.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from swe_rl.sandbox.sandbox import Door, ExecResult, Sandbox, SandboxError, SandboxProvider, Waited, Workspace, no_wait

_TIMED_OUT = 124
_TEST_RUN = "/session_program.py"  # the grader's command starts this file


class Fault(StrEnum):
    """What goes wrong."""

    image_missing = "image_missing"  # no sandbox can be made
    killed = "killed"  # it dies at its first command
    disk_full = "disk_full"  # nothing can be written into it
    hung_command = "hung_command"  # its first command never ends
    hung_tests = "hung_tests"  # the grader's test run never ends
    left_behind = "left_behind"  # something of it cannot be removed


Plan = Callable[[str], Fault | None]  # by the owner of a sandbox: trajectory id, or grade-INSTANCE-PATCH


@dataclass(slots=True)
class _Hit:
    fault: Fault | None
    commands: int = 0


class FaultySandbox:
    def __init__(self, inner: Sandbox, fault: Fault | None) -> None:
        self._inner = inner
        self._hit = _Hit(fault)
        self.sandbox_id = inner.sandbox_id
        self.workdir = inner.workdir
        self.door_url = inner.door_url

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
        waited: Waited = no_wait,
    ) -> ExecResult:
        first, self._hit.commands = self._hit.commands == 0, self._hit.commands + 1
        if self._hit.fault is Fault.killed:
            await self._inner.close()
            raise SandboxError(f"sandbox {self.sandbox_id} died: killed (injected)")
        hung_tests = self._hit.fault is Fault.hung_tests and _TEST_RUN in command
        if hung_tests or (self._hit.fault is Fault.hung_command and first):
            await asyncio.sleep(timeout_s)
            return ExecResult(_TIMED_OUT, "", True, 0, timeout_s)
        return await self._inner.exec(
            command, timeout_s=timeout_s, env=env, max_output_bytes=max_output_bytes, waited=waited
        )

    async def write_file(self, path: str, content: bytes) -> None:
        if self._hit.fault is Fault.disk_full:
            raise SandboxError(f"sandbox {self.sandbox_id}: no space left on device (injected)")
        await self._inner.write_file(path, content)

    async def read_file(self, path: str) -> bytes:
        return await self._inner.read_file(path)

    async def close(self) -> None:
        await self._inner.close()
        if self._hit.fault is Fault.left_behind:
            raise SandboxError(f"sandbox {self.sandbox_id}: its folder cannot be removed (injected)")


class FaultyProvider:
    """`hits` counts the faults that were played, by kind."""

    def __init__(self, inner: SandboxProvider, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan
        self.hits: dict[Fault, int] = {}

    async def create(self, workspace: Workspace, *, owner: str, door: Door | None = None) -> Sandbox:
        fault = self._plan(owner)
        if fault is not None:
            self.hits[fault] = self.hits.get(fault, 0) + 1
        if fault is Fault.image_missing:
            raise SandboxError(f"the image of {owner} is not there and cannot be pulled (injected)")
        return FaultySandbox(await self._inner.create(workspace, owner=owner, door=door), fault)

    async def close(self) -> None:
        await self._inner.close()
