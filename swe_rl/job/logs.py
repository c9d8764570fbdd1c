"""`job=logs` shows what the jobs of a sweep print: the last lines of each, or on and on.

Invariants:
- It only reads: standard output and standard error as SLURM keeps them; a run's own `run.log` where there are none.
- Each line of a sweep's says which job it is of; those of one job (`job.number`) stand alone, for other programs.
"""

from collections.abc import Mapping
from pathlib import Path

from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.host.terminal import sleep_while_read
from swe_rl.logger.folder import RunFolder
from swe_rl.submission.find import Sweep, find_sweep
from swe_rl.submission.rows import JobRow, last_lines, output_files, whole_lines

_LOOK_S = 1.0


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Prints logs. Raises NoSubmission, UserError."""
    del folder, origins
    if config.job.lines < 0:
        raise UserError(f"job.lines={config.job.lines} must not be negative.")
    sweep = find_sweep(config)
    rows = _choose_rows(sweep.rows(), config.job.number)
    read = {path: whole_lines(path, 0)[1] for row in rows for path in _log_files(sweep, row)}
    for row in rows:
        _print_tail(sweep, row, config.job.lines, read, alone=config.job.number is not None)
    if config.job.follow:
        _follow_logs(sweep, config.job.number, read)
    return 0


def _choose_rows(rows: list[JobRow], number: int | None) -> list[JobRow]:
    if number is None:
        return rows
    chosen = [row for row in rows if row.number == number]
    if not chosen:
        raise UserError(f"job.number={number}: the sweep has the jobs 0 to {len(rows) - 1}.")
    return chosen


def _print_tail(sweep: Sweep, row: JobRow, lines: int, read: Mapping[Path, int], *, alone: bool) -> None:
    """Prints the last lines. `read` says how far each file is shown, in bytes."""
    for path in _log_files(sweep, row):
        if not alone:
            print(f"== job {row.number} ({row.outcome}) {path}")
        if last := last_lines(path, lines, read.get(path, 0)):
            print("\n".join(last), flush=True)


def _log_files(sweep: Sweep, row: JobRow) -> list[Path]:
    """Returns the log files of the job and of its servers."""
    printed = output_files(sweep.folder, row.slurm_id) if row.slurm_id else []
    log = RunFolder(row.folder).run_log
    if sweep.submission is not None:
        servers = sweep.submission.jobs[row.number].server_logs()
    else:
        servers = {}
    return [*(printed or ([log] if log.is_file() else [])), *servers.values()]


def _follow_logs(sweep: Sweep, number: int | None, read: dict[Path, int]) -> None:
    """Prints lines until all the jobs have ended, or nobody reads."""
    while True:
        rows = _choose_rows(sweep.rows(), number)
        for row in rows:
            for path in _log_files(sweep, row):
                lines, read[path] = whole_lines(path, read.get(path, 0))
                for line in lines:
                    print(line if number is not None else f"[{row.number}] {line}", flush=True)
        if all(row.outcome.is_end for row in rows):
            return
        sleep_while_read(_LOOK_S)
