"""A sandbox of your own: a plain folder and plain processes. UNSAFE: a command may do all that you may do."""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

from swe_rl.api import Door, ExecResult, Workspace, direct_url


class MySandbox:
    """Copies the folder of a task; `path` is what commands have as their PATH."""

    has_network = has_door = True  # those of this machine

    def __init__(self, scratch: Path, path: str = "") -> None:
        self._scratch, self._path = scratch, path or os.environ["PATH"]

    async def create(self, workspace: Workspace, owner: str, door: Door | None) -> "Folder":
        folder = Path(tempfile.mkdtemp(dir=self._scratch.resolve()))
        await asyncio.to_thread(shutil.copytree, workspace.path, folder, symlinks=True, dirs_exist_ok=True)
        return Folder(folder, {"PATH": self._path, "HOME": str(folder)}, direct_url(door) if door else None)

    async def close(self) -> None: ...


class Folder:
    def __init__(self, folder: Path, env: dict[str, str], door_url: str | None) -> None:
        self.sandbox_id, self.workdir, self.door_url = folder.name, str(folder), door_url
        self._folder, self._env = folder, env

    async def exec(self, command: str, timeout_s: float, env: dict[str, str]) -> ExecResult:
        with tempfile.TemporaryFile() as output:
            streams = {"stdin": asyncio.subprocess.DEVNULL, "stdout": output, "stderr": output}
            streams |= {"cwd": self._folder, "env": {**self._env, **env}, "start_new_session": True}
            process = await asyncio.create_subprocess_exec("bash", "-c", command, **streams)
            try:
                done, _ = await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=timeout_s)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # but what began a session of its own gets away
            status, text = await process.wait(), os.pread(output.fileno(), 2**24, 0).decode(errors="replace")
            return ExecResult(abs(status) + 128 * (status < 0), text, timed_out=not done)

    def _inside(self, path: str) -> Path:
        return self._folder / (self._folder / path).resolve().relative_to(self._folder)  # ValueError: it leads out

    async def write_file(self, path: str, content: bytes) -> None:
        file = self._inside(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    async def read_file(self, path: str) -> bytes:
        return self._inside(path).read_bytes()

    async def close(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
