"""This module knows where this process prints to: how wide it is, whether it may be redrawn, and whether anybody still
reads.

Invariants:
- A reader that goes away (`| head`) ends the showing, never the job: what is printed after that is dropped without a
  word, here and at the interpreter's end, and the exit status stays the job's own.
- A standard stream that was closed before (`>&-`) is /dev/null: no file of the job's ever gets its number.
- If a full disk or a lost terminal takes a run's lines, nothing ends. For a job that only shows, it is the failure.
- Standard library only: `--help` imports this module.
"""

import io
import os
import select
import sys
import textwrap
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

# A stream that is no terminal is taken to be so wide.
WIDTH = 80
# With fewer columns beside its name, a text is below it.
_LEAST_BESIDE = 30


class _Outlet(io.FileIO):
    """Writes to a file descriptor whose reader may leave, and which may take no more."""

    # Says why something was not written, unless nobody reads.
    lost: OSError | None = None

    def write(self, data: "bytes | bytearray | memoryview") -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes
        except BlockingIOError:
            raise
        except OSError as error:
            _Outlet.lost = error
            return memoryview(data).nbytes


def status_after_output(status: int) -> int:
    """Returns the exit status of a job that only shows: `status`, or 1 if standard output did not take all of it."""
    sys.stdout.flush()
    if _Outlet.lost is None:
        return status
    print(f"error: standard output cannot be written: {_Outlet.lost.strerror}", file=sys.stderr, flush=True)
    return status or 1


def outlive_readers() -> None:
    """Replaces both output streams of this process. Streams that somebody has put in place of the first ones are left
    alone."""
    _replace_closed()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _make_outliving(stream))


def _replace_closed() -> None:
    """Opens /dev/null for closed streams. The lowest free number is the one that was closed, so all are taken before a
    file could get one."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        # The stream was closed when Python started.
        if getattr(sys, name) is None:
            stream = open(os.devnull, "r" if number == 0 else "w", encoding="utf-8")  # noqa: SIM115, PTH123
            setattr(sys, name, stream)


def _make_outliving(stream: "io.TextIOWrapper[Any]") -> TextIO:
    stream.flush()
    outlet = _Outlet(stream.fileno(), "w", closefd=False)
    # `python -u` makes it so.
    unbuffered = isinstance(stream.buffer, io.RawIOBase)
    return io.TextIOWrapper(
        outlet if unbuffered else io.BufferedWriter(outlet),  # type: ignore[type-var]
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def sleep_while_read(seconds: float) -> None:
    """Sleeps in a job that only shows. Raises SystemExit(0) as soon as nobody reads standard output any more."""
    asked = select.poll()
    try:
        asked.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        # Standard output is no file.
        time.sleep(seconds)
        return
    # The poll asks for nothing, so what comes is the other end's leaving.
    if asked.poll(1000 * seconds):
        raise SystemExit(0)


def terminal_width(stream: TextIO, default: int = WIDTH) -> int:
    """Returns the columns of the terminal that `stream` is, or `default` if it is none, or does not say."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or default
    return default


def is_live(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Tells whether `stream` may be redrawn: it is a terminal, and nobody asked to be quiet. NO_COLOR, TERM=dumb and CI
    mean plain lines."""
    quiet = environ.get("NO_COLOR") or environ.get("CI") or environ.get("TERM", "") in ("", "dumb")
    return not quiet and stream.isatty()


def format_table(rows: dict[str, str], columns: int) -> list[str]:
    """Writes a name and what is said of it on a line, or below the name if that leaves too little room beside it."""
    wide = max(map(len, rows), default=0) + 4
    if columns - wide < _LEAST_BESIDE:
        return [line for name, text in rows.items() for line in (f"  {name}", *wrap_text(text, columns, " " * 6))]
    return [
        line
        for name, text in rows.items()
        for line in wrap_text(text, columns, f"  {name}".ljust(wide), " " * wide) or [f"  {name}"]
    ]


def wrap_text(text: str, columns: int, first: str, others: str | None = None) -> list[str]:
    """Returns the lines of a text that begin with `first`, and after the first one with `others`, if it is given.

    Only spaces are broken: a key or a path that is wider stays whole.
    """
    indent = first if others is None else others
    return textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
