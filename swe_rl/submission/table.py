"""The jobs of a sweep as text: a line each, the counts, and what went wrong.

Invariants:
- Pure: rows in, lines out. What is not known reads '-'.
"""

from collections import Counter
from collections.abc import Sequence

from swe_rl.logger.progress_text import duration, number
from swe_rl.submission.rows import Outcome, Row

_HEAD = ("job", "SLURM", "state", "step", "response tokens/s", "reward", "heard", "")
_NOTE = 60  # characters in the table; `failures` has all of it
_FOLDED_FROM = 24  # rows; beyond, jobs of which there is nothing to see share a line
_FOLDED = (Outcome.pending, Outcome.done)


def counts(rows: Sequence[Row]) -> str:
    """`2 running, 1 pending (Resources), 5 done`."""
    found = Counter(row.outcome for row in rows)
    return ", ".join(f"{found[outcome]} {outcome}{_reasons(rows, outcome)}" for outcome in Outcome if found[outcome])


def table(rows: Sequence[Row], *, fold: bool = False) -> list[str]:
    """`fold`: for a console on which all of a big sweep would not fit."""
    folded = [row for row in rows if fold and len(rows) > _FOLDED_FROM and row.outcome in _FOLDED]
    shown = [row for row in rows if row not in folded]
    cells = [_HEAD, *map(_cells, shown)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return [*lines, counts(rows)]


def _cells(row: Row) -> tuple[str, ...]:
    step = "-" if row.step is None else f"{row.step}/{row.steps}" if row.steps else str(row.step)
    heard = "-" if row.silent_s is None else f"{duration(row.silent_s)} ago"
    note = row.note or row.label
    return (
        str(row.number),
        row.slurm_id or "-",
        row.outcome.value,
        step,
        number(row.tokens_per_s, ".0f"),
        number(row.reward, ".3f"),
        heard,
        note if len(note) <= _NOTE else f"{note[: _NOTE - 3]}...",
    )


def failures(rows: Sequence[Row]) -> list[str]:
    """Which jobs are not done, and why; where to read on."""
    lines = []
    for row in rows:
        if row.outcome is not Outcome.done:
            which = f" ({row.label})" if row.label else ""
            lines.append(f"job {row.number}{which}, SLURM {row.slurm_id or '-'}: {row.outcome}: {row.note or '-'}")
            lines.append(f"  {row.folder}")
    ended = sum(row.outcome is Outcome.done for row in rows)
    return [*lines, f"{ended} of {len(rows)} job{'' if len(rows) == 1 else 's'} done"]


def _reasons(rows: Sequence[Row], outcome: Outcome) -> str:
    if outcome not in (Outcome.pending, Outcome.requeued):
        return ""
    reasons = dict.fromkeys(row.note for row in rows if row.outcome is outcome and row.note)
    return f" ({', '.join(reasons)})" if reasons else ""
