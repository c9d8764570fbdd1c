"""Logs to TensorBoard: the curves of a run as event files in its folder, by TensorBoard's own writer of events.

Invariants:
- Neither TensorFlow nor torch is needed or imported.
- What is written is flushed with each step: `tensorboard --logdir` shows a run that goes on, and a kill loses nothing.
- A resumed run writes another file beside the first; TensorBoard shows both as one run. Before its first step stands a
  mark, by which readers forget what the earlier start wrote of the steps that are made again.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.errors import not_installed
from swe_rl.logger.figures import numeric_figures


class TensorBoardLogger:
    """A logger of TensorBoard. `folder` is the run's. Raises UserError without the package."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise not_installed("logger.tensorboard", "tensorboard", "tensorboard", error) from error
        self._writer = EventFileWriter(str(folder / "tensorboard"))
        self._is_marked = False
        self._last_step = 0

    def log(self, record: Mapping[str, Any], step: int) -> None:
        if not self._is_marked:
            self._mark_start(step)
        self.evaluated(record, step)

    def evaluated(self, record: Mapping[str, Any], step: int) -> None:
        self._last_step = max(step, self._last_step)
        self._add(numeric_figures(record), step)

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Logs at the last step: TensorBoard has no place for what has no step."""
        self._add({f"summary/{name}": value for name, value in numeric_figures(summary).items()}, self._last_step)

    def finish(self, exit_status: int) -> None:
        self._writer.close()

    def _mark_start(self, step: int) -> None:
        """Writes that what an earlier start wrote of this step and of later ones does not count."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._is_marked = True
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step, session_log=start))

    def _add(self, values: Mapping[str, float], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for name, value in values.items():
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=scalar_pb(name, value)))
        self._writer.flush()
