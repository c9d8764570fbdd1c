"""This module runs a program under pdb, and reads and sets its breakpoints. It runs in the sandbox.

Invariants:
- Standard library only, and Python 3.6: it runs in the environments of the repositories that are debugged.
- The program sees no terminal: nothing is coloured, paged or echoed.
- No read waits longer than its limit, whatever the program does.
"""
# ruff: noqa: UP006, UP035, UP045 - of Python 3.6

import ast
import contextlib
import difflib
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

_PROMPT = re.compile(r"(?:\(Pdb(?:\+\+)?\)|ipdb>) $")
_ROW = re.compile(r"^(\d+)\s+breakpoint\s+(keep|del)\s+(yes|no)\s+at (.+):(\d+)$")
_CONDITION = re.compile(r"^\s+stop only if (.+)$")
# A program that hangs has so long to show where.
_INTERRUPT_S = 2.0
# A command's output may be endless. Its end is what a model needs.
_MOST_BYTES = 200000


class Debuggee:
    def __init__(self, entrypoint: str, folder: str) -> None:
        env = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1", NO_COLOR="1", PYTHON_COLORS="0")
        # pytest would else keep the prompt for itself and give pdb nothing to read.
        env["PYTEST_ADDOPTS"] = (env.get("PYTEST_ADDOPTS", "") + " --capture=no -p no:cacheprovider").strip()
        self._process = subprocess.Popen(
            ["bash", "-c", entrypoint],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def status(self) -> Optional[int]:
        """Returns the program's exit status, or None while it runs."""
        return self._process.poll()

    def ask(self, command: str, ends_s: float) -> Tuple[str, bool]:
        assert self._process.stdin is not None
        # The program may have ended, and reading says so.
        with contextlib.suppress(OSError):
            self._process.stdin.write((command + "\n").encode("utf-8", "replace"))
            self._process.stdin.flush()
        return self.read(ends_s)

    def read(self, ends_s: float) -> Tuple[str, bool]:
        """Returns what the program says, and whether it came to a prompt, or to its end, before `ends_s` (of
        time.monotonic)."""
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        said = b""
        while True:
            if select.select([stream], [], [], max(0.0, min(0.5, ends_s - time.monotonic())))[0]:
                part = os.read(stream, 65536)
                said = (said + part)[-_MOST_BYTES:]
                if not part:
                    self._process.wait()
                    return _decode_output(said), True
                if _PROMPT.search(_decode_output(said[-64:])) and not select.select([stream], [], [], 0.02)[0]:
                    return _PROMPT.sub("", _decode_output(said)).rstrip("\n"), True
            elif self.status is not None:
                # The program has ended, and a child of it holds the pipe.
                return _decode_output(said), True
            if time.monotonic() >= ends_s:
                return _decode_output(said), False

    def kill(self, show: bool = False) -> str:
        """Ends the program. With `show`, it is interrupted first, and the text in which pdb tells where it was is
        returned."""
        place = ""
        if show and self.status is None:
            self._signal(signal.SIGINT)
            said, came = self.read(time.monotonic() + _INTERRUPT_S)
            place = said if came and self.status is None else ""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        return place

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, number)

    def breakpoints(self, ends_s: float) -> List[Dict[str, Any]]:
        """Returns the breakpoints, without those that are for one stop only."""
        points: List[Dict[str, Any]] = []
        kept = False
        for line in self.ask("break", ends_s)[0].split("\n"):
            row = _ROW.match(line)
            condition = _CONDITION.match(line)
            if row:
                kept = row.group(2) == "keep"
                if kept:
                    path = row.group(4)
                    on = row.group(3) == "yes"
                    line_number = body_line(path, int(row.group(5)))
                    points.append({"path": path, "line": line_number, "condition": "", "on": on})
            elif condition and kept:
                points[-1]["condition"] = condition.group(1)
        return points

    def set_breakpoint(self, point: Dict[str, Any], ends_s: float) -> None:
        condition = ", " + point["condition"] if point["condition"] else ""
        said, _ = self.ask("break {}:{}{}".format(point["path"], point["line"], condition), ends_s)
        number = re.search(r"Breakpoint (\d+) at", said)
        if number and not point["on"]:
            self.ask("disable " + number.group(1), ends_s)


def body_line(path: str, line: int) -> int:
    """Returns the first line of a function's body if `line` is its `def`: a breakpoint of the function stops there. Any
    other line is returned itself."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return line
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno == line < node.body[0].lineno:
            documented = ast.get_docstring(node) is not None and len(node.body) > 1
            return node.body[1 if documented else 0].lineno
    return line


def moved_line(before: List[str], now: List[str], line: int) -> int:
    """Returns where line `line` (1-based) of `before` is in `now`. If the line is gone, it is the line in its place."""
    for kind, start, end, new_start, new_end in difflib.SequenceMatcher(None, before, now, False).get_opcodes():
        if start <= line - 1 < end:
            new = new_start + line - 1 - start
            return 1 + (new if kind == "equal" else max(0, min(new, new_end - 1, len(now) - 1)))
    return max(1, min(line, len(now)))


def _decode_output(said: bytes) -> str:
    return said.decode("utf-8", "replace")
