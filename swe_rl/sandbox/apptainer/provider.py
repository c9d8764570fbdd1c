"""This module makes sandboxes by apptainer, for clusters without a container daemon: each is a process of this machine.

Invariants:
- The container lives as long as its apptainer process, and that reads from a pipe of ours: however this process ends,
  so does the container.
- Files pass through a folder that both sides see; what comes out is read as anything else that commands may have
  tampered with (confined_path).
- Limits that this host's cgroups do not give are left out once, with a warning.
- The guard is the first process of a pid namespace of its own (`--no-init`): when apptainer ends, so does all of it.
- Nothing of this host is seen but what is named: no home, no environment, no network unless `sandbox.network`.
- Writes go to memory (`--writable-tmpfs`), or to a folder of the sandbox's own where its size is limited by none.
"""

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_rl.config.schema import SandboxConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.base import BaseProvider, HeadTail, clear_away, image_of, safe_name
from swe_rl.sandbox.confined_path import read_confined
from swe_rl.sandbox.container import files
from swe_rl.sandbox.container.guard import STOP_SIGNAL, Guard, beat_all, guard_argv
from swe_rl.sandbox.container.sandbox import Archives, ContainerSandbox
from swe_rl.sandbox.container.spec import Mount, parse_mount, sandbox_variables
from swe_rl.sandbox.door import Doorway, prepare_folder
from swe_rl.sandbox.lease import make_scratch
from swe_rl.sandbox.process_tree import first_inside
from swe_rl.sandbox.sandbox import Door, SandboxError, Workspace, close_all
from swe_rl.sandbox.working_copy import remove_or_say, remove_tree

# The sandbox sees the folder through which files pass under this path.
EXCHANGE = "/run/swe_rl"


def image_reference(image: str) -> str:
    """Returns an image as apptainer wants it: a file or folder of this machine, or an address.

    A plain image name is taken for one of a Docker registry.
    """
    if "://" in image or image.startswith(("/", "./")) or image.endswith(".sif"):
        return image
    return f"docker://{image}"


