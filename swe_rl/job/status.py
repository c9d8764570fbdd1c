"""`job=status` shows a sweep's jobs at a glance: state, step, tokens/s, reward, last sign of life, why it waits, and
what is wrong with its training.

Invariants:
- It reads the disk and the queue; it changes nothing, and may be asked from any machine that sees the folder.
- `job.format=json` prints one object a job and nothing else.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from swe_rl.config.choices import OutputFormat
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.files.json_text import encode_json
from swe_rl.host.terminal import sleep_while_read
from swe_rl.logger.folder import RunFolder
from swe_rl.report.health.findings import HealthFinding, describe_finding
from swe_rl.report.health.run import judge_run
from swe_rl.submission.find import Sweep, find_sweep
from swe_rl.submission.rows import JobOutcome, JobRow
from swe_rl.submission.table import describe_failures, format_table, watch_rows

# A table of many jobs stays in sight above so many lines.
_MOST_HEALTH_LINES = 12


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Returns 0 whatever became of the jobs: the question was answered. Raises NoSubmission."""
    del folder, origins
    sweep = find_sweep(config)
    if config.job.follow:
        rows = watch_rows(sweep.rows, sys.stdout, sleep=sleep_while_read)
        print("\n".join(describe_failures(rows)), flush=True)
    elif config.job.format is OutputFormat.json:
        print(encode_json([_record_of(row) for row in sweep.rows()], indent=True).decode())
    else:
        _print_status(sweep, sweep.rows())
    return 0


def _print_status(sweep: Sweep, rows: list[JobRow]) -> None:
    print(sweep.folder)
    print("\n".join(format_table(rows)))
    bad = [row for row in rows if row.outcome.is_end and row.outcome is not JobOutcome.done]
    if bad:
        print("\n".join(describe_failures(bad)[:-1]))
    for line in _health_lines(rows):
        print(line)
    sys.stdout.flush()


def _record_of(row: JobRow) -> dict[str, Any]:
    health = [asdict(finding) for finding in _health_of(row)]
    return {**asdict(row), "outcome": row.outcome.value, "folder": str(row.folder), "health": health}


def _health_lines(rows: list[JobRow]) -> list[str]:
    """Returns a line for each finding. What many jobs have in common is said of the first few."""
    lines = [f"health of job {row.number}: {describe_finding(finding)}" for row in rows for finding in _health_of(row)]
    left = len(lines) - _MOST_HEALTH_LINES
    if left > 0:
        return [*lines[:_MOST_HEALTH_LINES], f"{left} more findings on health: job.format=json has all of them"]
    return lines


def _health_of(row: JobRow) -> list[HealthFinding]:
    folder = RunFolder(row.folder)
    return judge_run(folder, folder.status())
