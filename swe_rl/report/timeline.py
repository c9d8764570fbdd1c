"""What the page's timeline draws: the programs of the newest steps, within a budget of bytes.

Invariants:
- Newest steps first, as many as fit; the newest is there even if only a part of its programs fits.
- Steps that the run went back behind do not count; of a trajectory written twice the later one does.
- Shares of time are over all programs of a step, also over those that are not drawn.
- Below the lanes: every engine that was sampled in the step, also one that had nothing to do.
- A malformed event is left out and stops nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swe_rl.logger.disk import encode_json
from swe_rl.logger.folder import RunFolder
from swe_rl.report.timeline_engines import Away, Sample, away_of, away_within, packed
from swe_rl.report.timeline_program import KINDS, Program
from swe_rl.report.timeline_read import programs_in, read_lines, records, samples_in

BUDGET_BYTES = 900_000
_RAW_BYTES = 16 * BUDGET_BYTES  # kept while reading; a line is three to four times its program on the page


def programs_of(folder: RunFolder, budget_bytes: int = BUDGET_BYTES) -> dict[str, Any]:
    """`kinds`, `steps` (ascending) and `left_out`, the number of steps that are not drawn."""
    read = read_lines(folder, _RAW_BYTES)
    raw, number = read.lines, len(read.steps)
    away = away_of(records(read.losses), read.origin_s)
    steps: list[dict[str, Any]] = []
    left = budget_bytes
    for step in sorted(raw, reverse=True):
        one = _Step(step, programs_in(raw[step]), samples_in(raw[step], read.origin_s), away)
        if not one.programs:
            number -= 1
            continue
        drawn, size = _within(one, left) if not steps else _drawn(one)
        if size > left and steps:
            break
        steps.append(drawn)
        left -= size
    return {"kinds": list(KINDS), "steps": steps[::-1], "left_out": max(0, number - len(steps))}


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    programs: Sequence[Program]
    samples: Sequence[Sample]
    away: Sequence[Away]


def _within(one: _Step, budget_bytes: int) -> tuple[dict[str, Any], int]:
    """As many of the programs as fit, at least one; with it the size in bytes."""
    shown = len(one.programs)
    drawn, size = _drawn(one)
    while size > budget_bytes and shown > 1:
        shown = max(1, min(shown - 1, shown * budget_bytes // size))
        drawn, size = _drawn(one, shown)
    return drawn, size


def _drawn(one: _Step, shown: int | None = None) -> tuple[dict[str, Any], int]:
    drawn = step_of(one.number, one.programs, shown, samples=one.samples, away=one.away)
    return drawn, len(encode_json(drawn))


def step_of(
    step: int,
    programs: Sequence[Program],
    shown: int | None = None,
    *,
    samples: Sequence[Sample] = (),
    away: Sequence[Away] = (),
) -> dict[str, Any]:
    """One step as the page reads it: `shown` programs (all where None), evenly taken; times since the first began."""
    count = len(programs) if shown is None else min(shown, len(programs))
    taken = [programs[place * len(programs) // count] for place in range(count)]
    used = {name for one in taken for name in one.engines}
    engines = sorted(used.union(*(one.loads for one in samples)), key=_natural)
    groups = list(dict.fromkeys(one.group for one in taken))
    statuses = list(dict.fromkeys(one.status for one in taken))
    first_ms, end_ms = min(one.start_ms for one in programs), max(one.end_ms for one in programs)
    return {
        "step": step,
        "total": len(programs),
        "engines": engines,
        "groups": groups,
        "statuses": statuses,
        "programs": [one.packed(first_ms, engines, groups, statuses) for one in taken],
        "shares": shares(programs),
        "samples": packed(samples, first_ms, engines),
        "away": away_within(away, first_ms, end_ms, engines),
    }


def shares(programs: Sequence[Program]) -> list[dict[str, Any]]:
    """By status, in order of their names: programs, their ms in all and by kind, prompt and cached tokens."""
    table: dict[str, dict[str, Any]] = {}
    for one in programs:
        row = table.setdefault(
            one.status,
            {"status": one.status, "programs": 0, "ms": 0, "by_kind": [0] * len(KINDS), "prompt": 0, "cached": 0},
        )
        row["programs"] += 1
        row["ms"] += one.end_ms - one.start_ms
        row["prompt"] += sum(turn[0] for turn in one.turns)
        row["cached"] += sum(turn[1] for turn in one.turns)
        for phase in one.phases:
            row["by_kind"][phase.kind] += phase.end_ms - phase.start_ms
    return [table[status] for status in sorted(table)]


def _natural(name: str) -> list[tuple[int, str]]:
    """engine-2 before engine-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
