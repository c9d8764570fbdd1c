"""SLURM's own words: `sinfo` lines and time limits.

Invariants:
- Pure: text in, numbers out.
"""

import re
from dataclasses import dataclass

from swe_rl.host.program import Unanswered

COMMAND = ("sinfo", "-h", "-a", "-e", "-o", "%P %l %D %G %c %m %t")
_SOCKETS = re.compile(r"\([^)]*\)")
_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_OUT_OF_SERVICE = ("down", "drain", "drng", "fail", "futr", "inval", "maint", "unk")


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one partition that are alike; `limit_min` is None where the partition has no time limit."""

    partition: str
    limit_min: float | None
    nodes: int
    gpus: int
    cpus: int
    memory_gb: float
    in_service: bool


def read_groups(text: str) -> list[NodeGroup]:
    """Lines of COMMAND. Raises Unanswered for a line of another shape."""
    return [_group(line) for line in text.splitlines() if line.strip()]


def _group(line: str) -> NodeGroup:
    try:
        partition, limit, nodes, gres, cpus, memory_mib, state = line.split()
        return NodeGroup(
            partition.rstrip("*"),
            minutes(limit),
            int(nodes),
            _gpus(gres),
            int(cpus.rstrip("+")),
            int(memory_mib.rstrip("+")) * 1024**2 / 1e9,
            not state.startswith(_OUT_OF_SERVICE),
        )
    except ValueError as error:
        raise Unanswered(f"sinfo wrote a line of an unknown shape: {line.strip()!r}") from error


def _gpus(gres: str) -> int:
    """Of `gpu:a100:4(S:0-1),lustre:1`; a name without a number is one."""
    parts = [part.split(":") for part in _SOCKETS.sub("", gres).split(",")]
    return sum(int(part[-1]) if part[-1].isdigit() else 1 for part in parts if part[0] == "gpu")


def minutes(text: str) -> float | None:
    """Of `1-12:00:00`, `4:00:00`, `30:00` (minutes and seconds); None for `infinite`. Raises ValueError."""
    if text in ("infinite", "UNLIMITED", "n/a"):
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a duration: {text!r}")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:  # D-HH[:MM[:SS]]
        hours, mins, secs = [*parts, 0, 0][:3]
        return int(days) * 1440 + hours * 60 + mins + secs / 60
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + parts[2] / 60
    return parts[0] + (parts[1] / 60 if len(parts) == 2 else 0)
