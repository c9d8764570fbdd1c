"""What the page's timeline draws: the programs of the newest steps, within a budget of bytes.

Invariants:
- Newest steps first, as many as fit; the newest is there even if only a part of its programs fits.
- Steps that the run went back behind do not count; of a trajectory written twice the later one does.
- Shares of time are over all programs of a step, also over those that are not drawn.
- A malformed event is left out and stops nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from swe_rl.logger.disk import decode_json, encode_json
from swe_rl.logger.folder import RunFolder
from swe_rl.report.timeline_program import KINDS, Malformed, Program, program_of

BUDGET_BYTES = 900_000
_RAW_BYTES = 16 * BUDGET_BYTES  # kept while reading; a line is three to four times its program on the page
_PROGRAM, _WENT_BACK = b'"event":"program"', b'"event":"went_back"'
_STEP = re.compile(rb'"step":(-?\d+)')


def programs_of(folder: RunFolder, budget_bytes: int = BUDGET_BYTES) -> dict[str, Any]:
    """`kinds`, `steps` (ascending) and `left_out`, the number of steps that are not drawn."""
    raw, number = _newest_lines(folder)
    steps: list[dict[str, Any]] = []
    left = budget_bytes
    for step in sorted(raw, reverse=True):
        programs = _parsed(raw[step])
        if not programs:
            number -= 1
            continue
        drawn, size = _within(step, programs, left) if not steps else _drawn(step, programs)
        if size > left and steps:
            break
        steps.append(drawn)
        left -= size
    return {"kinds": list(KINDS), "steps": steps[::-1], "left_out": max(0, number - len(steps))}


def _within(step: int, programs: Sequence[Program], budget_bytes: int) -> tuple[dict[str, Any], int]:
    """As many of the programs as fit, at least one; with it the size in bytes."""
    shown = len(programs)
    drawn, size = _drawn(step, programs)
    while size > budget_bytes and shown > 1:
        shown = max(1, min(shown - 1, shown * budget_bytes // size))
        drawn, size = _drawn(step, programs, shown)
    return drawn, size


def _drawn(step: int, programs: Sequence[Program], shown: int | None = None) -> tuple[dict[str, Any], int]:
    drawn = step_of(step, programs, shown)
    return drawn, len(encode_json(drawn))


def step_of(step: int, programs: Sequence[Program], shown: int | None = None) -> dict[str, Any]:
    """One step as the page reads it: `shown` programs (all where None), evenly taken; times since the first began."""
    count = len(programs) if shown is None else min(shown, len(programs))
    taken = [programs[place * len(programs) // count] for place in range(count)]
    engines = sorted({name for one in taken for name in one.engines}, key=_natural)
    groups = list(dict.fromkeys(one.group for one in taken))
    statuses = list(dict.fromkeys(one.status for one in taken))
    first_ms = min(one.start_ms for one in programs)
    return {
        "step": step,
        "total": len(programs),
        "engines": engines,
        "groups": groups,
        "statuses": statuses,
        "programs": [one.packed(first_ms, engines, groups, statuses) for one in taken],
        "shares": shares(programs),
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


def _newest_lines(folder: RunFolder) -> tuple[dict[int, list[bytes]], int]:
    """Lines of `program` events by step, oldest steps forgotten as they come to too much; and the number of steps."""
    lines: dict[int, list[bytes]] = {}
    seen: set[int] = set()
    size = 0
    for line in _lines(folder):
        match = _STEP.search(line)
        if match is None:
            continue
        step = int(match[1])
        if _WENT_BACK in line:
            seen = {one for one in seen if one <= step}
            for later in [one for one in lines if one > step]:
                size -= sum(map(len, lines.pop(later)))
            continue
        seen.add(step)
        lines.setdefault(step, []).append(line)
        size += len(line)
        while size > _RAW_BYTES and len(lines) > 1:
            size -= sum(map(len, lines.pop(min(lines))))
    return lines, len(seen)


def _lines(folder: RunFolder) -> Iterator[bytes]:
    try:
        with folder.events_jsonl.open("rb") as file:
            yield from (line for line in file if _PROGRAM in line or _WENT_BACK in line)
    except OSError:
        return


def _parsed(lines: Sequence[bytes]) -> list[Program]:
    programs: dict[str, Program] = {}
    for line in lines:
        try:
            record = decode_json(line)
            if isinstance(record, Mapping):
                one = program_of(record)
                programs[one.trajectory_id] = one
        except (ValueError, Malformed):
            continue
    return list(programs.values())
