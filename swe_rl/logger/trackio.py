"""Logs to Trackio: a run of a project in its database, by its own library.

Invariants:
- The database is where Trackio has it (TRACKIO_DIR, else the Hugging Face cache): `trackio show` finds all runs there.
- The run's name in the project is kept in the run's folder: a resumed run goes on under it, and two folders that are
  called alike are two runs.
- Trackio deletes whole runs alone. Of a step that was made twice it keeps both points, and the later one has the later
  time.
- What the library prints is not shown; it watches neither GPUs nor CPUs.
"""

import io
import uuid
from collections.abc import Mapping
from contextlib import redirect_stdout
from contextvars import copy_context
from pathlib import Path
from typing import Any

from swe_rl.errors import not_installed
from swe_rl.files.disk import write_text_atomic
from swe_rl.logger.figures import numeric_figures

NAME_FILE = "trackio_run.txt"
# Trackio keeps these names for itself, as it does `step`.
_TAKEN = ("project", "run", "timestamp", "time", "metrics")


class TrackioLogger:
    """A logger of Trackio. `folder` is the run's; `configuration` is flat, secrets masked.

    Raises UserError without the package.
    """

    def __init__(self, folder: Path, run_name: str, configuration: Mapping[str, Any], project: str) -> None:
        try:
            import trackio
        except ImportError as error:
            raise not_installed("logger.trackio", "trackio", "trackio", error) from error
        with redirect_stdout(io.StringIO()):
            # In a context of its own: the library would finish the run of this one once more at the process's end.
            self._run = copy_context().run(
                trackio.init,
                project,
                name=_kept_name(folder / NAME_FILE, run_name),
                config={key: str(value) for key, value in configuration.items()},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, record: Mapping[str, Any], step: int) -> None:
        values = numeric_figures({name: value for name, value in record.items() if name != "step"})
        self._run.log(
            {f"record/{name}" if name in _TAKEN else name: value for name, value in values.items()}, step=step
        )

    evaluated = log

    def summarize(self, summary: Mapping[str, Any]) -> None:
        self._run.log({f"summary/{name}": value for name, value in numeric_figures(summary).items()})

    def finish(self, exit_status: int) -> None:
        with redirect_stdout(io.StringIO()):
            self._run.finish()


def _kept_name(path: Path, run_name: str) -> str:
    """Returns the name, written before Trackio hears of it: a kill in between costs nothing."""
    try:
        if name := path.read_text(encoding="utf-8").strip():
            return name
    except OSError:
        pass
    name = f"{run_name}-{uuid.uuid4().hex[:8]}"
    write_text_atomic(path, name + "\n")
    return name
