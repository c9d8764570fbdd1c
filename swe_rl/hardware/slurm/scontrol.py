"""SLURM's own view of a job, and the one request that a run makes of it: to be queued again.

Invariants:
- Nothing raises: a controller that does not answer is an answer too.
- Every command ends within TIMEOUT_S: a run that was told to end has seconds, not minutes.
"""

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TIMEOUT_S = 10.0
_FIELD = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)")
_UNSET = frozenset({"", "None", "Unknown", "N/A", "(null)"})

Command = Callable[[Sequence[str]], tuple[int, str]]


@dataclass(frozen=True, slots=True)
class JobView:
    """`state`: `RUNNING`, `PENDING`, ...; a job that is being ended is `COMPLETING`, whatever it is going to be, and
    `reason` may know more. `preempted`: SLURM wants its place for another; `restarts`: how often it was queued again.
    """

    state: str
    reason: str = ""
    preempted: bool = False
    restarts: int = 0

    @property
    def out_of_time(self) -> bool:
        return self.state == "TIMEOUT" or (self.state == "COMPLETING" and self.reason == "TimeLimit")


def run_command(words: Sequence[str]) -> tuple[int, str]:
    """Status and what was printed; 127 where there is no such program, 124 where it took too long."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"{words[0]} did not answer within {TIMEOUT_S:.0f} s"
    except OSError as error:
        return 127, f"{words[0]}: {error.strerror or error}"
    return done.returncode, done.stdout if done.returncode == 0 else (done.stderr or done.stdout).strip()


def view(job_id: str, run: Command = run_command) -> JobView | None:
    """None where SLURM does not answer or knows no such job."""
    status, text = run(["scontrol", "show", "job", "--oneliner", job_id])
    return parse(text) if status == 0 else None


def parse(text: str) -> JobView | None:
    """Of one line of `scontrol show job --oneliner`."""
    fields = dict(_FIELD.findall(text))
    if "JobState" not in fields:
        return None
    return JobView(
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        preempted=fields.get("PreemptTime", "None") not in _UNSET,
        restarts=int(fields["Restarts"]) if fields.get("Restarts", "").isdigit() else 0,
    )


def requeue(job_id: str, run: Command = run_command) -> str | None:
    """Asks SLURM to queue the job again; None if it will, else what it said."""
    status, text = run(["scontrol", "requeue", job_id])
    return None if status == 0 else " ".join(text.split()) or f"scontrol ended with {status}"
