"""What the page's timeline draws: the programs of the newest steps, within a budget of bytes.

Invariants:
- Newest steps first, as many as fit; the newest is there even if only a part of its programs fits.
- Of the files of steps the newest are read, until they come to enough; `events.jsonl` in one pass and bounded memory:
  the newest losses are kept, and of folders before 0.5, whose programs stand there, the newest steps' lines.
- Steps that the run went back behind do not count; of a trajectory written twice the later one does.
- Shares of time are over all programs of a step, also over those that are not drawn.
- Below the lanes: every engine that was sampled in the step, also one that had nothing to do.
- A torn or malformed line is left out and stops nothing.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.logger.disk import encode_json, open_file
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import parsed
from swe_rl.report.timeline_events import (
    KINDS,
    Away,
    Malformed,
    Sample,
    TimelineProgram,
    away_of,
    away_within,
    packed,
    program_of,
    sample_of,
)

BUDGET_BYTES = 900_000
_RAW_BYTES = 16 * BUDGET_BYTES  # kept while reading; a line is three to four times its program on the page
_PROGRAM, _WENT_BACK, _ENGINES = b'"event":"program"', b'"event":"went_back"', b'"event":"engines"'
_LOSS = (b'"event":"engine_lost"', b'"event":"engine_back"')
_KEPT_LOSSES = 1000
_STEP = re.compile(rb'"step":(-?\d+)')


def programs_of(folder: RunFolder, budget_bytes: int = BUDGET_BYTES) -> dict[str, Any]:
    """`kinds`, `steps` (ascending) and `left_out`, the number of steps that are not drawn."""
    read = _read_lines(folder, _RAW_BYTES)
    raw, number = read.lines, len(read.steps)
    away = away_of(_records(read.losses), read.origin_s)
    steps: list[dict[str, Any]] = []
    left = budget_bytes
    for step in sorted(raw, reverse=True):
        candidate = _Step(step, _programs_in(raw[step]), _samples_in(raw[step], read.origin_s), away)
        if not candidate.programs:
            number -= 1
            continue
        drawn, size = _within(candidate, left) if not steps else _drawn(candidate)
        if size > left and steps:
            break
        steps.append(drawn)
        left -= size
    return {"kinds": list(KINDS), "steps": steps[::-1], "left_out": max(0, number - len(steps))}


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    programs: Sequence[TimelineProgram]
    samples: Sequence[Sample]
    away: Sequence[Away]


def _within(step: _Step, budget_bytes: int) -> tuple[dict[str, Any], int]:
    """As many of the programs as fit, at least one; with it the size in bytes."""
    shown = len(step.programs)
    drawn, size = _drawn(step)
    while size > budget_bytes and shown > 1:
        shown = max(1, min(shown - 1, shown * budget_bytes // size))
        drawn, size = _drawn(step, shown)
    return drawn, size


def _drawn(step: _Step, shown: int | None = None) -> tuple[dict[str, Any], int]:
    drawn = step_of(step.number, step.programs, shown, samples=step.samples, away=step.away)
    return drawn, len(encode_json(drawn))


def step_of(
    step: int,
    programs: Sequence[TimelineProgram],
    shown: int | None = None,
    *,
    samples: Sequence[Sample] = (),
    away: Sequence[Away] = (),
) -> dict[str, Any]:
    """One step as the page reads it: `shown` programs (all where None), evenly taken; times since the first began."""
    count = len(programs) if shown is None else min(shown, len(programs))
    taken = [programs[place * len(programs) // count] for place in range(count)]
    used = {name for program in taken for name in program.engines}
    engines = sorted(used.union(*(sample.loads for sample in samples)), key=_natural)
    groups = list(dict.fromkeys(program.group for program in taken))
    statuses = list(dict.fromkeys(program.status for program in taken))
    first_ms, end_ms = min(program.start_ms for program in programs), max(program.end_ms for program in programs)
    return {
        "step": step,
        "total": len(programs),
        "engines": engines,
        "groups": groups,
        "statuses": statuses,
        "programs": [program.packed(first_ms, engines, groups, statuses) for program in taken],
        "shares": shares(programs),
        "samples": packed(samples, first_ms, engines),
        "away": away_within(away, first_ms, end_ms, engines),
    }


def shares(programs: Sequence[TimelineProgram]) -> list[dict[str, Any]]:
    """By status, in order of their names: programs, their ms in all and by kind, prompt and cached tokens."""
    table: dict[str, dict[str, Any]] = {}
    for program in programs:
        row = table.setdefault(
            program.status,
            {"status": program.status, "programs": 0, "ms": 0, "by_kind": [0] * len(KINDS), "prompt": 0, "cached": 0},
        )
        row["programs"] += 1
        row["ms"] += program.end_ms - program.start_ms
        row["prompt"] += sum(turn[0] for turn in program.turns)
        row["cached"] += sum(turn[1] for turn in program.turns)
        for phase in program.phases:
            row["by_kind"][phase.kind] += phase.end_ms - phase.start_ms
    return [table[status] for status in sorted(table)]


def _natural(name: str) -> list[tuple[int, str]]:
    """engine-2 before engine-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


