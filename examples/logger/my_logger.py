"""A logger of your own: a table of comma-separated values beside the run's files."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MyLogger:
    """Writes the figures of each step into `my_logger.csv` of the run's folder."""

    def __init__(self, folder: Path, columns: list) -> None:
        self._path = folder / "my_logger.csv"
        self._columns = ["step", *columns]

    def log(self, record: Mapping[str, Any], step: int) -> None:
        is_new = not self._path.exists()
        with self._path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
            if is_new:
                writer.writeheader()
            writer.writerow({**record, "step": step})

    evaluated = log  # evaluations have rows of their own, with columns such as eval/heldout/resolved_rate

    def summarize(self, summary: Mapping[str, Any]) -> None:
        self._path.with_suffix(".txt").write_text(f"resolved {summary.get('resolved_rate_after')}\n", encoding="utf-8")

    def finish(self, exit_status: int) -> None:
        """There is nothing to close."""
