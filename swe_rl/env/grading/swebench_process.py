"""Asks the official harness's process, which is started when first needed and ended with this one.

Invariants:
- All gradings ask one process. It sees none of this process's environment.
- An answer that does not come in time ends the process; the next question starts a new one.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from swe_rl.config.folders import PACKAGE
from swe_rl.env.env import GradeError
from swe_rl.errors import UserError

_START_AND_ANSWER_S = 300.0  # a cold import of the harness from a network file system takes a minute


class UnreadableLogError(GradeError):
    """Says that a reader of the harness came to no end with a log.

    It raised, took too long, or its process died of it.
    """


class HarnessDiedError(GradeError):
    """Says that the harness's process ended before it had answered."""


class OfficialHarness:
    """Asks the official harness. It is thread-safe and blocks, so it is called off the event loop."""

    def __init__(self, timeout_s: float = _START_AND_ANSWER_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the harness's answer to a request.

        Raises UserError when `swebench` is not installed, UnreadableLogError for a log that a reader cannot read, and
        GradeError in the harness's own words.
        """
        line = json.dumps(request)
        with self._lock:
            answer = self._exchange(line)
        if "missing" in answer:
            raise UserError(
                f"env.grading=swebench needs the official harness, and it cannot be imported ({answer['missing']}): "
                "pip install 'swe_rl[swebench]'"
            )
        if "unreadable" in answer:
            raise UnreadableLogError(f"the official harness cannot read the log of the tests: {answer['unreadable']}")
        if "error" in answer:
            raise GradeError(f"the official harness refuses this instance: {answer['error']}")
        return answer

    def _exchange(self, line: str) -> dict[str, Any]:
        process = self._running()
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._timeout_s, give_up)
        timer.start()
        try:
            assert process.stdin and process.stdout
            process.stdin.write(line + "\n")
            process.stdin.flush()
            said = process.stdout.readline()
        except OSError:
            said = ""
        finally:
            timer.cancel()
        if said:
            answer: dict[str, Any] = json.loads(said)
            return answer
        self._stop()
        if late.is_set():
            raise UnreadableLogError(f"the official harness gave no answer within {self._timeout_s:.0f} s")
        raise HarnessDiedError("the official harness's process died; was it killed for memory?")

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "swe_rl.env.grading.swebench_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_worker_environment(),
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the run, which still may want a verdict while it stops
            )
            atexit.register(self._stop)
        return self._process

    def close(self) -> None:
        """Ends the harness's process."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        process = self._process
        self._process = None
        if process is None:
            return
        atexit.unregister(self._stop)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


def _worker_environment() -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(PACKAGE.parent),
        "PYTHONUTF8": "1",  # the harness reads logs in the locale's encoding
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
