"""Appends to files of one JSON object a line: `events.jsonl`, `steps.jsonl`, `evals.jsonl` and those of each step.

Invariants:
- There is one `os.write` a line on an O_APPEND descriptor: a kill leaves at most one torn line, and that the last.
- A write that fails takes its half line back.
- Opening an existing file drops a torn last line, so that the next line starts clean.
- Secrets of the environment never reach a line; of data that is read back, only our own words are looked at.
- Every event has `time` (unix seconds) and `event` (its name); the rest belongs to the event. `program` events name
  what a trajectory can be doing by `PhaseKind`.
- What grows with trajectories or with time is in files of one step each: nobody reads all steps to learn about one.
  `events.jsonl`, `steps.jsonl` and `evals.jsonl` grow by a few lines a step.
- `truncate_after` makes the folder what it was after a step. Trajectories and programs of a step are in files under its
  number; a file of a step that was taken back is gone.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from swe_rl.files.disk import DiskError, disk_error, only_shown, open_file, write_bytes_atomic
from swe_rl.files.json_text import decode_json, encode_json
from swe_rl.files.kill_point import kill_point
from swe_rl.files.redactor import Redactor
from swe_rl.logger.folder import RunFolder

_log = logging.getLogger(__name__)


class JsonlWriter:
    """A thread-safe writer; `append` returns once the line is with the operating system. Raises DiskError.

    `ours` are the keys of a record whose words are ours, where the others are data; None: all are ours.
    """

    def __init__(self, path: Path, *, redactor: Redactor | None = None, ours: frozenset[str] | None = None) -> None:
        self.path = path
        self._ours = ours
        self._redactor = redactor or Redactor.from_environ()
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _mend_last_line(path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise disk_error(path, error) from error

    def append(self, record: Mapping[str, Any] | object) -> None:
        line = self._redactor.record_json(encode_json(record), self._ours) + b"\n"
        with self._lock:
            if self._descriptor < 0:
                raise DiskError(f"{self.path} is closed: a record came after the end of the run")
            before = os.fstat(self._descriptor).st_size
            try:
                _write_all(self._descriptor, line)
            except OSError as error:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, before)
                raise disk_error(self.path, error) from error

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def iter_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yields objects in the order written, none without a file; what is no JSON object is skipped with a warning."""
    if not path.is_file():
        return
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            record = parse_object(line)
            if record is None:
                torn = "a malformed line"
                if not line.endswith(b"\n"):
                    torn = "a torn last line (the writer was killed)"
                _log.warning("%s:%d: skipped %s", path, number, torn)
            else:
                yield record


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Returns all of `iter_jsonl`."""
    return list(iter_jsonl(path))


def keep_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> int:
    """Rewrites a file in one piece with the lines that `keep` accepts. Returns how many went. Raises DiskError."""
    records = read_jsonl(path)
    kept = [record for record in records if keep(record)]
    if len(kept) < len(records):
        write_bytes_atomic(path, b"".join(encode_json(record) + b"\n" for record in kept))
    return len(records) - len(kept)


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Returns the object in a line; None where it is none."""
    try:
        record = decode_json(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    return record


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    # Only a full disk or a signal cuts a write to a regular file short.
    while written < len(data):
        written += os.write(descriptor, data[written:])


def _mend_last_line(path: Path) -> None:
    """Ends the file with a newline: completes a whole last line, drops a torn one."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        start = _last_line_start(file.fileno())
        file.seek(start)
        tail = file.read()
        if tail.endswith(b"\n"):
            return
        if parse_object(tail) is not None:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        else:
            file.truncate(start)
            _log.warning("%s: dropped a torn last line of %d bytes (the writer was killed)", path, len(tail))


def _last_line_start(descriptor: int, block_bytes: int = 65536) -> int:
    """Returns the offset after the last newline that is not the file's last byte."""
    end = os.fstat(descriptor).st_size - 1
    while end > 0:
        start = max(0, end - block_bytes)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


class EventLog(JsonlWriter):
    """The log of events. `clock` gives unix seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path)
        self._clock = clock

    def write(self, event: str, **fields: Any) -> None:
        """Writes an event. Raises DiskError."""
        self.append({"time": self._clock(), "event": event, **fields})


def read_events(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """Returns all events, or those of one name, in the order written; a torn last line is skipped with a warning."""
    return [record for record in read_jsonl(path) if event is None or record.get("event") == event]


class PhaseKind(StrEnum):
    """The kinds of phases in the order in which a turn goes through them; boot is before all turns, grade
    after them.
    """

    boot = "boot"
    # The router holds a request, where this is known apart from the engine's queue.
    hold = "hold"
    queue = "queue"
    prefill = "prefill"
    decode = "decode"
    # A command is running.
    tool = "tool"
    grade = "grade"


def read_evals(folder: RunFolder) -> list[dict[str, Any]]:
    """Returns the evaluations that count, in the order made; none of a step that the run went back behind.

    Until version 0.4 they stood among the events, and stayed there when the run went back.
    """
    evals: list[dict[str, Any]] = []
    for event in iter_jsonl(folder.events_jsonl):
        if event.get("event") == "eval":
            evals.append(event)
        elif event.get("event") == "went_back" and isinstance(step := event.get("step"), int):
            evals = [earlier for earlier in evals if _is_at_most(earlier, step)]
    return evals + read_jsonl(folder.evals_jsonl)


def _is_at_most(record: Mapping[str, Any], step: int) -> bool:
    return isinstance(record.get("step"), int) and record["step"] <= step


_STEP_FILE = re.compile(r"(?:step|eval)_(\d+)\.(?:jsonl|bin)")


class StepLog:
    """Writes what a step left behind. `clock` gives unix seconds. Raises DiskError."""

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._writer = JsonlWriter(folder.steps_jsonl)

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes one step; `record` has at least `step`, other keys as DESIGN names them (units in the names)."""
        if not isinstance(record.get("step"), int):
            raise ValueError("a step's record needs its number under 'step'")
        self._writer.append(dict(record))

    def append_trajectories(
        self,
        step: int,
        records: Iterable[Mapping[str, Any]],
        *,
        evaluation: bool = False,
        ours: frozenset[str] | None = None,
    ) -> None:
        """Writes records of `Trajectory.to_record()`; may be called several times a step. `ours` is as in
        JsonlWriter.
        """
        if evaluation:
            path = self.folder.eval_trajectories(step)
        else:
            path = self.folder.trajectories(step)
        with JsonlWriter(path, ours=ours) as writer:
            for record in records:
                writer.append(dict(record))

    def append_programs(self, step: int, event: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Writes what the timeline of a step is drawn from: events `program`, and `engines` while they work.

        A disk that does not take them ends nothing: a step is trained and resumed without them.
        """
        path = self.folder.programs(step)
        with only_shown(path), EventLog(path, self._clock) as log:
            for record in records:
                log.write(event, **record)

    def append_eval(self, numbers: Mapping[str, Any]) -> None:
        """Writes one evaluation; `numbers` has at least `step` and `split`."""
        with JsonlWriter(self.folder.evals_jsonl) as writer:
            writer.append({"time": self._clock(), **numbers})

    def truncate_after(self, step: int) -> int:
        """Forgets every step after `step`, for a resume. Returns how many lines went."""
        self._writer.close()
        gone = truncate_after(self.folder, step)
        self._writer = JsonlWriter(self.folder.steps_jsonl)
        return gone

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def truncate_after(folder: RunFolder, step: int) -> int:
    """Keeps lines of `steps.jsonl` and `evals.jsonl` with `step` <= the given one and removes later files of steps.

    Returns how many lines of `steps.jsonl` went. Nobody may have the files open for writing. Raises DiskError.
    """
    folders = (folder.trajectories_folder, folder.programs_folder, folder.spans_folder, folder.rows_folder)
    for path in (path for files in folders for path in files.glob("*")):
        match = _STEP_FILE.fullmatch(path.name)
        if match and int(match[1]) > step:
            try:
                path.unlink()
            except OSError as error:
                raise disk_error(path, error) from error
    kill_point("trajectories_taken_back")
    keep_lines(folder.evals_jsonl, lambda record: _is_at_most(record, step))
    return keep_lines(folder.steps_jsonl, lambda record: _is_at_most(record, step))
