"""Writes a run's timeline as Chrome's trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing read.

Invariants:
- Times are microseconds since the run's first event. Slices of a lane are one inside the other, or one after another.
- A process of the trace is a step, in which each trajectory has a lane: its span, in it its turns, in them what it was
  doing (queue, prefill and decode are a call of the engine named beside them; tool is a command). The phases of the run
  and its weight updates are process `RUN`, engines are process `ENGINES`.
- One step is in memory at a time, and nothing is written into the run's folder.
- A phase that the run went back behind did happen, and is there; a torn or malformed line is left out.
"""

import gzip
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from swe_rl.files.disk import disk_error
from swe_rl.files.json_text import encode_json
from swe_rl.files.redactor import Redactor
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.report.timeline_events import (
    KINDS,
    DrawnPhase,
    Malformed,
    Sample,
    TimelineProgram,
    away_of,
    program_of,
    sample_of,
)

Event = dict[str, Any]
# These are processes; step n has FIRST_STEP + n.
RUN = 1
ENGINES = 2
FIRST_STEP = 10
# Older runs have these parts of an update alone.
_SYNC_PARTS_S = ("gather_s", "load_s")


def trace_lines(folder: RunFolder, step: int | None = None) -> Iterator[bytes]:
    """Yields the pieces of one JSON object, secrets masked. `step` is that one alone, without what is of no step."""
    redactor = Redactor.from_environ()
    yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
    separator = b""
    for event in trace_events(folder, step):
        yield separator + redactor.data_json(encode_json(event))
        separator = b",\n"
    yield b"\n]}\n"


def write_trace(folder: RunFolder, path: Path) -> int:
    """Writes the trace, gzipped where `path` ends in `.gz`. Returns the file's bytes. Raises DiskError."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(aside, "wb") if path.suffix == ".gz" else aside.open("wb") as file:
            file.writelines(trace_lines(folder))
        aside.replace(path)
    except OSError as error:
        raise disk_error(path, error, key="job.output") from error
    finally:
        # The folder may take no change any more, which is said above.
        with suppress(OSError):
            aside.unlink()
    return path.stat().st_size


def trace_events(folder: RunFolder, step: int | None = None) -> Iterator[Event]:
    origin_s = next((float(event["time"]) for event in iter_jsonl(folder.events_jsonl) if _is_timed(event)), 0.0)
    if step is None:
        yield from _run_events(folder, origin_s)
    yield _name_event("process_name", ENGINES, 0, "engines")
    for number in folder.program_steps():
        if step in (None, number):
            yield from _step_events(folder, number, origin_s)


def _run_events(folder: RunFolder, origin_s: float) -> Iterator[Event]:
    """Yields phases, weight updates and engines that were away, a lane each."""
    lanes: dict[str, int] = {}
    yield _name_event("process_name", RUN, 0, "run")
    for event in filter(_is_timed, iter_jsonl(folder.events_jsonl)):
        end_us = _to_us(event["time"] - origin_s)
        if event["event"] == "phase" and _is_number(event.get("took_s")):
            name = str(event.get("name"))
            took_s = event["took_s"]
            args = {}
        elif event["event"] == "weights":
            name = "weights"
            took_s = _update_s(event)
            args = {key: value for key, value in event.items() if key not in ("time", "event")}
        else:
            continue
        if name not in lanes:
            lanes[name] = len(lanes)
            yield _name_event("thread_name", RUN, lanes[name], name)
        start_us = max(0, end_us - _to_us(took_s))
        yield _slice_event(name, "run", (start_us, end_us), RUN, lanes[name], args)
    for away in away_of(filter(_is_timed, iter_jsonl(folder.events_jsonl)), origin_s):
        name = f"{away.engine} away"
        lane = lanes.setdefault(name, len(lanes))
        yield _name_event("thread_name", RUN, lane, name)
        yield _slice_event(name, "run", (1000 * away.from_ms, 1000 * away.to_ms), RUN, lane, {})


def _update_s(event: Mapping[str, Any]) -> float:
    """Returns the time of an update of weights up to its event. The engines fell asleep before it, and its parts may
    be side by side."""
    known = {key: value for key, value in event.items() if _is_number(value)}
    sync_s = known.get("sync_s", sum(known.get(key, 0.0) for key in _SYNC_PARTS_S))
    return float(sync_s + known.get("check_s", 0.0))


def _step_events(folder: RunFolder, step: int, origin_s: float) -> Iterator[Event]:
    programs: dict[str, TimelineProgram] = {}
    samples: list[Sample] = []
    for record in iter_jsonl(folder.programs(step)):
        with suppress(Malformed):
            if record.get("event") == "engines":
                samples.append(sample_of(record, origin_s))
            else:
                program = program_of(record)
                # A program that was written twice counts by its later line.
                programs[program.trajectory_id] = program
    process = FIRST_STEP + step
    yield _name_event("process_name", process, 0, f"step {step}")
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    ordered = sorted(programs.values(), key=lambda program: (program.group, program.start_ms))
    for lane, program in enumerate(ordered, start=1):
        yield _name_event("thread_name", process, lane, f"{program.group} {program.label}")
        yield from _program_events(program, process, lane)
    for sample in samples:
        for name, load in sample.loads.items():
            counts = {"running": load.running, "waiting": load.waiting, "KV cache %": load.kv / 10}
            yield {"ph": "C", "name": name, "ts": 1000 * sample.at_ms, "pid": ENGINES, "tid": 0, "args": counts}


def _program_events(program: TimelineProgram, process: int, lane: int) -> Iterator[Event]:
    facts = {"trajectory": program.trajectory_id, "status": program.status}
    span = (1000 * program.start_ms, 1000 * program.end_ms)
    yield _slice_event(program.status, "trajectory", span, process, lane, facts)
    at = -1
    for place, phase in enumerate(program.phases):
        if phase.turn != at:
            at = phase.turn
            if at >= 0:
                yield _turn_event(program, program.phases[place:], process, lane)
        if phase.engine >= 0:
            engine = {"engine": program.engines[phase.engine]}
        else:
            engine = {}
        within = (1000 * phase.start_ms, 1000 * phase.end_ms)
        yield _slice_event(KINDS[phase.kind], "phase", within, process, lane, engine)


def _turn_event(program: TimelineProgram, phases: Sequence[DrawnPhase], process: int, lane: int) -> Event:
    """Returns the turn that the first of `phases` belongs to."""
    number = phases[0].turn
    end_ms = phases[0].end_ms
    for phase in phases:
        if phase.turn != number:
            break
        end_ms = phase.end_ms
    counts = program.turns[number] if number < len(program.turns) else ()
    args = dict(zip(("prompt_tokens", "cached_tokens", "sampled_tokens"), counts, strict=False))
    return _slice_event(f"turn {number + 1}", "turn", (1000 * phases[0].start_ms, 1000 * end_ms), process, lane, args)


def _slice_event(
    name: str, kind: str, span_us: tuple[int, int], process: int, lane: int, args: Mapping[str, Any]
) -> Event:
    start_us, end_us = span_us
    place = {"ts": start_us, "dur": end_us - start_us, "pid": process, "tid": lane}
    return {"ph": "X", "name": name, "cat": kind, **place, **({"args": dict(args)} if args else {})}


def _name_event(what: str, process: int, lane: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": lane, "args": {"name": name}}


def _is_timed(event: Mapping[str, Any]) -> bool:
    return _is_number(event.get("time")) and "event" in event


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _to_us(seconds_s: float) -> int:
    return round(1e6 * seconds_s)
