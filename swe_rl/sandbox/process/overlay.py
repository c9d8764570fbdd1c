"""This module shares prepared folders: each sandbox sees one as its own and writes beside it, and nothing is copied.

Invariants:
- The shared folder is never written, whatever a command does: the kernel's overlay puts it below what is written.
- The overlay is mounted in a mount namespace that only the descriptors here hold, and commands while they run: this
  host never sees it, and when this process ends in any way, by SIGKILL too, it is gone.
- A folder is copied where anything in it would look otherwise in an overlay than in a copy: what another user owns, a
  pipe, or a file that has another name elsewhere. Who makes a link to a file changes its ctime, and may write to it.
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

_MOUNT_S = 30.0  # The program that mounts takes some 20 ms. One that hangs is killed after this time.


class Namespace:
    """This is one sandbox's mount namespace with its overlays. Closing it, which may be done twice, ends them."""

    def __init__(self, descriptors: Sequence[int], work: int) -> None:
        """Takes over the descriptors of the mount namespace and, for an ordinary user, of the user namespace.

        `work` is a descriptor of the working copy in it.
        """
        self._descriptors = [*descriptors, work]
        self._lock = threading.Lock()

    def entered(self, nsenter: str) -> list[str]:
        """Returns the argv prefix of what is to run in the namespace."""
        mounts, *users = [f"/proc/{os.getpid()}/fd/{number}" for number in self._descriptors[:-1]]
        as_user = [f"--user={users[0]}", "--preserve-credentials"] if users else []
        return [nsenter, *as_user, f"--mount={mounts}", "--"]

    @contextlib.contextmanager
    def work(self) -> Iterator[int]:
        """Yields a descriptor of the working copy. Raises SandboxError once the namespace is closed."""
        with self._lock:
            if not self._descriptors:
                raise SandboxError("the sandbox is closed")
            number = os.dup(self._descriptors[-1])
        try:
            yield number
        finally:
            os.close(number)

    def close(self) -> None:
        """Closes the descriptors, so that the namespace ends with the last command in it."""
        with self._lock:
            descriptors = self._descriptors
            self._descriptors = []
        for number in descriptors:
            os.close(number)


def mount_overlays(root: Path, layers: Sequence[tuple[Path, Path]], uid: int | None) -> Namespace:
    """Shows each shared folder of `layers` at a new one right below `root`. Returns the namespace in which that is so.

    The first of `layers`, which are pairs (shared, new), is the working copy. Everything belongs to `uid`, which takes
    root, or to this user where that is None. The call blocks for some 20 ms. Raises OSError where this host does not
    allow it.
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
    """Tells whether an overlay would show the folder as a copy does (see the invariants).

    It is looked at once in a process, because what is shared is complete under its name, and nobody changes it.
    """
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
