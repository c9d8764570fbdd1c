"""Starts pytest's process in a grading sandbox, checks what it tells and prints the verdict. It runs no tested code.

Invariants:
- This file stands alone (Python 3.6 and later): its text is put into sandboxes, with the texts of grading_child and
  runner_process.
- The verdict's line begins with a secret that only this process knows: it is read from a file that is gone before the
  tested process starts, and other processes cannot look into this one.
- The session's end counts only if the tested process says so, signed, and then ends with that status.
"""

import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from swe_rl.env.grading.runner_process import outcome_of_both, outcome_of_phases

TAIL_BYTES = 20000  # so much of the end of the output is kept
PR_SET_DUMPABLE = 4  # linux/prctl.h has this number
DRAIN_S = 2.0  # the readers get so long to read what is left in the pipes


class Channel:
    """Reads signed records in their order, and counts those that are forged."""

    def __init__(self, key: bytes) -> None:
        self._sign = hashlib.blake2b(key=key)
        self._count = 0
        self.forged = 0
        self.ready = None  # type: str | None
        self.finished = None  # type: int | None
        self.broken = []  # type: list[str]
        self.tests = {}  # type: dict[str, dict[str, str]]

    def take(self, line: bytes) -> None:
        """Reads one record. A line whose signature is wrong, or that comes after the end, counts as forged."""
        text, _, mark = line.rstrip(b"\n").rpartition(b" ")
        sign = self._sign.copy()
        sign.update(str(self._count + 1).encode() + b" " + text)
        # After the session's end only code that outlived it could still write.
        if not hmac.compare_digest(sign.hexdigest().encode(), mark) or self.finished is not None:
            self.forged += 1
            return
        self._count += 1
        record = json.loads(text.decode())
        if "test" in record:
            self._phase(record["test"], record["when"], record["outcome"])
        elif "broken" in record:
            self.broken.append(record["broken"])
        elif "ready" in record:
            self.ready = record["ready"]
        else:
            self.finished = record["finished"]

    def _phase(self, test: str, when: str, outcome: str) -> None:
        phases = self.tests.setdefault(test, {})
        phases[when] = outcome_of_both(phases.get(when, outcome), outcome)

    def outcomes(self) -> "dict[str, str]":
        """Returns the outcome of each test."""
        return {test: outcome_of_phases(phases) for test, phases in self.tests.items()}


def hide_process() -> None:
    """Keeps other processes of this user from reading this one's memory, descriptors or environment."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def keep_tail(stream: int, tail: "list[bytes]") -> None:
    """Reads a stream to its end and keeps its last bytes."""
    while True:
        data = os.read(stream, 65536)
        if not data:
            return
        tail[0] = (tail[0] + data)[-TAIL_BYTES:]


def take_all(stream: int, channel: Channel) -> None:
    """Reads the records of a stream to its end."""
    with os.fdopen(stream, "rb") as lines:
        for line in lines:
            channel.take(line)


def main() -> None:
    """Runs the tested process and prints the verdict behind the secret."""
    hide_process()
    folder = Path(sys.argv[1])
    arguments = sys.argv[2:]
    secret = (folder / "secret").read_text().strip()
    (folder / "secret").unlink()
    key = os.urandom(32)
    channel = Channel(key)
    tail = [b""]
    said, say = os.pipe()  # these carry signed records from the tested process to this one
    os.set_inheritable(say, True)
    process = subprocess.Popen(
        [sys.executable, str(folder / "grading_child.py"), str(say)] + arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=True,
        pass_fds=(say,),
        start_new_session=True,
    )
    os.close(say)
    assert process.stdin and process.stdout
    readers = [
        threading.Thread(target=keep_tail, args=(process.stdout.fileno(), tail), daemon=True),
        threading.Thread(target=take_all, args=(said, channel), daemon=True),
    ]
    for reader in readers:
        reader.start()
    with contextlib.suppress(OSError):
        process.stdin.write(key)
        process.stdin.close()
    status = process.wait()
    with contextlib.suppress(OSError):  # processes that it left behind would keep the pipes open
        os.killpg(process.pid, signal.SIGKILL)
    for reader in readers:
        reader.join(DRAIN_S)
    shutil.rmtree(str(folder), ignore_errors=True)
    verdict = {
        "status": status,
        "ready": channel.ready,
        "finished": channel.finished,
        "broken": channel.broken[:20],
        "forged": channel.forged,
        "tests": channel.outcomes(),
    }
    sys.stdout.write(tail[0].decode("utf-8", "replace"))
    sys.stdout.write(f"\n{secret} {json.dumps(verdict)}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
