"""Runs one pytest session in a grading sandbox, and reads what it proves test by test.

Invariants:
- No word that the tested code printed takes part, and a session that did not end properly passes nothing.
- A GradeError says that pytest could not be started.
- What disagrees has failed: a phase of a test is told of more than once where the test has parts (subtests), and one
  part that failed is enough. Beside a part that passed, one that the tests themselves skip says nothing.
"""

import json
import secrets
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_rl.env.env import GradeError, PytestSession
from swe_rl.env.grading import session_program
from swe_rl.env.patch_files import readable_text
from swe_rl.sandbox.sandbox import ExecResult, Sandbox

_FINISHED = (0, 1)  # All tests passed, or some failed. A session with another status is not finished.
_KILLED = 128 + signal.SIGKILL
# The parts of one test may differ so and agree. The last of them in this order is the outcome of the test.
_AGREEING = ("skipped", "xfailed", "passed")
_PHASES = {"setup", "call", "teardown"}
# No plugin and no cache of the machine takes part: the same tree gives the same verdict.
ENVIRONMENT: Mapping[str, str] = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "400",
}
_SESSION_ENVIRONMENT = {**ENVIRONMENT, "BASH_ENV": "", "PYTEST_ADDOPTS": "", "PYTHONPATH": "", "PYTHONSTARTUP": ""}
_MAX_OUTPUT_BYTES = 16_000_000  # The results of 50,000 tests take so much.
# What the tests print goes to a file, so that no process that they leave behind keeps the command from ending.
_RUN_PROGRAM = """
{program} >{folder}/log 2>&1 </dev/null
status=$?
tail -c 20000 {folder}/log
printf '\\n%s\\n' '{end_of_log}'
cat {folder}/results 2>/dev/null
exit $status
"""


def session_files() -> dict[str, bytes]:
    """Returns the files that a session needs in the sandbox."""
    return {"session_program.py": Path(str(session_program.__file__)).read_bytes()}


async def run_session(
    sandbox: Sandbox, folder: str, files: Sequence[str], timeout_s: float
) -> tuple[PytestSession, float]:
    """Runs `files` whole, so that a suite's order stays its own, and without files everything.

    `folder` holds `session_files`. Returns what the session proves, and how many seconds it took. Raises GradeError
    when pytest did not start, SandboxError.
    """
    arguments = ["-q", "--tb=line", "-p", "no:cacheprovider", *files]
    program = shlex.join(["python", "-I", f"{folder}/session_program.py", f"{folder}/results", *arguments])
    end_of_log = f"swe_rl {secrets.token_hex(16)}"
    command = _RUN_PROGRAM.format(folder=shlex.quote(folder), program=program, end_of_log=end_of_log)
    result = await sandbox.exec(
        command, timeout_s=timeout_s, env=_SESSION_ENVIRONMENT, max_output_bytes=_MAX_OUTPUT_BYTES
    )
    return read_session(result, end_of_log), result.duration_s


def read_session(result: ExecResult, end_of_log: str) -> PytestSession:
    """Returns what a session proves. Raises GradeError when pytest did not start."""
    log, separator, results = result.output.partition(f"\n{end_of_log}\n")
    if result.timed_out:
        return PytestSession(findings=("timed_out",), log=log)
    if not separator:  # the shell was killed: for memory, or by what was tested
        return PytestSession(findings=("grader_killed",), log=log, killed=True)
    phases: dict[str, dict[str, str]] = {}
    is_started = False
    finished = None
    for record in _records_of(results):
        if "test" in record:
            of_test = phases.setdefault(readable_text(str(record["test"])), {})
            when = str(record.get("when"))
            outcome = str(record.get("outcome", "failed"))
            of_test[when] = _outcome_of_both(of_test.get(when, outcome), outcome)
        is_started = is_started or "ready" in record
        finished = record.get("finished", finished)
    is_killed = result.exit_code == _KILLED
    if not is_started and not is_killed:
        raise GradeError(f"pytest cannot be started in the sandbox (status {result.exit_code}): {log[-500:]}")
    if finished not in _FINISHED or finished != result.exit_code or result.truncated_bytes:
        return PytestSession(findings=("ended_early",), log=log, killed=is_killed, unclear=bool(phases))
    return PytestSession({test: _outcome_of_phases(of_test) for test, of_test in phases.items()}, log=log)


def _records_of(results: str) -> Iterator[dict[str, Any]]:
    """Yields the records of a file into which tested code may have written."""
    for line in results.split("\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _outcome_of_both(first: str, second: str) -> str:
    """Returns what two outcomes come to that were told of the same phase of a test."""
    if first == second:
        return first
    if first in _AGREEING and second in _AGREEING:
        return max(first, second, key=_AGREEING.index)
    return "failed"


def _outcome_of_phases(phases: Mapping[str, str]) -> str:
    """Returns the outcome of a test: that of its call, unless its set-up or its end did not pass."""
    words = list(phases.values())
    if "failed" in words:
        return "failed"
    if phases.get("call", "passed") != "passed":
        return phases["call"]
    for word in words:
        if word != "passed":
            return word
    return "passed" if set(phases) == _PHASES else "failed"
