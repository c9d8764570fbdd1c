"""This module wraps sandboxes and counts how many seconds of CPU the gradings of one instance have used."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from swe_rl.sandbox.sandbox import Door, ExecResult, Sandbox, SandboxProvider, Snapshot, Waited, Workspace, no_wait


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


class _MeteredSandbox:
    def __init__(self, sandbox: Sandbox, meter: Meter) -> None:
        self._sandbox = sandbox
        self._meter = meter
        self.sandbox_id = sandbox.sandbox_id
        self.workdir = sandbox.workdir
        self.door_url = sandbox.door_url

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
        waited: Waited = no_wait,
    ) -> ExecResult:
        knows = self._sandbox if isinstance(self._sandbox, KnowsCpu) else None
        before_s = knows.cpu_s if knows else 0.0
        result = await self._sandbox.exec(
            command, timeout_s=timeout_s, env=env, max_output_bytes=max_output_bytes, waited=waited
        )
        self._meter.cpu_s += knows.cpu_s - before_s if knows else result.duration_s
        return result

    async def write_file(self, path: str, content: bytes) -> None:
        await self._sandbox.write_file(path, content)

    async def read_file(self, path: str) -> bytes:
        return await self._sandbox.read_file(path)

    async def snapshot(self) -> Snapshot:
        return await self._sandbox.snapshot()

    async def reset(self, snapshot: Snapshot) -> None:
        await self._sandbox.reset(snapshot)

    async def close(self) -> None:
        await self._sandbox.close()
