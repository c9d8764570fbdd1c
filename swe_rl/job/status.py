"""`job=status` shows a sweep's jobs at a glance: state, step, tokens/s, reward, last sign of life, why it waits.

Invariants:
- It reads the disk and the queue; it changes nothing, and may be asked from any machine that sees the folder.
- `job.format=json` prints one object a job and nothing else.
"""

import sys
from dataclasses import asdict
from pathlib import Path

from swe_rl.config.choices import OutputFormat
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.files.disk import encode_json
from swe_rl.host.terminal import sleep_while_read
from swe_rl.submission.find import Sweep, find_sweep
from swe_rl.submission.rows import JobOutcome, JobRow
from swe_rl.submission.table import describe_failures, format_table, watch_rows


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Returns 0 whatever became of the jobs: the question was answered. Raises NoSubmission."""
    del folder, origins
    sweep = find_sweep(config)
    if config.job.follow:
        rows = watch_rows(sweep.rows, sys.stdout, sleep=sleep_while_read)
        print("\n".join(describe_failures(rows)), flush=True)
    elif config.job.format is OutputFormat.json:
        values = [{**asdict(row), "outcome": row.outcome.value, "folder": str(row.folder)} for row in sweep.rows()]
        print(encode_json(values, indent=True).decode())
    else:
        _print_status(sweep, sweep.rows())
    return 0


def _print_status(sweep: Sweep, rows: list[JobRow]) -> None:
    print(sweep.folder)
    print("\n".join(format_table(rows)))
    bad = [row for row in rows if row.outcome.is_end and row.outcome is not JobOutcome.done]
    if bad:
        print("\n".join(describe_failures(bad)[:-1]))
    sys.stdout.flush()
