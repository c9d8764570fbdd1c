"""What SLURM says of the job that this process is in.

Invariants:
- Pure: an environment in, facts out; no command is run here.
- `job_id` names this job alone. The bare number of an array's element may be the whole array's.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allocation:
    """`job_id` as `scontrol` takes it; `restarts`: how often the job was queued again before this start."""

    job_id: str
    cluster: str
    restarts: int
    num_nodes: int
    node: str
    node_list: str

    @property
    def key(self) -> str:
        """The same for every start of this job, different for jobs of another cluster."""
        return f"{self.cluster}:{self.job_id}"


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """None outside a SLURM job."""
    number = environ.get("SLURM_JOB_ID", "").strip()
    if not number:
        return None
    array, element = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    return Allocation(
        job_id=f"{array}_{element}" if array and element else number,
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        restarts=_number(environ.get("SLURM_RESTART_COUNT"), 0),
        num_nodes=_number(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES"), 1),
        node=environ.get("SLURMD_NODENAME", ""),
        node_list=environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", ""),
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdigit() else otherwise
