"""This module wraps sandboxes and counts how many seconds of CPU the gradings of one instance have used."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from swe_rl.sandbox.sandbox import Door, ExecResult, Sandbox, SandboxProvider, Snapshot, Workspace
from swe_rl.sandbox.wrapped import WrappedSandbox


@runtime_checkable
class KnowsCpu(Protocol):
    """Describes a sandbox that knows how many CPU seconds its commands have used."""

    cpu_s: float


@dataclass(slots=True)
class Meter:
    """Provides the sandboxes of another provider. `cpu_s` grows with each command.

    Process sandboxes know the CPU time of a command. In other sandboxes its seconds by the clock stand for it.
    """

    provider: SandboxProvider
    cpu_s: float = 0.0

    async def create(self, workspace: Workspace, *, owner: str, door: Door | None = None) -> Sandbox:
        return _MeteredSandbox(await self.provider.create(workspace, owner=owner, door=door), self)

    async def fork(self, snapshot: Snapshot, *, owner: str, door: Door | None = None) -> Sandbox:
        return _MeteredSandbox(await self.provider.fork(snapshot, owner=owner, door=door), self)

    async def drop(self, snapshot: Snapshot) -> None:
        await self.provider.drop(snapshot)

    async def close(self) -> None:
        """Does nothing, because the provider belongs to whoever made it."""


class _MeteredSandbox(WrappedSandbox):
    def __init__(self, sandbox: Sandbox, meter: Meter) -> None:
        super().__init__(sandbox)
        self._meter = meter

    async def exec(self, command: str, **options: Any) -> ExecResult:
        knows = self._sandbox if isinstance(self._sandbox, KnowsCpu) else None
        before_s = knows.cpu_s if knows else 0.0
        result = await super().exec(command, **options)
        self._meter.cpu_s += knows.cpu_s - before_s if knows else result.duration_s
        return result
