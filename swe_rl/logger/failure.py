"""Says how findings and failures read: one paragraph each for a person, the traceback for us.

Invariants:
- A UserError or RunError never prints a traceback; anything else always does.
- Secrets of this process's environment are masked in both.
- Nothing here raises: a failure to report a failure would hide it.
"""

import errno
import os
import sys
import textwrap
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from swe_rl.check.findings import Finding, Host, Severity, report_lines
from swe_rl.check.packages import refuse_missing
from swe_rl.config.secrets import mask_text
from swe_rl.errors import RunError, SweRlError, UserError
from swe_rl.files.disk import DiskError, disk_error
from swe_rl.files.lines import lines_of
from swe_rl.host.terminal import is_live, terminal_width

# Text is this wide without a terminal, or on a wider one.
_WIDTH = 110
INTERRUPTED = 130
# A disk says so that it is full, or that nobody may write to it.
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_RED = "\x1b[31m"
_YELLOW = "\x1b[33m"
_PLAIN = "\x1b[0m"


def print_finding(finding: Finding, stream: TextIO, where: str = "") -> None:
    """Prints a finding as wide as the stream's terminal. `where` stands before it: the jobs that it is about."""
    head, *rest = report_lines(finding, terminal_width(stream))
    if is_live(stream, os.environ):
        color = _RED if finding.severity is Severity.error else _YELLOW
        head = head.replace(finding.severity, f"{color}{finding.severity}{_PLAIN}", 1)
    print("\n".join([f"{where}{head}", *rest]), file=stream)


def report_failure(error: BaseException, folder: Path | None = None) -> int:
    """Prints `error` to stderr, its traceback to the folder's run.log too, and returns the exit status."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, ModuleNotFoundError):
        error = refuse_missing(error, Host()) or error
    if isinstance(error, OSError):
        error = _disk_failure(error, folder) or error
    text = describe_failure(error)
    print(text, file=sys.stderr, flush=True)
    if folder is not None and not isinstance(error, UserError):
        _append_text(folder / "run.log", _traceback_text(error))
    if isinstance(error, SweRlError):
        return error.exit_status
    return 1


def _disk_failure(error: OSError, folder: Path | None) -> DiskError | None:
    """Returns a disk that takes nothing as the failure of a run, whoever wrote; None for any other error."""
    if error.errno not in _FULL_DISK:
        return None
    if isinstance(error.filename, str | Path):
        path = Path(error.filename)
    else:
        path = folder or Path.cwd()
    failure = disk_error(path, error)
    failure.__cause__ = error
    return failure


def describe_failure(error: BaseException) -> str:
    """Returns one paragraph, the chain of causes below it; a traceback where the fault is ours."""
    if isinstance(error, UserError):
        return _wrap_paragraph("error", str(error))
    if isinstance(error, RunError):
        return "\n".join([_wrap_paragraph("run failed", str(error)), *_cause_lines(error)])
    head = f"{type(error).__name__}: this is a fault of swe_rl, not of your configuration"
    return f"{_traceback_text(error)}{_wrap_paragraph('unexpected', head)}"


def _cause_lines(error: BaseException) -> list[str]:
    lines: list[str] = []
    cause = error.__cause__ or _shown_context(error)
    seen = {id(error)}
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        lines.append(_wrap_paragraph("  because", f"{type(cause).__name__}: {cause}"))
        cause = cause.__cause__ or _shown_context(cause)
    return lines


def _shown_context(error: BaseException) -> BaseException | None:
    if error.__suppress_context__:
        return None
    return error.__context__


def _wrap_paragraph(label: str, text: str) -> str:
    """Returns wrapped text, but a line that the author broke stays broken."""
    lines = lines_of(mask_text(f"{label}: {text}"), ends=False)
    columns = min(_WIDTH, terminal_width(sys.stderr, _WIDTH))
    return "\n".join(textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False) for line in lines)


def _traceback_text(error: BaseException) -> str:
    return mask_text("".join(traceback.format_exception(error)))


def _append_text(path: Path, text: str) -> None:
    with suppress(OSError), path.open("a", encoding="utf-8") as log:
        log.write(text)
