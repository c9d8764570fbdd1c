"""How findings and failures read: one paragraph each for a person, the traceback for us.

Invariants:
- A UserError or RunError never prints a traceback; anything else always does.
- Secrets of this process's environment are masked in both.
- Nothing here raises: a failure to report a failure would hide it.
"""

import os
import sys
import textwrap
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from swe_rl.check.findings import Finding, Host, Severity, report_lines
from swe_rl.check.packages import refusal
from swe_rl.config.secrets import mask_text
from swe_rl.errors import RunError, SweRlError, UserError
from swe_rl.host.terminal import is_live, width

_WIDTH = 110  # without a terminal, or on a wider one
INTERRUPTED = 130
_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"


def print_finding(finding: Finding, stream: TextIO, where: str = "") -> None:
    """As wide as the stream's terminal; `where` stands before it: the jobs that it is about."""
    head, *rest = report_lines(finding, width(stream))
    if is_live(stream, os.environ):
        color = _RED if finding.severity is Severity.error else _YELLOW
        head = head.replace(finding.severity, f"{color}{finding.severity}{_PLAIN}", 1)
    print("\n".join([f"{where}{head}", *rest]), file=stream)


def report(error: BaseException, folder: Path | None = None) -> int:
    """Prints `error` to stderr, its traceback to the folder's run.log too, and returns the exit status."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, ModuleNotFoundError):
        error = refusal(error, Host()) or error
    text = describe(error)
    print(text, file=sys.stderr, flush=True)
    if folder is not None and not isinstance(error, UserError):
        _append(folder / "run.log", _trace(error))
    return error.exit_status if isinstance(error, SweRlError) else 1


def describe(error: BaseException) -> str:
    """One paragraph, the chain of causes below it; a traceback where the fault is ours."""
    if isinstance(error, UserError):
        return _paragraph("error", str(error))
    if isinstance(error, RunError):
        return "\n".join([_paragraph("run failed", str(error)), *_causes(error)])
    head = f"{type(error).__name__}: this is a fault of swe_rl, not of your configuration"
    return f"{_trace(error)}{_paragraph('unexpected', head)}"


def _causes(error: BaseException) -> list[str]:
    lines: list[str] = []
    cause, seen = error.__cause__ or _context(error), {id(error)}
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        lines.append(_paragraph("  because", f"{type(cause).__name__}: {cause}"))
        cause = cause.__cause__ or _context(cause)
    return lines


def _context(error: BaseException) -> BaseException | None:
    return None if error.__suppress_context__ else error.__context__


def _paragraph(label: str, text: str) -> str:
    """Wrapped, but a line that the author broke stays broken."""
    lines = mask_text(f"{label}: {text}").splitlines()
    columns = min(_WIDTH, width(sys.stderr, _WIDTH))
    return "\n".join(textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False) for line in lines)


def _trace(error: BaseException) -> str:
    return mask_text("".join(traceback.format_exception(error)))


def _append(path: Path, text: str) -> None:
    with suppress(OSError), path.open("a", encoding="utf-8") as log:
        log.write(text)
