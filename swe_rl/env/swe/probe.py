"""Instances chosen by how hard they were for a model that tried them before: `env.probe=RUN_FOLDER env.keep=mixed`.

Invariants:
- Only verdicts count: an attempt that infrastructure broke is no attempt.
- An instance that the probe never judged is left out.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_rl.config.choices import INFRA_STATUSES, Keep
from swe_rl.env.instance import Instance, InstanceError


@dataclass(frozen=True, slots=True)
class Tried:
    solved: int
    attempts: int

    @property
    def kind(self) -> Keep:
        if self.solved == 0:
            return Keep.unsolved
        return Keep.solved if self.solved == self.attempts else Keep.mixed


def kept_instances(instances: Sequence[Instance], probe: str, keep: Sequence[Keep]) -> list[Instance]:
    """Raises InstanceError for a folder without trajectories, or when nothing is left."""
    tried = read_probe(Path(probe))
    judged = [instance for instance in instances if instance.instance_id in tried]
    left = [instance for instance in judged if tried[instance.instance_id].kind in keep]
    if not left:
        kinds = [tried[instance.instance_id].kind for instance in judged]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in Keep)
        raise InstanceError(
            f"env.probe={probe} leaves no instance for env.keep={','.join(keep)}: of {len(instances)} instances it "
            f"judged {len(judged)} ({counts}); probe more of them, or choose another env.keep"
        )
    return left


def read_probe(folder: Path) -> dict[str, Tried]:
    """Instance id to its verdicts, over all files of trajectories below a run's folder. Raises InstanceError."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.jsonl"))
    solved: dict[str, int] = {}
    attempts: dict[str, int] = {}
    for path in files:
        for instance_id, resolved in _verdicts(path):
            attempts[instance_id] = attempts.get(instance_id, 0) + 1
            solved[instance_id] = solved.get(instance_id, 0) + resolved
    if not attempts:
        raise InstanceError(
            f"env.probe={folder} holds no judged trajectory; give the folder of a run of job=eval or job=rollout"
        )
    return {name: Tried(solved[name], count) for name, count in attempts.items()}


def _verdicts(path: Path) -> Iterator[tuple[str, bool]]:
    """A line that is no trajectory (other files of a run end so too, the last one may be cut) says nothing."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and "trajectory_id" in record and record.get("status") not in INFRA_STATUSES:
                yield str(record["instance_id"]), record["status"] == "resolved"
