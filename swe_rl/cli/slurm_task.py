"""A batch script starts this program: `python -m swe_rl.cli.slurm_task FOLDER NUMBER` runs one job of a submitted
sweep.

Invariants:
- Code, conf/ and overrides are those of the submission; nothing of the folder where the job starts is read.
- The exit status is the job's own, so that SLURM says the same as `status.json`.
- The markers of SkyRL's logs (`Started: 'step'`, ...) reach the job's standard error, where people look for them.
"""

import logging
import os
import sys
from pathlib import Path

from swe_rl.host.ending import bound_ending

MARKERS = ("Started: '", "Finished: '", "avg_final_rewards: ")


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or not arguments[1].isdecimal():
        print("usage: python -m swe_rl.cli.slurm_task FOLDER NUMBER", file=sys.stderr)
        return 2
    from swe_rl.hardware.slurm.requeue import keep_warnings

    keep_warnings()
    from swe_rl.cli.launch import start_submitted

    show_markers()
    with bound_ending():
        return start_submitted(Path(arguments[0]), int(arguments[1]), job_id(os.environ))


def job_id(environ: "os._Environ[str] | dict[str, str]") -> str:
    from swe_rl.hardware.slurm.jobs import current_allocation

    here = current_allocation(environ)
    if here is None:
        return ""
    return here.job_id


def show_markers() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.addFilter(lambda record: record.getMessage().startswith(MARKERS))
    logging.getLogger("swe_rl.progress").addHandler(handler)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
