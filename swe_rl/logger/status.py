"""`status.json`: what became of the run, readable while it runs and after any kind of death.

Invariants:
- Written whole each time; a reader never sees half of it.
- `running` in a folder that nobody has locked means that the process was killed.
- `heartbeat` is unix seconds and moves at most every HEARTBEAT_S.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from swe_rl.logger.disk import decode_json, write_json_atomic
from swe_rl.logger.redact import Redactor

HEARTBEAT_S = 10.0


class RunState(StrEnum):
    running = "running"
    done = "done"
    failed = "failed"
    interrupted = "interrupted"
    requeued = "requeued"  # it goes on when its SLURM job is started again


@dataclass(frozen=True, slots=True)
class RunStatus:
    status: RunState
    reason: str | None = None
    exit_status: int | None = None
    step: int = 0
    heartbeat: float = 0.0
    started: float = 0.0  # of the first process; a resumed run keeps it
    pid: int = 0
    process_started: float = 0.0
    host: str = ""
    config_hash: str = ""
    resumes: int = 0


class StatusWriter:
    """Owns one `status.json`. Creating it writes `running`; continues `started` and `resumes` of an earlier process."""

    def __init__(self, path: Path, *, config_hash: str, step: int = 0, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._redactor = Redactor.from_environ()
        earlier = read_status(path)
        self.current = RunStatus(
            status=RunState.running,
            step=step,
            started=earlier.started if earlier else clock(),
            pid=os.getpid(),
            process_started=process_started(),
            host=socket.gethostname(),
            config_hash=config_hash,
            resumes=earlier.resumes + 1 if earlier else 0,
        )
        self._write()

    def heartbeat(self, step: int | None = None) -> None:
        """Cheap to call often: a new step is written at once, else nothing within HEARTBEAT_S. Raises DiskError."""
        moved = step is not None and step != self.current.step
        if moved or self._clock() - self.current.heartbeat >= HEARTBEAT_S:
            self.current = replace(self.current, step=self.current.step if step is None else step)
            self._write()

    def ending(self, state: RunState, *, reason: str | None = None, exit_status: int = 0) -> RunStatus:
        """What `finish` would write."""
        said = None if reason is None else self._redactor.text(reason)
        return replace(self.current, status=state, reason=said, exit_status=exit_status)

    def finish(self, state: RunState, *, reason: str | None = None, exit_status: int = 0) -> None:
        """The last word: done, failed, interrupted or requeued. Raises DiskError."""
        self.current = self.ending(state, reason=reason, exit_status=exit_status)
        self._write()

    def _write(self) -> None:
        self.current = replace(self.current, heartbeat=self._clock())
        write_json_atomic(self._path, asdict(self.current))


def read_status(path: Path) -> RunStatus | None:
    """None where the file is missing or not a status."""
    try:
        record = decode_json(path.read_bytes())
        known = {key: value for key, value in record.items() if key in RunStatus.__dataclass_fields__}
        return RunStatus(**known | {"status": RunState(known["status"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def process_started() -> float:
    """Unix seconds at which this process began: with the pid it names a process for good."""
    import psutil

    return float(psutil.Process().create_time())
