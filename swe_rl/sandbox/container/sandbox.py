"""This module is one sandbox in a container.

Invariants:
- Commands and file transfers of one sandbox take turns; a command's timeout starts with its turn.
- Nothing outlives its command, and nothing outlives the container: `close` removes it.
- When the container is gone, every use is a SandboxError, at once.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.base import TIMEOUT_EXIT, HeadTail, LocalSandbox, no_snapshots
from swe_rl.sandbox.container import files
from swe_rl.sandbox.container.guard import Guard, GuardLostError
from swe_rl.sandbox.door import Doorway
from swe_rl.sandbox.sandbox import SandboxError, Snapshot, Waited, no_wait

# These are limits of our own scripts, which move files.
_SCRIPT_S = 60.0
_SCRIPT_BYTES = 16384


class ContainerSandbox(LocalSandbox):
    """This is a sandbox in a container: `archives` moves files, and `on_close`, called once, removes the container."""

    def __init__(
        self,
        sandbox_id: str,
        workdir: str,
        guard: Guard,
        archives: "Archives",
        config: SandboxConfig,
        on_close: Callable[["ContainerSandbox"], Awaitable[None]],
        snapshots: "SnapshotCalls | None" = None,
        doorway: Doorway | None = None,
    ) -> None:
        super().__init__(sandbox_id, workdir, config, doorway=doorway)
        self._guard = guard
        self._archives = archives
        self._on_close = on_close
        self._snapshots = snapshots
        self._broken = ""

    async def write_file(self, path: str, content: bytes) -> None:
        self._check_open()
        folder, name = files.relative_parts(path, self.workdir)
        stage = files.stage_name()
        await self._archives.put("/", files.pack_file(stage, content))
        await self._ask(files.write_script(folder, name, f"/{stage}"), path)

    async def read_file(self, path: str) -> bytes:
        """Returns a file's content. Raises MissingFileError (a SandboxError and a FileNotFoundError) without a file."""
        self._check_open()
        files.relative_parts(path, self.workdir)
        stage = f"/{files.stage_name()}"
        await self._ask(files.read_script(path, stage, self._max_bytes), path)
        try:
            return files.unpack_file(await self._archives.get(stage), path)
        finally:
            await self._ask(files.drop_script(stage), path)

    async def _run(
        self, command: str, output: HeadTail, timeout_s: float, env: Mapping[str, str], waited: Waited = no_wait
    ) -> tuple[int | None, float]:
        try:
            ended = await self._guard.run(
                command, output, workdir=self.workdir, timeout_s=timeout_s, env=env, waited=waited
            )
        except GuardLostError as error:
            self._broken = str(error)
            self._check_not_closed_meanwhile()
            said = ""
            if output.text():
                said = f"; its last words: {output.text()[-300:]!r}"
            raise SandboxError(f"sandbox {self.sandbox_id}: {error}{said}") from error
        self._check_not_closed_meanwhile()
        return ended

    async def _ask(self, script: str, path: str) -> None:
        """Runs a script of ours. Raises SandboxError, also for a path that is refused."""
        self._check_open()
        output = HeadTail(_SCRIPT_BYTES)
        status, _ = await self._run(script, output, _SCRIPT_S, {"LC_ALL": "C.UTF-8"})
        if error := files.error_of_status(
            TIMEOUT_EXIT if status is None else status, path, self.workdir, self._max_bytes
        ):
            raise error

    async def snapshot(self) -> Snapshot:
        """Returns a snapshot, which is an image. Raises SandboxError where the engine cannot make one."""
        calls = self._snapshot_calls()
        async with self._guard.between_commands():
            return await calls.take(self)

    async def reset(self, snapshot: Snapshot) -> None:
        """Goes on in a new container with the files of a snapshot."""
        calls = self._snapshot_calls()
        async with self._guard.between_commands():
            self._guard, self._archives = await calls.reset(self, snapshot)

    def _snapshot_calls(self) -> "SnapshotCalls":
        """Returns how snapshots are made. Raises NoSnapshotsError where this kind of container has none."""
        self._check_open()
        if self._snapshots is None:
            raise no_snapshots(self)
        return self._snapshots

    async def _close(self) -> None:
        if self._doorway is not None:
            await self._doorway.close()
        await self._on_close(self)

    def _check_open(self) -> None:
        super()._check_open()
        if self._broken:
            raise SandboxError(f"sandbox {self.sandbox_id} is gone: {self._broken}")


class Archives:
    """This moves tar archives into and out of one container."""

    def __init__(self, put: Callable[[str, bytes], Awaitable[None]], get: Callable[[str], Awaitable[bytes]]) -> None:
        self.put = put
        self.get = get


@dataclass(frozen=True, slots=True)
class SnapshotCalls:
    """The provider takes snapshots of a container by this, and starts another one in its place."""

    take: Callable[[ContainerSandbox], Awaitable[Snapshot]]
    reset: Callable[[ContainerSandbox, Snapshot], Awaitable[tuple[Guard, Archives]]]
