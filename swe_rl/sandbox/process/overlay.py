"""This module shares prepared folders: each sandbox sees one as its own and writes beside it, and nothing is copied.

Invariants:
- The shared folder is never written, whatever a command does: the kernel's overlay puts it below what is written.
- The overlay is mounted in a mount namespace that only the descriptors here hold, and commands while they run: this
  host never sees it, and when this process ends in any way, by SIGKILL too, it is gone.
- A folder is copied where anything in it would look otherwise in an overlay than in a copy: what another user owns, a
  pipe, or a file that has another name elsewhere. Who makes a link to a file changes its ctime, and may write to it.
"""

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from swe_rl.sandbox.process import overlay_program
from swe_rl.sandbox.sandbox import SandboxError

_MOUNT_S = 30.0  # A mount takes a few milliseconds. One that hangs is given up after this time.
_MOST_DESCRIPTORS = 3  # These are two namespaces and a folder.


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
        if users:
            as_user = [f"--user={users[0]}", "--preserve-credentials"]
        else:
            as_user = []
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


@dataclass(frozen=True, slots=True)
class Layer:
    """This is a folder below an overlay, which nobody writes."""

    folder: Path
    owner: int | None = None  # This user wrote it as a sandbox; None says that this process's user did.


@dataclass(frozen=True, slots=True)
class Stack:
    """These are the folders below one overlay, the uppermost first."""

    name: str  # The overlay is seen in the folder of this name, below the root of its sandbox.
    layers: tuple[Layer, ...]

    @property
    def upper(self) -> str:
        """Returns the name of the folder, below the same root, for what is written."""
        return f"upper-{self.name}"

    @property
    def spare(self) -> str:
        """Returns the name of the folder that the kernel's overlay needs for itself."""
        return f"spare-{self.name}"


class Mounter:
    """This mounts overlays by a process of its own, which starts with the first one and ends with `close`, or with this
    process. Threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def mount(self, root: Path, stacks: Sequence[Stack], uid: int | None) -> Namespace:
        """Shows each of `stacks` at its folder right below `root`. Returns the namespace in which that is so.

        The first stack is the working copy. Everything belongs to `uid`, which takes root, or to this user where that
        is None. What was written before is seen where the folder for it is there. The call blocks for a few
        milliseconds. Raises OSError where this host does not allow it.
        """
        wanted = [[stack.name, [[str(layer.folder), layer.owner] for layer in stack.layers]] for stack in stacks]
        text = json.dumps({"root": str(root), "uid": uid, "stacks": wanted}).encode()
        if len(text) > overlay_program.MOST_BYTES:
            raise OSError("no overlay can be mounted: it has too many layers")
        said, descriptors, requests = self._answer_of(text)
        if not said:
            # Nobody took the request: the program was killed, and the processes that wait for requests with it.
            self._forget(requests)
            said, descriptors, _ = self._answer_of(text)
        if said != b"ready":
            raise OSError(f"no overlay can be mounted: {said.decode(errors='replace') or 'the program died'}")
        return Namespace(descriptors[:-1], descriptors[-1])

    def _answer_of(self, text: bytes) -> tuple[bytes, list[int], socket.socket]:
        """Returns what is answered, with descriptors, and where it was asked. It is empty if the program died."""
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with answers:
            with theirs:
                requests = self._ask(text, theirs)
            answers.settimeout(_MOUNT_S)
            said, descriptors, _, _ = socket.recv_fds(answers, 1 << 12, _MOST_DESCRIPTORS)
        return said, descriptors, requests

    def close(self) -> None:
        """Ends the process. What was mounted stays."""
        with self._lock:
            if self._requests is not None:
                self._requests.close()
            if self._process is not None:
                self._process.wait()
            self._process = None
            self._requests = None

    def _ask(self, text: bytes, answers: socket.socket) -> socket.socket:
        """Sends a request, and returns where it was sent. A process that has died, or that another process started
        before a fork, is replaced."""
        for last_try in (False, True):
            requests = self._started()
            try:
                socket.send_fds(requests, [text], [answers.fileno()])
            except BrokenPipeError:
                self._forget(requests)
                if last_try:
                    raise
            else:
                return requests
        raise AssertionError("unreachable")

    def _started(self) -> socket.socket:
        with self._lock:
            if self._requests is None:
                self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                program = [sys.executable, "-I", "-S", overlay_program.__file__, str(theirs.fileno())]
                with theirs:
                    self._process = subprocess.Popen(
                        program, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True, cwd="/"
                    )
            return self._requests

    def _forget(self, requests: socket.socket) -> None:
        with self._lock:
            if self._requests is requests:
                requests.close()
                self._requests = None
                if self._process is not None:
                    self._process.wait()
                self._process = None


def mount_overlays(root: Path, stacks: Sequence[Stack], uid: int | None) -> Namespace:
    """Mounts once, as `Mounter.mount` does, with a process for this alone. Raises OSError."""
    with contextlib.closing(Mounter()) as mounter:
        return mounter.mount(root, stacks, uid)


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