@dataclass(slots=True)
class _Lines:
    """Lines of `program` and `engines` events by step; `steps`: all, also those whose lines were forgotten."""

    max_bytes: int
    origin_s: float = 0.0  # unix, of the run's first event
    lines: dict[int, list[bytes]] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    losses: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT_LOSSES))
    size: int = 0

    def go_back(self, step: int) -> None:
        self.steps = {known for known in self.steps if known <= step}
        for later in [known for known in self.lines if known > step]:
            self.size -= sum(map(len, self.lines.pop(later)))

    def add(self, step: int, line: bytes) -> None:
        """The oldest steps are forgotten as they come to too much."""
        self.steps.add(step)
        self.lines.setdefault(step, []).append(line)
        self.size += len(line)
        while self.size > self.max_bytes and len(self.lines) > 1:
            self.size -= sum(map(len, self.lines.pop(min(self.lines))))


def _read_lines(folder: RunFolder, max_bytes: int) -> _Lines:
    read = _Lines(max_bytes)
    _read_events(folder, read)
    sizes = {step: size for step in folder.program_steps() if (size := folder.programs(step).stat().st_size)}
    read.steps.update(sizes)
    for step, size in reversed(sizes.items()):
        if read.lines and read.size + size > max_bytes:
            break
        for line in _lines(folder.programs(step)):
            read.add(step, line)
    return read


def _read_events(folder: RunFolder, read: _Lines) -> None:
    for number, line in enumerate(_lines(folder.events_jsonl)):
        if number == 0:
            read.origin_s = _time_of(line)
        if any(kind in line for kind in _LOSS):
            read.losses.append(line)
        elif any(kind in line for kind in (_PROGRAM, _WENT_BACK, _ENGINES)):
            match = _STEP.search(line)
            if match is None:
                continue
            if _WENT_BACK in line:
                read.go_back(int(match[1]))
            else:
                read.add(int(match[1]), line)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open_file(path) as file:
            yield from file
    except OSError:
        return


def _time_of(line: bytes) -> float:
    for record in _records([line]):
        time_s = record.get("time")
        if isinstance(time_s, int | float) and not isinstance(time_s, bool):
            return float(time_s)
    return 0.0


def _records(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    return (record for line in lines if (record := parsed(line)) is not None)


def _programs_in(lines: Sequence[bytes]) -> list[TimelineProgram]:
    programs: dict[str, TimelineProgram] = {}
    for record in _records(line for line in lines if _PROGRAM in line):
        with suppress(Malformed):
            program = program_of(record)
            programs[program.trajectory_id] = program
    return list(programs.values())


def _samples_in(lines: Sequence[bytes], origin_s: float) -> list[Sample]:
    samples = []
    for record in _records(line for line in lines if _ENGINES in line):
        with suppress(Malformed):
            samples.append(sample_of(record, origin_s))
    return samples
