"""`steps.jsonl`, a line a step, and the trajectories of each step.

Invariants:
- Lines are in the order of steps; `truncate_after` makes the folder what it was after that step.
- Trajectories of a step are in one file under its number; a file of a step that was taken back is gone.
"""

import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from swe_rl.host.kill_point import kill_point
from swe_rl.logger.disk import disk_error
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import JsonlWriter, keep_lines, read_jsonl

__all__ = ["StepLog", "read_jsonl", "truncate_after"]

_TRAJECTORY_FILE = re.compile(r"(?:step|eval)_(\d+)\.jsonl")


class StepLog:
    """Writes what a step left behind. Raises DiskError."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._writer = JsonlWriter(folder.steps_jsonl)

    def append(self, record: Mapping[str, Any]) -> None:
        """One step; `record` has at least `step`, other keys as DESIGN names them (units in the names)."""
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
        """Records of `Trajectory.to_record()`; may be called several times a step. `ours`: see JsonlWriter."""
        path = self.folder.eval_trajectories(step) if evaluation else self.folder.trajectories(step)
        with JsonlWriter(path, ours=ours) as writer:
            for record in records:
                writer.append(dict(record))

    def truncate_after(self, step: int) -> int:
        """For resume: forget every step after `step`; returns how many lines went."""
        self._writer.close()
        gone = truncate_after(self.folder, step)
        self._writer = JsonlWriter(self.folder.steps_jsonl)
        return gone

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def truncate_after(folder: RunFolder, step: int) -> int:
    """Keeps lines of `steps.jsonl` with `step` <= the given one and removes later trajectory files.

    Nobody may have the files open for writing. Raises DiskError.
    """
    for path in folder.trajectories_folder.glob("*.jsonl"):
        match = _TRAJECTORY_FILE.fullmatch(path.name)
        if match and int(match[1]) > step:
            try:
                path.unlink()
            except OSError as error:
                raise disk_error(path, error) from error
    kill_point("trajectories_taken_back")
    return keep_lines(folder.steps_jsonl, lambda record: isinstance(record.get("step"), int) and record["step"] <= step)
