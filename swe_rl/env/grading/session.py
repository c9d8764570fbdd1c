"""Runs one pytest session in a grading sandbox, and reads what it proves test by test.

Invariants:
- No word that the tested code printed takes part: the verdict comes over a channel between two processes of the
  grader's (see grading_parent), and a session that did not end properly passes nothing.
- A GradeError says that pytest could not even be started, before any tested code ran.
"""

import json
import secrets
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rl.env.grading import grading_child, grading_parent, runner_process
from swe_rl.env.protocol import GradeError, PytestSession
from swe_rl.sandbox.protocol import ExecResult

_CANNOT_OPEN = 2  # Python exits so if its program is not there
_PASSED = 0
_FAILED = 1
_FINISHED = frozenset({_PASSED, _FAILED})  # a session with another status is not finished
# No plugin and no cache of the machine takes part: the same tree gives the same verdict.
ENVIRONMENT: Mapping[str, str] = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "400",
}
SESSION_ENVIRONMENT = {**ENVIRONMENT, "BASH_ENV": "", "PYTEST_ADDOPTS": "", "PYTHONPATH": "", "PYTHONSTARTUP": ""}
MAX_OUTPUT_BYTES = 8_000_000  # a verdict of 50 000 tests takes so much


def session_files() -> tuple[dict[str, bytes], str]:
    """Returns the files that a session needs in the sandbox, and its secret."""
    secret = f"swe_rl-{secrets.token_hex(16)}"
    programs = {Path(str(module.__file__)).name: module.__file__ for module in (grading_child, grading_parent)}
    files = {name: runner_process.with_imports(Path(str(path))).encode() for name, path in programs.items()}
    return {**files, "secret": secret.encode()}, secret


def session_command(folder: str, files: Sequence[str]) -> str:
    """Returns the command that runs `files` whole, so that a suite's order stays its own.

    Without files it runs everything.
    """
    arguments = ["-q", "--tb=line", "-p", "no:cacheprovider", *files]
    quoted = " ".join(shlex.quote(argument) for argument in arguments)
    return f"exec python -I {shlex.quote(folder)}/grading_parent.py {shlex.quote(folder)} {quoted}"


def read_session(result: ExecResult, secret: str) -> PytestSession:
    """Returns what a session proves. Raises GradeError when pytest did not start."""
    log, separator, answer = result.output.rpartition(f"\n{secret} ")
    if result.timed_out:
        return PytestSession(findings=("timed_out",), log=result.output)
    if not separator:  # the grader's process was killed: for memory, or by what it tested
        # Only the shell and Python itself, before any tested code, end so: what is printed proves nothing.
        is_absent = result.exit_code == _CANNOT_OPEN and "can't open file" in result.output
        if result.exit_code in (126, 127) or is_absent:
            raise GradeError(
                f"the grader cannot run in the sandbox (status {result.exit_code}): {result.output[-500:]}"
            )
        return PytestSession(findings=("grader_killed",), log=result.output, killed=True)
    try:
        verdict = json.loads(answer.partition("\n")[0])
    except ValueError:  # the tested code made the line longer than an output may be
        return PytestSession(findings=("grader_killed",), log=log, killed=True)
    if verdict["ready"] is None:
        raise GradeError(f"pytest cannot be started in the sandbox (status {verdict['status']}): {log[-500:]}")
    findings = _find_wrong(verdict)
    killed = bool(findings) and verdict["status"] == -signal.SIGKILL
    tests = {} if findings else verdict["tests"]
    return PytestSession(tests, findings, log, killed=killed)


def _find_wrong(verdict: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the names of what is wrong with a verdict of the parent process."""
    wrong = {
        "results_forged": bool(verdict["forged"]),
        "ended_early": verdict["finished"] is None or verdict["finished"] != verdict["status"],
        "session_broken": verdict["finished"] is not None and verdict["finished"] not in _FINISHED,
    }
    return tuple(name for name, is_so in wrong.items() if is_so)
