"""One pytest session in a grading sandbox, and what it proves test by test.

Invariants:
- No word that the tested code printed takes part: the verdict comes over a channel between two processes of the
  grader's (see grading_parent), and a session that did not end properly passes nothing.
- That pytest could not even be started, before any tested code ran, is a GradeError.
"""

import json
import secrets
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rl.env.grading import grading_child, grading_parent, runner_process
from swe_rl.env.protocol import GradeError, Session
from swe_rl.sandbox.protocol import ExecResult

_FINISHED = frozenset({0, 1})  # 0: all passed, 1: some failed; everything else is not a finished session
# No plugin and no cache of the machine takes part: the same tree gives the same verdict.
ENVIRONMENT: Mapping[str, str] = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "400",
}
SESSION_ENVIRONMENT = {**ENVIRONMENT, "BASH_ENV": "", "PYTEST_ADDOPTS": "", "PYTHONPATH": "", "PYTHONSTARTUP": ""}
MAX_OUTPUT_BYTES = 8_000_000  # a verdict of 50 000 tests


def session_files() -> tuple[dict[str, bytes], str]:
    """The files that a session needs in the sandbox, and its secret."""
    secret = f"swe_rl-{secrets.token_hex(16)}"
    programs = {Path(str(module.__file__)).name: module.__file__ for module in (grading_child, grading_parent)}
    files = {name: runner_process.with_imports(Path(str(path))).encode() for name, path in programs.items()}
    return {**files, "secret": secret.encode()}, secret


def session_command(folder: str, files: Sequence[str]) -> str:
    """Runs `files` whole (everything without any), so that a suite's order stays its own."""
    arguments = ["-q", "--tb=line", "-p", "no:cacheprovider", *files]
    quoted = " ".join(shlex.quote(argument) for argument in arguments)
    return f"exec python -I {shlex.quote(folder)}/grading_parent.py {shlex.quote(folder)} {quoted}"


def read_session(result: ExecResult, secret: str) -> Session:
    """Raises GradeError when pytest did not start."""
    log, separator, answer = result.output.rpartition(f"\n{secret} ")
    if result.timed_out:
        return Session(findings=("timed_out",), log=result.output)
    if not separator:  # the grader's process was killed: for memory, or by what it tested
        if result.exit_code in (126, 127) or "No such file" in result.output:
            raise GradeError(
                f"the grader cannot run in the sandbox (status {result.exit_code}): {result.output[-500:]}"
            )
        return Session(findings=("grader_killed",), log=result.output, killed=True)
    try:
        verdict = json.loads(answer.partition("\n")[0])
    except ValueError:  # cut: what it tested made the line longer than an output may be
        return Session(findings=("grader_killed",), log=log, killed=True)
    if verdict["ready"] is None:
        raise GradeError(f"pytest cannot be started in the sandbox (status {verdict['status']}): {log[-500:]}")
    findings = _findings(verdict)
    killed = bool(findings) and verdict["status"] == -signal.SIGKILL
    return Session({} if findings else verdict["tests"], findings, log, killed)


def _findings(verdict: Mapping[str, object]) -> tuple[str, ...]:
    wrong = {
        "results_forged": bool(verdict["forged"]),
        "runner_changed": bool(verdict["changed"]),
        "ended_early": verdict["finished"] is None or verdict["finished"] != verdict["status"],
        "session_broken": verdict["finished"] is not None and verdict["finished"] not in _FINISHED,
    }
    return tuple(name for name, is_so in wrong.items() if is_so)
