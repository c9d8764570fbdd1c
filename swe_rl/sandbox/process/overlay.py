"""Prepared folders that sandboxes share: each sees one as its own and writes beside it, and nothing is copied.

Invariants:
- The shared folder is never written, whatever a command does: the kernel's overlay puts it below what is written.
- The overlay is mounted in a mount namespace that only the descriptors here hold, and commands while they run: this
  host never sees it, and when this process ends in any way, by SIGKILL too, it is gone.
- A folder with anything in it that an overlay would show otherwise than a copy is copied: another owner's, a pipe, or
  a file that has another name elsewhere. Who makes a link to that one changes its ctime, and may write to it.
"""

import contextlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from swe_rl.sandbox.process import overlay_program
from swe_rl.sandbox.protocol import SandboxError

_MOUNT_S = 30.0


class Namespace:
    """Of one sandbox, with its overlays. Closing it, which may be done twice, ends them."""

    def __init__(self, descriptors: Sequence[int], work: int) -> None:
        """`descriptors`: of the mount namespace and, for an ordinary user, of the user namespace; `work`: of the
        working copy in it."""
        self._descriptors = [*descriptors, work]
        self._lock = threading.Lock()

    def entered(self, nsenter: str) -> list[str]:
        """The argv prefix of what is to run in it."""
        mounts, *users = [f"/proc/{os.getpid()}/fd/{number}" for number in self._descriptors[:-1]]
        as_user = [f"--user={users[0]}", "--preserve-credentials"] if users else []
        return [nsenter, *as_user, f"--mount={mounts}", "--"]

    @contextlib.contextmanager
    def work(self) -> Iterator[int]:
        """A descriptor of the working copy. Raises SandboxError once it is closed."""
        with self._lock:
            if not self._descriptors:
                raise SandboxError("the sandbox is closed")
            number = os.dup(self._descriptors[-1])
        try:
            yield number
        finally:
            os.close(number)

    def close(self) -> None:
        with self._lock:
            descriptors, self._descriptors = self._descriptors, []
        for number in descriptors:
            os.close(number)


def mounted(root: Path, layers: Sequence[tuple[Path, Path]], uid: int | None) -> Namespace:
    """Shows each folder of this machine at a new one right below `root`: (shared, new). Blocking, some 20 ms.

    `uid`: whom everything is to belong to, as root; None: this user. The first of `layers` is the working copy. Raises
    OSError where this host does not let it.
    """
    named = [text for shared, new in layers for text in (str(shared), new.name)]
    program = [sys.executable, "-I", "-S", overlay_program.__file__, str(root), "-" if uid is None else str(uid)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    descriptors: list[int] = []
    with subprocess.Popen([*program, *named], text=True, **pipes) as process:  # type: ignore[call-overload]
        timer = threading.Timer(_MOUNT_S, process.kill)
        timer.start()
        try:
            said = process.stdout.readline().strip()
            if said != "ready":
                raise OSError(f"no overlay can be mounted: {said or 'the program died'}")
            for name in ("mnt",) if uid is not None else ("mnt", "user"):
                descriptors.append(os.open(f"/proc/{process.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))
            seen = f"/proc/{process.pid}/root{layers[0][1]}"
            return Namespace(descriptors, os.open(seen, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError:
            for number in descriptors:
                os.close(number)
            raise
        finally:
            timer.cancel()
            process.stdin.close()


@cache
def can_be_shared(folder: Path) -> bool:
    """Looked at once in a process: what is shared is complete under its name, and nobody changes it."""
    owner = os.geteuid(), os.getegid()
    waiting = [os.fspath(folder)]
    try:
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    mode = status.st_mode
                    is_folder = stat.S_ISDIR(mode)
                    plain = is_folder or stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and status.st_nlink == 1)
                    if not plain or (status.st_uid, status.st_gid) != owner:
                        return False
                    if is_folder:
                        waiting.append(entry.path)
    except OSError:
        return False
    return True
