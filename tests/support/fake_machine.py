"""Machines for fakes of services: commands run in them for real.

Invariants:
- A machine is a bubblewrap with files and processes of its own. Programs enter it as those of a service enter one. It
  needs root, bubblewrap and nsenter.
- As with a service, a broken connection ends no command, and a machine ends with its first process.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CAN_RUN = os.geteuid() == 0 and shutil.which("bwrap") is not None and shutil.which("nsenter") is not None
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}
IDLE = ("bash", "-c", "while :; do sleep 1; done")
_ROOT = ["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev"]
_ROOT += [word for name in ("bin", "sbin", "lib", "lib64") for word in ("--symlink", f"usr/{name}", f"/{name}")]
_ROOT += ["--tmpfs", "/tmp", "--dir", "/root"]


class FakeMachine:
    """`first` is its first process."""

    def __init__(self, first: Sequence[str] = IDLE, *, network: bool = True) -> None:
        read, write = os.pipe()
        words = ["bwrap", *_ROOT, "--unshare-pid", "--as-pid-1", "--die-with-parent", "--info-fd", str(write)]
        if not network:
            words.append("--unshare-net")
        self.process = subprocess.Popen([*words, *first], env=ENV, pass_fds=[write], start_new_session=True)
        os.close(write)
        with os.fdopen(read) as said:
            self.inside: int = json.loads(said.read())["child-pid"]
        # It is bubblewrap, which makes the files of the machine, until it becomes the first process.
        while Path(f"/proc/{self.inside}/cmdline").read_bytes().startswith(b"bwrap"):
            time.sleep(0.005)
        self.running: list[asyncio.subprocess.Process] = []
        self._enter = ["nsenter", "-t", str(self.inside), "-m", "-p", *([] if network else ["-n"]), "--"]

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    async def enter(self, argv: Sequence[str], **options: Any) -> asyncio.subprocess.Process:
        """Starts a program in it, with pipes for all that it reads and writes."""
        pipe = asyncio.subprocess.PIPE
        options = {"env": ENV, "stdin": pipe, "stdout": pipe, "stderr": pipe, "cwd": "/", **options}
        process = await asyncio.create_subprocess_exec(*self._enter, *argv, **options)
        self.running.append(process)
        return process

    def end(self) -> None:
        """Kills all that runs in it. The first process inside may not yet die with bubblewrap itself."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.inside, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


class FakeService:
    """`with` one: it serves on a loop of its own, in a thread."""

    def __enter__(self) -> Any:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(20)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _serve(self) -> None: ...

    async def _end(self) -> None: ...
