"""This module records what an agent's commands said, and brings a fresh sandbox to where an earlier one was.

Invariants:
- A command is recorded before the agent sees what it said. A record is one line, and half a line is none.
- Recorded commands run again, in their order. Where what a command says differs by times and addresses alone, the agent
  sees what it saw before, so that its next prompt is the recorded one.
- With the first command that is another one, or says something else, the records after it are dropped.
"""

import asyncio
import json
import re
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from swe_rl.files.disk import disk_error
from swe_rl.sandbox.sandbox import ExecResult, Sandbox
from swe_rl.sandbox.wrapped import WrappedSandbox

# These differ between two runs of a command that does the same.
_PASSING = (
    (re.compile(r"\b0x[0-9a-fA-F]{6,}\b"), "ADDRESS"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|us|s|sec|secs|seconds|min|minutes)\b"), "DURATION"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b|\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2}\b"), "DATE"),
    (re.compile(r"\b\d{1,2}:\d\d(:\d\d(\.\d+)?)?\b"), "TIME"),
    (re.compile(r"={2,}"), "=="),  # pytest makes its lines as long as the terminal is wide, around a duration.
)


def without_passing(text: str) -> str:
    """Returns what a command said without times, durations and addresses."""
    for pattern, name in _PASSING:
        text = pattern.sub(name, text)
    return text


class CommandLog:
    """This is the file of one attempt's commands. It is read once, and written from there on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept_bytes = 0
        self._recorded = self._read()
        self._next = 0

    def recorded(self, command: str) -> ExecResult | None:
        """Returns what the next recorded command said, or None where it is another one or there is none."""
        if self._next >= len(self._recorded):
            return None
        record = self._recorded[self._next]
        if record["command"] != command:
            return None
        return ExecResult(**record["result"])

    def go_on(self) -> None:
        """Keeps the next record as it is."""
        self._next += 1
        self._kept_bytes = self._recorded[self._next - 1]["end_bytes"]

    def append(self, command: str, result: ExecResult) -> None:
        """Writes a record, in the place of all records that were not kept. Raises DiskError."""
        line = json.dumps({"command": command, "result": asdict(result)}).encode() + b"\n"
        try:
            self._write(line)
        except OSError as error:
            raise disk_error(self._path, error) from error
        self._kept_bytes += len(line)

    def _write(self, line: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as writer:
            if self._next < len(self._recorded) or writer.tell() != self._kept_bytes:
                writer.truncate(self._kept_bytes)
                del self._recorded[self._next :]
            writer.write(line)

    def _read(self) -> list[dict[str, Any]]:
        try:
            data = self._path.read_bytes()
        except OSError:
            return []
        records = []
        end_bytes = 0
        for line in BytesIO(data):
            end_bytes += len(line)
            try:
                record = json.loads(line)
                ExecResult(**record["result"])
                records.append({"command": str(record["command"]), "result": record["result"], "end_bytes": end_bytes})
            except (ValueError, KeyError, TypeError):
                break
        return records


class RecordedSandbox(WrappedSandbox):
    """This is a sandbox whose commands are recorded, or run again from a record. Nobody closes it but its maker."""

    def __init__(self, sandbox: Sandbox, log: CommandLog) -> None:
        super().__init__(sandbox)
        self._log = log

    async def exec(self, command: str, **options: Any) -> ExecResult:
        result = await super().exec(command, **options)
        before = self._log.recorded(command)
        if before is not None and _says_the_same(before, result):
            self._log.go_on()
            return before
        await asyncio.to_thread(self._log.append, command, result)
        return result


def _says_the_same(before: ExecResult, now: ExecResult) -> bool:
    if (before.exit_code, before.timed_out) != (now.exit_code, now.timed_out):
        return False
    return without_passing(before.output) == without_passing(now.output)


def remove_log(path: Path) -> None:
    """Removes the file of an attempt that will not go on. Raises DiskError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise disk_error(path, error) from error


def move_log(path: Path, to: Path) -> None:
    """Gives an attempt's file to another attempt. Raises DiskError."""
    try:
        if path.is_file():
            path.replace(to)
    except OSError as error:
        raise disk_error(to, error) from error
