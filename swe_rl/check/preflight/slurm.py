"""Probes SLURM: the partition exists, gives that much time and has such nodes.

Invariants:
- Nothing is submitted; `sinfo` only reads.
- Nodes out of service are a warning: they may be back when the job's turn comes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches

from swe_rl.check.findings import Finding, Severity, error, warning
from swe_rl.check.preflight.gpus import uses_gpus
from swe_rl.check.preflight.system import System
from swe_rl.config.choices import RuntimeKind
from swe_rl.config.schema import Config
from swe_rl.files.lines import lines_of
from swe_rl.host.program import Unanswered, asking_slurm

_COMMAND = ("sinfo", "-h", "-a", "-e", "-o", "%P %l %D %G %c %m %t")
_SOCKETS = re.compile(r"\([^)]*\)")
_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_OUT_OF_SERVICE = ("down", "drain", "drng", "fail", "futr", "inval", "maint", "unk")
_ALMOST = 0.98  # SLURM knows a node's memory less what the system keeps


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Holds nodes of one partition that are alike. `limit_min` is None where the partition has no time limit."""

    partition: str
    limit_min: float | None
    nodes: int
    gpus: int
    cpus: int
    memory_gb: float
    in_service: bool


@dataclass(frozen=True, slots=True)
class Wish:
    """Says what one SLURM job asks of its partition. `group` is hardware or runtime."""

    group: str
    partition: str
    nodes: int
    gpus: int
    cpus: int
    memory_gb: float
    limit_min: int

    def fits(self, group: NodeGroup) -> bool:
        return group.gpus >= self.gpus and group.cpus >= self.cpus and group.memory_gb >= self.memory_gb * _ALMOST


def runs_elsewhere(config: Config, system: System) -> bool:
    """Tells whether this machine only submits the job."""
    inside = "SLURM_JOB_ID" in system.environment
    return config.hardware.partition is not None and not inside and system.find_program("sinfo") is not None


def probe_partitions(config: Config, system: System) -> Iterator[Finding]:
    wishes = list(_list_wishes(config))
    if not wishes:
        return
    done = system.run(_COMMAND, environment=asking_slurm(system.environment))
    if done is None:
        if "SLURM_JOB_ID" not in system.environment:
            yield warning(
                "preflight_unknown",
                "hardware.partition",
                "there is no `sinfo` here, so SLURM cannot be asked about the partition",
                "run this check on a login node of the cluster",
            )
        return
    if done.status != 0:
        raise Unanswered(f"sinfo: {done.reason}")
    groups = read_groups(done.stdout)
    for wish in wishes:
        yield from _check_partition(wish, groups)


def _list_wishes(config: Config) -> Iterator[Wish]:
    hardware = config.hardware
    runtime = config.runtime
    if hardware.partition is not None:
        gpus = 0
        if uses_gpus(config):
            gpus = hardware.gpus_per_node
        yield Wish(
            "hardware",
            hardware.partition,
            hardware.nodes,
            gpus,
            hardware.cpus_per_node,
            hardware.memory_gb,
            hardware.time_limit_min,
        )
    if runtime.kind is RuntimeKind.job and runtime.partition is not None:
        yield Wish(
            "runtime",
            runtime.partition,
            runtime.nodes,
            0,
            runtime.cpus_per_node,
            runtime.memory_gb,
            runtime.time_limit_min or hardware.time_limit_min,
        )


def _check_partition(wish: Wish, groups: list[NodeGroup]) -> Iterator[Finding]:
    """Finds what a partition lacks.

    A wish may name several partitions, `a,b`: SLURM takes the one where the job starts first, for all its nodes.
    """
    choices: list[list[Finding]] = []
    known = sorted({group.partition for group in groups})
    for name in wish.partition.split(","):
        if name not in known:
            yield _no_such(wish, name, known)
            continue
        mine = [group for group in groups if group.partition == name]
        choice = replace(wish, partition=name)
        choices.append([*_check_time(choice, mine), *_check_nodes(choice, mine)])
    yield from min(choices, key=lambda findings: [row.severity is Severity.error for row in findings], default=[])


def _no_such(wish: Wish, name: str, known: list[str]) -> Finding:
    near = get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
    return error(
        "preflight_partition",
        f"{wish.group}.partition",
        f"this cluster has no partition {name}; it has {', '.join(known[:12]) or 'none that you may see'}",
        " or ".join(f"{wish.group}.partition={partition}" for partition in near) or "ask the cluster's administrators",
    )


def _check_time(wish: Wish, groups: list[NodeGroup]) -> Iterator[Finding]:
    limits = [group.limit_min for group in groups if group.limit_min is not None]
    if len(limits) < len(groups):
        return  # one of them has no limit
    longest = int(max(limits))
    if longest < wish.limit_min:
        yield error(
            "preflight_slurm_time",
            f"{wish.group}.time_limit_min",
            f"partition {wish.partition} ends jobs after {longest} minutes; SLURM would never start this one",
            f"{wish.group}.time_limit_min={longest}, or another {wish.group}.partition",
            value=wish.limit_min,
        )


