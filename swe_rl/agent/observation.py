"""What a model is told about its command: byte-stable, because prompts are built from it.

Invariants:
- Pure; the result never exceeds `max_chars`.
- A clean output of a successful command is passed on as it is, to the last newline.
- Terminal escape sequences and control characters never reach a prompt.
"""

import re

from swe_rl.sandbox.protocol import ExecResult

NO_OUTPUT = "(no output)"
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def format_observation(result: ExecResult, max_chars: int) -> str:
    """The output, its middle left out where too long, and a last line on a status other than 0 or a timeout."""
    output = _clean(result.output)
    last = _last_line(result)
    if not last:
        return shorten(output or NO_OUTPUT, max_chars)
    if output and not output.endswith("\n"):
        last = "\n" + last
    return shorten(output, max(0, max_chars - len(last))) + last[:max_chars]


def _last_line(result: ExecResult) -> str:
    if result.timed_out:
        return f"(timed out after {round(result.duration_s, 1):g}s)"
    return f"(exit status {result.exit_code})" if result.exit_code else ""


def _clean(output: str) -> str:
    """Plain text: no escape sequences, line ends as \\n, no other control characters than tabs."""
    text = _ESCAPES.sub("", output).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("", text)


def shorten(text: str, max_chars: int) -> str:
    """`text`, or its head and its tail around a line that says how many characters are missing."""
    if len(text) <= max_chars:
        return text
    note = _note(len(text))  # reserves room for the longest number; the real one is never longer
    kept = max_chars - len(note)
    if kept < 2:
        return text[:max_chars]
    head, tail = (kept + 1) // 2, kept // 2
    return text[:head] + _note(len(text) - kept) + text[len(text) - tail :]


def _note(left_out: int) -> str:
    return f"\n... ({left_out} characters left out) ...\n"
