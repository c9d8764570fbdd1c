"""The lines of `events.jsonl` that the timeline draws, read in one pass.

Invariants:
- Memory is bounded: of programs and samples those of the newest steps, of losses the newest.
- Steps that the run went back behind are forgotten; of a trajectory written twice the later one counts.
- Torn and malformed lines are left out.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from swe_rl.logger.disk import decode_json
from swe_rl.logger.folder import RunFolder
from swe_rl.report.timeline_engines import Sample, sample_of
from swe_rl.report.timeline_program import Malformed, Program, program_of

_PROGRAM, _WENT_BACK, _ENGINES = b'"event":"program"', b'"event":"went_back"', b'"event":"engines"'
_LOSS = (b'"event":"engine_lost"', b'"event":"engine_back"')
_KEPT_LOSSES = 1000
_STEP = re.compile(rb'"step":(-?\d+)')


@dataclass(slots=True)
class Lines:
    """Lines of `program` and `engines` events by step; `steps`: all, also those whose lines were forgotten."""

    max_bytes: int
    origin_s: float = 0.0  # unix, of the run's first event
    lines: dict[int, list[bytes]] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    losses: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT_LOSSES))
    size: int = 0

    def go_back(self, step: int) -> None:
        self.steps = {one for one in self.steps if one <= step}
        for later in [one for one in self.lines if one > step]:
            self.size -= sum(map(len, self.lines.pop(later)))

    def add(self, step: int, line: bytes) -> None:
        """The oldest steps are forgotten as they come to too much."""
        self.steps.add(step)
        self.lines.setdefault(step, []).append(line)
        self.size += len(line)
        while self.size > self.max_bytes and len(self.lines) > 1:
            self.size -= sum(map(len, self.lines.pop(min(self.lines))))


def read_lines(folder: RunFolder, max_bytes: int) -> Lines:
    read = Lines(max_bytes)
    for number, line in enumerate(_lines(folder)):
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
    return read


def _lines(folder: RunFolder) -> Iterator[bytes]:
    try:
        with folder.events_jsonl.open("rb") as file:
            yield from file
    except OSError:
        return


def _time_of(line: bytes) -> float:
    for record in records([line]):
        time_s = record.get("time")
        if isinstance(time_s, int | float) and not isinstance(time_s, bool):
            return float(time_s)
    return 0.0


def records(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        try:
            record = decode_json(line)
        except ValueError:
            continue
        if isinstance(record, Mapping):
            yield record


def programs_in(lines: Sequence[bytes]) -> list[Program]:
    programs: dict[str, Program] = {}
    for record in records(line for line in lines if _PROGRAM in line):
        with suppress(Malformed):
            one = program_of(record)
            programs[one.trajectory_id] = one
    return list(programs.values())


def samples_in(lines: Sequence[bytes], origin_s: float) -> list[Sample]:
    samples = []
    for record in records(line for line in lines if _ENGINES in line):
        with suppress(Malformed):
            samples.append(sample_of(record, origin_s))
    return samples
