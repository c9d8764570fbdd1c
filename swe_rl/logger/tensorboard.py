"""Logs to TensorBoard: the curves of a run as event files in its folder, by TensorBoard's own writer.

Invariants:
- Neither TensorFlow nor torch is needed or imported.
- What is written is flushed with each step: `tensorboard --logdir` shows a run that goes on, and a kill loses nothing.
- A resumed run writes another file beside the first; TensorBoard shows both as one run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.errors import not_installed
from swe_rl.logger.figures import numeric_figures


class TensorBoardLogger:
    """A logger of TensorBoard. `folder` is the run's. Raises UserError without the package."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise not_installed("logger.tensorboard", "tensorboard", "tensorboard", error) from error
        self._writer = Writer(str(folder / "tensorboard"))
        self._last_step = 0

    def log(self, record: Mapping[str, Any], step: int) -> None:
        self._last_step = max(step, self._last_step)
        self._add(numeric_figures(record), step)

    evaluated = log

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Logs at the last step: TensorBoard has no place for what has no step."""
        self._add({f"summary/{name}": value for name, value in numeric_figures(summary).items()}, self._last_step)

    def finish(self, exit_status: int) -> None:
        self._writer.close()

    def _add(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
