"""This module says what a model is told about its command. The text is byte-stable, because prompts are built from it.

Invariants:
- Formatting has no effects, and the result never exceeds `max_chars`.
- A clean output of a successful command is passed on as it is, to the last newline.
- Terminal escape sequences and control characters never reach a prompt.
"""

import re

from swe_rl.sandbox.sandbox import ExecResult

NO_OUTPUT = "(no output)"
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def format_observation(result: ExecResult, max_chars: int) -> str:
    """Returns the output, with its middle left out if it is too long, and with a last line on a status other than 0 or
    a timeout."""
    output = _clean_output(result.output)
    last = _last_line(result)
    if not last:
        return shorten_text(output or NO_OUTPUT, max_chars)
    if output and not output.endswith("\n"):
        last = "\n" + last
    return shorten_text(output, max(0, max_chars - len(last))) + last[:max_chars]


def _last_line(result: ExecResult) -> str:
    if result.timed_out:
        return f"(timed out after {round(result.duration_s, 1):g}s)"
    if result.exit_code:
        return f"(exit status {result.exit_code})"
    return ""


def _clean_output(output: str) -> str:
    """Returns plain text: no escape sequences, every line end a newline, no other control characters than tabs."""
    text = _ESCAPES.sub("", output).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("", text)


def shorten_text(text: str, max_chars: int) -> str:
    """Returns `text`, or its head and its tail around a line that says how many characters are missing."""
    if len(text) <= max_chars:
        return text
    # This reserves room for the longest number; the real one is never longer.
    note = _left_out_note(len(text))
    kept = max_chars - len(note)
    if kept < 2:
        return text[:max_chars]
    head = (kept + 1) // 2
    tail = kept // 2
    return text[:head] + _left_out_note(len(text) - kept) + text[len(text) - tail :]


def _left_out_note(left_out: int) -> str:
    return f"\n... ({left_out} characters left out) ...\n"
