"""Calls the tested function in a process of its own, for a test file's checks.

This source is copied into test files behind `plain_values`, which the Python of a sandbox runs.

Invariants:
- The module of the solution is never imported where the checks run, so it cannot change what they use.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from swe_rl.env.humaneval.plain_values import _from_text, _to_text

_CHILD_PROGRAM = ""  # The text of `solution_child` is written here when the source is copied.


class _SolutionProcess:
    """Runs a function of a module beside this file. It is called as the function is, with plain values."""

    def __init__(self, module: str, function: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-B", "-c", _CHILD_PROGRAM, module, function],
            cwd=Path(__file__).resolve().parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __call__(self, *arguments: Any) -> Any:
        """Returns what the function returns. Raises RuntimeError where it raises, or where its process has ended."""
        sent = self._child.stdin
        received = self._child.stdout
        assert sent is not None and received is not None
        try:
            sent.write(_to_text(arguments) + "\n")
            sent.flush()
        except OSError:
            pass
        line = received.readline()
        if not line:
            raise RuntimeError("the process of the solution has ended")
        outcome, value = _from_text(line)
        if outcome != "returned":
            raise RuntimeError(f"the solution failed: {value}")
        return value

    def end(self) -> None:
        """Ends the process, whatever it is doing."""
        self._child.kill()
        self._child.communicate()