def _check_nodes(wish: Wish, groups: list[NodeGroup]) -> Iterator[Finding]:
    fitting = [group for group in groups if wish.fits(group)]
    total = _sum_nodes(fitting)
    up = _sum_nodes([group for group in fitting if group.in_service])
    wanted = f"{_count_nodes(wish.nodes)} with {_describe_size(wish.gpus, wish.cpus, wish.memory_gb)} needed"
    if total < wish.nodes:
        largest = max(groups, key=lambda group: (group.gpus, group.cpus, group.memory_gb))
        largest_size = _describe_size(largest.gpus, largest.cpus, largest.memory_gb)
        has = f"{_count_nodes(_sum_nodes(groups))}, the largest with {largest_size}"
        yield error(
            "preflight_slurm_nodes",
            f"{wish.group}.{_short_of(wish, groups)}",
            f"{wanted}; partition {wish.partition} has {total} such nodes ({has})",
            f"another {wish.group}.partition, or a smaller {wish.group}.{_short_of(wish, groups)}",
        )
    elif up < wish.nodes:
        yield warning(
            "preflight_slurm_nodes",
            f"{wish.group}.nodes",
            f"{wanted}; of {total} such nodes in partition {wish.partition}, {up} are in service now",
            f"another {wish.group}.partition, or wait until they are back",
        )


def _short_of(wish: Wish, groups: list[NodeGroup]) -> str:
    """Returns the key to blame: the first need that no node of the partition meets, or else the number of nodes."""
    needs = {
        "gpus_per_node": any(group.gpus >= wish.gpus for group in groups),
        "cpus_per_node": any(group.cpus >= wish.cpus for group in groups),
        "memory_gb": any(group.memory_gb >= wish.memory_gb * _ALMOST for group in groups),
    }
    return next((key for key, met in needs.items() if not met), "nodes")


def _describe_size(gpus: int, cpus: int, memory_gb: float) -> str:
    return f"{gpus} GPUs, {cpus} CPUs and {memory_gb:.0f} GB"


def _count_nodes(nodes: int) -> str:
    return f"{nodes} node{'' if nodes == 1 else 's'}"


def _sum_nodes(groups: list[NodeGroup]) -> int:
    return sum(group.nodes for group in groups)


# This probes SLURM's accounts and qualities of service: the user may use what the configuration names.
# - It is silent where the cluster keeps no accounts, or none for this user.
# - SLURM's controller compares both without case; its database, which sacctmgr prints, keeps them in lower case.
def probe_account(config: Config, system: System) -> Iterator[Finding]:
    hardware = config.hardware
    if hardware.partition is None or (hardware.account is None and hardware.qos is None):
        return
    command = ["sacctmgr", "-n", "-P", "show", "assoc", f"user={system.user[0]}", "format=account,qos"]
    done = system.run(command, environment=asking_slurm(system.environment))
    if done is None or done.status != 0:
        return
    rows = [line.split("|") for line in lines_of(done.stdout.lower(), ends=False) if line.strip()]
    accounts = sorted({row[0] for row in rows if row[0]})
    if hardware.account is not None and accounts and hardware.account.lower() not in accounts:
        yield _not_yours("account", hardware.account, accounts)
        return
    mine = [row for row in rows if len(row) > 1 and (hardware.account or row[0]).lower() == row[0]]
    levels = sorted({level for row in mine for level in row[1].split(",") if level})
    if hardware.qos is not None and levels and hardware.qos.lower() not in levels:
        yield _not_yours("qos", hardware.qos, levels)


def _not_yours(field: str, value: str, yours: list[str]) -> Finding:
    near = get_close_matches(value, yours, n=1, cutoff=0.4) or yours[:1]
    return error(
        "preflight_account",
        f"hardware.{field}",
        f"SLURM lets you use {', '.join(yours)}",
        f"hardware.{field}={near[0]}",
    )


# The rest reads the text that `sinfo` prints.
def read_groups(text: str) -> list[NodeGroup]:
    """Returns the groups of nodes in lines of _COMMAND. Raises Unanswered for a line of another shape."""
    return [_parse_group(line) for line in lines_of(text, ends=False) if line.strip()]


def _parse_group(line: str) -> NodeGroup:
    try:
        partition, limit, nodes, gres, cpus, memory_mib, state = line.split()
        return NodeGroup(
            partition.rstrip("*"),
            parse_minutes(limit),
            int(nodes),
            _gpus_in_gres(gres),
            int(cpus.rstrip("+")),
            int(memory_mib.rstrip("+")) * 1024**2 / 1e9,
            not state.startswith(_OUT_OF_SERVICE),
        )
    except ValueError as error:
        raise Unanswered(f"sinfo wrote a line of an unknown shape: {line.strip()!r}") from error


def _gpus_in_gres(gres: str) -> int:
    """Returns the number of GPUs in a text such as `gpu:a100:4(S:0-1),lustre:1`. A name without a number is one."""
    parts = [part.split(":") for part in _SOCKETS.sub("", gres).split(",")]
    return sum(int(part[-1]) if part[-1].isdigit() else 1 for part in parts if part[0] == "gpu")


def parse_minutes(text: str) -> float | None:
    """Returns the minutes of `1-12:00:00`, `4:00:00` or `30:00` (minutes and seconds), or None for `infinite`.

    Raises ValueError for any other text.
    """
    if text in ("infinite", "UNLIMITED", "n/a"):
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a duration: {text!r}")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:  # the text is D-HH[:MM[:SS]]
        hours, mins, secs = [*parts, 0, 0][:3]
        return int(days) * 1440 + hours * 60 + mins + secs / 60
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + parts[2] / 60
    return parts[0] + (parts[1] / 60 if len(parts) == 2 else 0)
