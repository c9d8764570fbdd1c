"""Writes `report.html` while a run goes on: after a step, in a thread, as often as it costs next to nothing.

Invariants:
- At most `_MOST_SHARE` of a run's time goes into it: after each writing it waits for as many times as long.
- There is one writing at a time; a step that ends meanwhile, or too early, is in the next one. The last writing, at the
  run's end, comes after all others.
- A failure is a warning: after the first one there is the last writing only. A disk that does not take the last one
  ends no run either: all that the page shows is in other files of the folder.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from swe_rl.files.disk import only_shown
from swe_rl.logger.folder import RunFolder, RunStatus

if TYPE_CHECKING:
    from swe_rl.report.tasks import TaskText

_log = logging.getLogger(__name__)
_MOST_SHARE = 0.01
# This counts as long as no cost is measured.
_FIRST_COST_S = 0.1


class FreshReport:
    """Writes a run's report again and again. `clock` gives any steady seconds, `task_text` the tasks that it shows."""

    def __init__(
        self,
        folder: RunFolder,
        clock: Callable[[], float] = time.monotonic,
        *,
        task_text: "TaskText | None" = None,
    ) -> None:
        self._folder = folder
        self._task_text = task_text
        self._clock = clock
        self._next_s = clock() + _FIRST_COST_S / _MOST_SHARE
        self._writing: threading.Thread | None = None
        self._failed = False

    def step_done(self) -> None:
        """Starts a writing where it is time for one. Returns at once."""
        busy = self._writing is not None and self._writing.is_alive()
        if busy or self._failed or self._clock() < self._next_s:
            return
        self._writing = threading.Thread(target=self._refresh, name="report", daemon=True)
        self._writing.start()

    def end(self, ending: RunStatus | None) -> None:
        """Makes the last writing, see `write_report`."""
        self.wait()
        with only_shown(self._folder.report_html):
            self._write(ending)

    def wait(self) -> None:
        """Returns once nothing is being written."""
        if self._writing is not None:
            self._writing.join()

    def _refresh(self) -> None:
        began_s = self._clock()
        try:
            self._write()
        # It may be anything: a page must not end the run.
        except Exception as error:
            self._failed = True
            _log.warning("report.html is not refreshed before the run's end: %s", error)
        ended_s = self._clock()
        self._next_s = ended_s + (ended_s - began_s) / _MOST_SHARE

    def _write(self, ending: RunStatus | None = None) -> None:
        from swe_rl.report.page import write_report  # what a run does not need before its first step is done

        write_report(self._folder, ending, self._task_text)
