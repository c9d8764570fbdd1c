"""Reads in a vLLM server's log why it ended, or how far it has come. It is pure.

Invariants:
- The cause is the first error of the innermost process, not the wrappers that follow ("see root cause above").
- Only the tail of a log is read; lines come without the server's own prefixes, shortened.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from swe_rl.files.lines import printed_lines

_TAIL_BYTES = 256 * 1024
_SHOWN_CHARS = 300
_SHOWN_LINES = 4
_PREFIX = re.compile(
    r"^(\(\w[\w .:-]* pid=\d+\)\s*)?((INFO|WARNING|ERROR|DEBUG|CRITICAL) [\d-]+ [\d:.]+ )?(\[[\w./]+:\d+\]\s?)?"
)
# pydantic writes this behind its reasons.
_OF_PYDANTIC = re.compile(r" \[type=\w+, input_value=.*$")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ERROR = re.compile(
    r"^[\w.]*(Error|Exception|Interrupt|NotFound|Failure)\b(: .*)?$|^\w*[Ee]rror: |^Killed$|Segmentation fault"
    rf"|(died|exited) unexpectedly|^(Value error|Assertion failed), |{_OF_PYDANTIC.pattern}"
)
_WRAPPERS = re.compile(
    r"root cause above|Engine core initialization failed|EngineDeadError|RuntimeError: cancelled"
    r"|ValidationError: \d+ validation error"  # pydantic's, whose reasons follow
)


class Cause(StrEnum):
    out_of_memory = "out_of_memory"
    no_compiler = "no_compiler"
    port_in_use = "port_in_use"
    # A release of vLLM takes GPUs by number only.
    mig_name = "mig_name"
    unknown = "unknown"


_SIGNS = {
    Cause.no_compiler: re.compile(
        r"Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler|fatal error: Python\.h"
        r"|No such file or directory: '([^']*/)?(gcc|g\+\+|cc|c\+\+|clang|nvcc|ptxas|ninja)'"
        r"|(gcc|cc|g\+\+|nvcc): (command )?not found|cannot find -lcuda|Could not find nvcc|Ninja is required"
        r"|unsupported GNU version|gcc versions later than"
    ),
    Cause.out_of_memory: re.compile(
        r"OutOfMemoryError|CUDA out of memory|No available memory for the cache blocks|Cannot allocate memory"
        r"|less than desired (GPU|CPU) memory|KV cache is needed, which is larger|larger than the maximum number of tok"
    ),
    Cause.port_in_use: re.compile(r"[Aa]ddress already in use"),
    Cause.mig_name: re.compile(r"invalid literal for int\(\) with base 10: 'MIG-|Non-integer device ID 'MIG-"),
}
_WAY_OUT = {
    Cause.out_of_memory: "lower engine.gpu_memory_utilization if others use the GPU, or engine.max_model_len, "
    "engine.max_num_seqs, or raise layout.engine_tp",
    Cause.no_compiler: "engine.enforce_eager=true needs no compiler for the model; load a compiler's module "
    "(hardware.modules) for the rest",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    cause: Cause
    lines: tuple[str, ...]

    def __str__(self) -> str:
        last_words = " | ".join(self.lines) or "its log says nothing"
        way_out = _WAY_OUT.get(self.cause)
        if way_out:
            return f"{last_words}; {way_out}"
        return last_words


def diagnose_start(text: str) -> Diagnosis:
    """Returns the diagnosis of the last start, whose log `text` ends with."""
    lines = [_plain_line(line) for line in printed_lines(text)]
    cause = next((cause for cause, sign in _SIGNS.items() if sign.search(text)), Cause.unknown)
    sign = _SIGNS.get(cause)
    shown = [line for line in lines if sign is not None and sign.search(line)][:1]
    errors = [line for line in lines if _ERROR.search(line) and not _WRAPPERS.search(line)]
    shown += [line for line in dict.fromkeys(errors) if line not in shown]
    if not shown:
        shown = [line for line in lines if line][-_SHOWN_LINES:]
    return Diagnosis(cause, tuple(_shorten_line(line) for line in shown[:_SHOWN_LINES]))


def last_line(text: str) -> str:
    """Returns the last line that says anything, as far as a terminal shows it; it is for progress."""
    return next(
        (_shorten_line(line, 100) for line in map(_plain_line, reversed(printed_lines(text))) if line), "no output"
    )


def read_tail(path: Path, since_bytes: int = 0) -> str:
    """Returns at most 256 KiB from the end of the log, not before `since_bytes`; empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(since_bytes, size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _plain_line(line: str) -> str:
    line = _ANSI.sub("", line.rpartition("\r")[2] if not line.endswith("\r") else line)
    return _PREFIX.sub("", line).strip()


def _shorten_line(line: str, limit: int = _SHOWN_CHARS) -> str:
    line = _OF_PYDANTIC.sub("", line)
    if len(line) <= limit:
        return line
    return f"{line[:limit]}..."
