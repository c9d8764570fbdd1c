"""This module knows the other nodes of this job's allocation: their names, their addresses, and how a program is
started there.

Invariants:
- A step is part of the job: SLURM ends it with the job, and it ends when `srun`'s input ends.
- What `srun` would take from the environment of a step that this process is in itself is not handed on.
"""

import re
from collections.abc import Mapping, Sequence

from swe_rl.errors import UserError
from swe_rl.hardware.slurm.jobs import Allocation, Run, SlurmError, current_allocation, run_scontrol
from swe_rl.host.program import run_program

_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")
# These variables of the step that this process may be in would shape the step that it starts.
_OF_A_STEP = (
    "SLURM_CPU_BIND",
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_GPUS_PER_TASK",
    "SLURM_MEM_BIND",
    "SLURM_NNODES",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TRES_PER_TASK",
)


class NodesError(UserError):
    """The allocation does not have the nodes that the layout speaks of."""


def node_names(here: Allocation, home: int, run: Run = run_program) -> tuple[str, ...]:
    """Returns names by the layout's numbers: `home` is this process's node, the others follow in SLURM's order.

    Raises NodesError.
    """
    try:
        names = run_scontrol("show", "hostnames", here.node_list, run=run).split()
        problem = ""
    except SlurmError as error:
        names = []
        problem = str(error)
    if not names:
        raise NodesError(f"SLURM does not tell the nodes of job {here.job_id} ({here.node_list}): {problem}")
    if here.node in names:
        home_name = here.node
    else:
        home_name = names[0]
    others = [name for name in names if name != home_name]
    if home > len(others):
        raise NodesError(
            f"The layout speaks of node {home}, and job {here.job_id} has {len(names)} ({here.node_list}): ask for "
            "more with hardware.nodes, or take a smaller layout"
        )
    return (*others[:home], home_name, *others[home:])


def names_of(
    away: Sequence[int],
    home: int,
    what: str,
    otherwise: str,
    environ: Mapping[str, str],
    run: Run = run_program,
) -> tuple[str, ...]:
    """Returns `node_names` for a layout that puts something on the nodes `away`, or () if nothing is away.

    `what` begins the message (`layout=NAME puts an engine`) and `otherwise` ends it outside a job. Raises NodesError.
    """
    if not away:
        return ()
    here = current_allocation(environ)
    if here is None:
        raise NodesError(
            f"{what} on node {away[0]}, where only SLURM can start it: start the run inside a job of that many nodes, "
            f"or {otherwise}"
        )
    names = node_names(here, home, run)
    if max(away) >= len(names):
        raise NodesError(
            f"{what} on node {max(away)}, and job {here.job_id} has {len(names)} ({here.node_list}): ask for more with "
            "hardware.nodes, or take a smaller layout"
        )
    return names


def node_address(node: str, run: Run = run_program) -> str:
    """Returns where the node is reached: what SLURM itself uses, which is its name on most clusters."""
    try:
        match = _ADDRESS.search(run_scontrol("show", "node", node, run=run))
    except SlurmError:
        return node
    if match:
        return match[1]
    return node


def step_command(node: str, name: str) -> tuple[str, ...]:
    """Returns the command line before a program that is to run on `node`, beside whatever the job runs there."""
    place = ("--nodes=1", "--ntasks=1", f"--nodelist={node}")
    return ("srun", "--overlap", *place, f"--job-name={name}", "--export=ALL", "--kill-on-bad-exit=1", "--quiet")


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environ.items() if key not in _OF_A_STEP}
