"""Runs the programs of a build, and keeps their output for the message when they fail."""

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from swe_rl.sandbox.sandbox import SandboxError

# An error shows so many characters of the end of a program's output.
_SHOWN_CHARS = 800
# These programs run now; they are killed when the job ends.
_running: set[subprocess.Popen[bytes]] = set()
# Python 3.11 reads its own settings without a lock: of two threads that first ask for them at once, one finds none.
_finding_uv = threading.Lock()
# It is set once the job has ended; then no program is started any more.
_ended = threading.Event()


class BuildError(SandboxError):
    """Says that what a sandbox starts from could not be built. The message has the program's last words."""


def find_uv() -> str:
    """Returns the path of uv's program. Raises ImportError where uv is not installed."""
    with _finding_uv:
        from uv import find_uv_bin

        return str(find_uv_bin())


def run_program(
    argv: Sequence[str | Path],
    *,
    what: str,
    timeout_s: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Returns the program's standard output. Raises BuildError that begins with `what`."""
    command = [str(part) for part in argv]
    if _ended.is_set():
        raise BuildError(f"{what}: the job is at its end")
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise BuildError(f"{what}: `{command[0]}` cannot be run: {error.strerror or error}") from error
    with process, _running_now(process):
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{what}: `{Path(command[0]).name}` did not end within {timeout_s:.0f} s") from error
    # As text, subprocess would write other ends of lines: a diff of such a file would not fit it any more.
    text = out.decode("utf-8", "replace")
    if process.returncode:
        said = err.decode("utf-8", "replace").strip() or text.strip()
        words = " ".join(said[-_SHOWN_CHARS:].split())
        raise BuildError(f"{what}: `{' '.join(command)[:200]}` ended with status {process.returncode}: {words}")
    return text


@contextmanager
def _running_now(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the program when the block is left, whatever leaves it."""
    _running.add(process)
    try:
        if _ended.is_set():
            process.kill()
        yield
    finally:
        if process.poll() is None:
            process.kill()
        _running.discard(process)


@contextmanager
def ended_with_the_job() -> Iterator[None]:
    """Kills the programs of builds where the block is left by an error or Ctrl-C.

    Builds run in threads, which nothing can cancel. After such an end no program is started any more until the next
    such block.
    """
    _ended.clear()
    try:
        yield
    except BaseException:
        _ended.set()
        for process in list(_running):
            process.kill()
        raise
