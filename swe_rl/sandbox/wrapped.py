"""This module has the sandbox that adds something to another one: who wraps a sandbox writes only what differs."""

from typing import Any

from swe_rl.sandbox.sandbox import ExecResult, Sandbox, Snapshot


class WrappedSandbox:
    """Hands every call on to another sandbox. Closing it closes that one."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.sandbox_id = sandbox.sandbox_id
        self.workdir = sandbox.workdir
        self.door_url = sandbox.door_url

    async def exec(self, command: str, **options: Any) -> ExecResult:
        return await self._sandbox.exec(command, **options)

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
