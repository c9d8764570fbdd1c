"""How a rank's process ended: what it said itself, or what its status and its log say.

Invariants:
- Of several ends the earliest is the reason. One that was killed could not say when, and comes first: nobody else's
  failure kills a process.
"""

import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOG_LINES = 3
# Not SIGABRT: by that libraries end a process whose companions are gone.
_KILLED_BY = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGTERM, signal.SIGILL, signal.SIGFPE})
_LOG_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RankEnd:
    """`at_s`: monotonic seconds, the same clock for all processes of a host.

    `repeats`: by an error of ours (a malformed row, a full disk), which ranks that are started anew would meet again.
    """

    rank: int
    reason: str
    at_s: float
    repeats: bool = False
    wordless: bool = False  # it could not say when; it may be why another one failed

    @classmethod
    def reported(cls, rank: int, told: Sequence[Any]) -> "RankEnd":
        """`told`: the error's type, its message, when, and whether it is one of ours."""
        kind, message, at_s, ours = told
        return cls(rank, f"{kind}: {message.rstrip('. ')}", at_s, ours)

    @classmethod
    def silent(cls, rank: int, what: str, limit_s: float) -> "RankEnd":
        return cls(rank, f"no sign of life for {limit_s:.0f} s during {what}", time.monotonic())

    @classmethod
    def of(cls, rank: int, process: Any, pipe: Any, when: str, log: Path | None) -> "RankEnd | None":
        """None while it lives and has not said that it failed."""
        try:
            while pipe.poll():
                kind, *rest = pipe.recv()
                if kind == "failed":
                    return cls.reported(rank, rest)
        except Exception:  # the end of the pipe, or half of a message
            process.join(timeout=1)  # its end of the pipe is closed: so will it be
        if process.is_alive():
            return None
        reason = f"it ended {when} {status_text(process.exitcode)}{last_words(log)}"
        return cls(rank, reason, _at_s(process.exitcode), wordless=True)


def first_of(ends: Iterable[RankEnd]) -> RankEnd:
    """Of those that could not say when, the first that is given."""
    return min(ends, key=lambda end: end.at_s)


def _at_s(exit_code: int | None) -> float:
    killed = exit_code is not None and -exit_code in _KILLED_BY
    return float("-inf") if killed else float("inf")


def status_text(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"with status {exit_code}, without a word"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (the system does that where memory runs out)" if -exit_code == signal.SIGKILL else ""
    return f"by {name}{hint}, without a word"


def last_words(log: Path | None) -> str:
    if log is None:
        return ""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()][-_LOG_LINES:]
    return f"; the end of {log}: {' | '.join(said)}" if said else f"; its log is {log}"
