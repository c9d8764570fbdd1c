"""`job=status`: a sweep's jobs at a glance: state, step, response tokens/s, reward, last sign of life, why it waits.

Invariants:
- Reads the disk and the queue; changes nothing, and may be asked from any machine that sees the folder.
- `job.format=json` prints one object a job and nothing else.
"""

import sys
from dataclasses import asdict
from pathlib import Path

from swe_rl.config.choices import OutputFormat
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.host.terminal import sleep_while_read
from swe_rl.logger.disk import encode_json
from swe_rl.submission.find import Sweep, find_sweep
from swe_rl.submission.rows import JobRow, Outcome
from swe_rl.submission.table import failures, table, watch


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """0 whatever became of the jobs: the question was answered. Raises NoSubmission."""
    del folder, origins
    sweep = find_sweep(config)
    if config.job.follow:
        rows = watch(sweep.rows, sys.stdout, sleep=sleep_while_read)
        print("\n".join(failures(rows)), flush=True)
    elif config.job.format is OutputFormat.json:
        values = [{**asdict(row), "outcome": row.outcome.value, "folder": str(row.folder)} for row in sweep.rows()]
        print(encode_json(values, indent=True).decode())
    else:
        _print(sweep, sweep.rows())
    return 0


def _print(sweep: Sweep, rows: list[JobRow]) -> None:
    print(sweep.folder)
    print("\n".join(table(rows)))
    bad = [row for row in rows if row.outcome.is_end and row.outcome is not Outcome.done]
    if bad:
        print("\n".join(failures(bad)[:-1]))
    sys.stdout.flush()