def exec_argv(
    program: str, image: str, config: SandboxConfig, mounts: Sequence[Mount], exchange: Path, overlay: Path
) -> list[str]:
    """Returns the command line that starts a container, whose first process is the guard.

    `exchange` is the folder through which files pass, and `overlay` takes what the sandbox writes.
    """
    argv = [program, "exec", "--containall", "--cleanenv", "--no-home", "--no-init", "--pid", "--fakeroot"]
    argv += ["--no-privs", "--hostname", "sandbox", "--pwd", "/", "--overlay", str(overlay)]
    if not config.network:
        argv += ["--net", "--network", "none"]
    argv += limits_argv(config)
    for mount in (*mounts, Mount(str(exchange), EXCHANGE, writable=True)):
        argv += ["--bind", f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"]
    for name, value in sandbox_variables(config).items():
        argv += ["--env", f"{name}={_escape_commas(value)}"]
    return [*argv, image_reference(image), *guard_argv(config.lease_s)]


def limits_argv(config: SandboxConfig) -> list[str]:
    """Returns the limits of a sandbox as words of apptainer's command line."""
    return [
        "--cpus",
        f"{config.cpus:g}",
        "--memory",
        str(int(config.memory_gb * 1024**3)),
        "--memory-swap",
        str(int(config.memory_gb * 1024**3)),
        "--pids-limit",
        str(config.max_processes),
    ]


def without_limits(argv: Sequence[str], config: SandboxConfig) -> list[str]:
    """Returns the command line without its limits, for hosts whose cgroups are not this user's."""
    limits = limits_argv(config)
    at = next(i for i in range(len(argv)) if list(argv[i : i + len(limits)]) == limits)
    return [*argv[:at], *argv[at + len(limits) :]]


def child_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that apptainer itself gets: its own and those of its user, and none for the container."""
    kept = ("PATH", "HOME", "USER", "TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
    apptainers = ("APPTAINER_CACHEDIR", "APPTAINER_TMPDIR", "APPTAINER_CONFIGDIR", "APPTAINER_DOCKER_USERNAME")
    return {name: given[name] for name in (*kept, *apptainers) if name in given}


def _escape_commas(value: str) -> str:
    """Returns the value of a variable with its commas escaped, because apptainer separates variables by commas."""
    return value.replace("\\", "\\\\").replace(",", "\\,")


_CHUNK_BYTES = 1 << 18
# A container gets so long to end by itself before it is killed.
_END_S = 10.0
# Where this host's cgroups give no limits, apptainer's message has one of these words.
_NO_LIMITS = re.compile(r"cgroup|systemd|dbus", re.I)


class ProcessStream:
    """This is the guard's stream: the pipes of a running apptainer."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read(self) -> bytes:
        """Returns the next bytes, which are empty at the end."""
        assert self.process.stdout is not None
        return await self.process.stdout.read(_CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        """Writes to the guard. Raises OSError where it is gone."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    @property
    def ended(self) -> bool:
        """Tells whether apptainer has ended."""
        return self.process.returncode is not None

    async def interrupt(self) -> None:
        """Sends STOP_SIGNAL to the container's first process, wherever below apptainer it is. Raises OSError."""
        first = await asyncio.to_thread(first_inside, self.process.pid)
        if first is not None:
            os.kill(first, signal.Signals[STOP_SIGNAL])

    async def close(self) -> None:
        """Ends the container, whose guard sees the end of its input. A container that does not end is killed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), _END_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


@dataclass(slots=True)
class _Started:
    name: str
    folder: Path
    guard: Guard
    errors: Path

    @property
    def exchange(self) -> Path:
        return self.folder / "exchange"


class ApptainerProvider(BaseProvider[ContainerSandbox]):
    """This makes sandboxes by apptainer (or singularity). Raises UserError when neither is on PATH."""

    def __init__(
        self, config: SandboxConfig, scratch: Path, *, warn: Callable[[str], None], program: str | None = None
    ) -> None:
        path = program or shutil.which("apptainer") or shutil.which("singularity")
        if path is None:
            raise UserError(
                "sandbox.kind=apptainer needs `apptainer` (or `singularity`) on PATH: load its module, or use "
                "sandbox=docker, sandbox=podman or runtime=job"
            )
        super().__init__(config)
        self._program = path
        self._warn = warn
        self._mounts = tuple(parse_mount(text) for text in config.mounts)
        self._folder = make_scratch(scratch, "apptainer")
        self._starts = asyncio.Semaphore(config.start_concurrency)
        self._open: dict[ContainerSandbox, _Started] = {}
        self._counter = itertools.count(1)
        self._limited = True
        self._beating: asyncio.Task[None] | None = None

    async def close(self) -> None:
        self._closed = True
        await close_all(list(self._open), self._warn)
        if self._beating is not None:
            self._beating.cancel()
        await asyncio.to_thread(remove_or_say, self._folder, self._warn)

    async def _prepare(self, workspace: Workspace, owner: str, door: Door | None) -> None:
        image_of(workspace, self._config, owner)
        if self._beating is None:
            self._beating = asyncio.ensure_future(beat_all(self._config.lease_s, self._guards))

    def _guards(self) -> list[Guard]:
        return [started.guard for started in self._open.values()]

    async def _make(self, workspace: Workspace, owner: str, door: Door | None) -> ContainerSandbox:
        async with self._starts:
            return await self._opened(workspace, image_of(workspace, self._config, owner), owner, door)

    async def _opened(self, workspace: Workspace, image: str, owner: str, door: Door | None) -> ContainerSandbox:
        folder = self._folder / f"{safe_name(owner)}-{next(self._counter)}"
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(asyncio.to_thread, remove_tree, folder)
            try:
                started = await self._start(folder, image, owner, undo)
                doorway = None
                if door:
                    doorway = Doorway(door, started.exchange, EXCHANGE)
                if doorway is not None:
                    undo.push_async_callback(doorway.close)
                    await doorway.open()
                if workspace.path is not None:
                    archive = await asyncio.to_thread(files.pack_folder, workspace.path, workspace.workdir)
                    await self._unpack(started, "/", archive)
            except OSError as error:
                raise SandboxError(f"{owner}: an apptainer sandbox could not be made: {error}") from error
            undo.pop_all()
        sandbox = ContainerSandbox(
            started.name,
            workspace.workdir,
            started.guard,
            Archives(lambda to, archive: self._unpack(started, to, archive), lambda path: self._pack(started, path)),
            self._config,
            self._closed_one,
            doorway=doorway,
        )
        self._open[sandbox] = started
        return sandbox

    async def _start(self, folder: Path, image: str, owner: str, undo: contextlib.AsyncExitStack) -> _Started:
        for part in ("overlay", "exchange"):
            (folder / part).mkdir(parents=True)
        prepare_folder(folder / "exchange")
        argv = exec_argv(self._program, image, self._config, self._mounts, folder / "exchange", folder / "overlay")
        if not self._limited:
            argv = without_limits(argv, self._config)
        started = _Started(folder.name, folder, await _spawn_guard(argv, folder / "errors"), folder / "errors")
        undo.push_async_callback(started.guard.close)
        said = HeadTail(4096)
        try:
            status, _ = await started.guard.run(":", said, workdir="/", timeout_s=self._config.start_timeout_s, env={})
        except SandboxError as error:
            reason = started.errors.read_text(errors="replace")[-800:].strip()
            if self._limited and _NO_LIMITS.search(reason):
                self._limited = False
                self._warn(f"sandbox.cpus, memory_gb and max_processes are not enforced by apptainer here: {reason}")
                await asyncio.to_thread(remove_tree, folder)
                return await self._start(folder, image, owner, undo)
            raise SandboxError(f"{owner}: apptainer could not start image {image!r}: {reason or error}") from error
        if status != 0:
            raise SandboxError(f"{owner}: image {image!r}: a first command ended with status {status}")
        return started

    async def _unpack(self, started: _Started, folder: str, archive: bytes) -> None:
        name = files.stage_name()
        await asyncio.to_thread((started.exchange / name).write_bytes, archive)
        try:
            await self._inside(started, f"tar -x -f {EXCHANGE}/{name} -C {folder}")
        finally:
            (started.exchange / name).unlink(missing_ok=True)

    async def _pack(self, started: _Started, path: str) -> bytes:
        name = files.stage_name()
        try:
            await self._inside(started, f"tar -c -f {EXCHANGE}/{name} -C / {path.lstrip('/')}")
            most_bytes = self._config.max_file_mb * 1024**2 + (1 << 16)
            return await asyncio.to_thread(
                read_confined, started.exchange, name, workdir=EXCHANGE, max_bytes=most_bytes
            )
        finally:
            (started.exchange / name).unlink(missing_ok=True)

    async def _inside(self, started: _Started, script: str) -> None:
        said = HeadTail(4096)
        status, _ = await started.guard.run(script, said, workdir="/", timeout_s=self._config.start_timeout_s, env={})
        if status != 0:
            raise SandboxError(f"sandbox {started.name}: files could not be moved: {said.text()[-300:]}")

    async def _closed_one(self, sandbox: ContainerSandbox) -> None:
        started = self._open[sandbox]
        try:
            await started.guard.close()
            await asyncio.to_thread(clear_away, started.folder, started.name)
        finally:
            del self._open[sandbox]
            self._places.release()


async def _spawn_guard(argv: list[str], errors: Path) -> Guard:
    with errors.open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            env=child_environment(os.environ),
            start_new_session=True,
        )
    stream = ProcessStream(process)
    return Guard(stream, interrupt=stream.interrupt)
