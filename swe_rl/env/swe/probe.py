"""Chooses instances by how hard they were for a model that tried them: `env.probe=RUN_FOLDER env.keep=mixed`.

Invariants:
- Only verdicts count: an attempt that infrastructure broke is no attempt.
- An instance that the probe never judged is left out.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swe_rl.config.choices import INFRA_STATUSES, Keep
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.logger.jsonl import iter_jsonl


@dataclass(frozen=True, slots=True)
class Tried:
    """Counts what a probe's attempts at one instance came to."""

    solved: int
    attempts: int

    @property
    def kind(self) -> Keep:
        """Returns which entry of `env.keep` the instance falls under."""
        if self.solved == 0:
            return Keep.unsolved
        return Keep.solved if self.solved == self.attempts else Keep.mixed


def kept_instances(instances: Sequence[Instance], probe: str, keep: Sequence[Keep]) -> list[Instance]:
    """Returns the instances that the probe found to be of a kind in `keep`.

    Raises InstanceError for a folder without trajectories, or when nothing is left.
    """
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
    """Returns the verdicts of each instance, over all files of trajectories below a run's folder.

    Raises InstanceError.
    """
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.jsonl"))
    solved: dict[str, int] = {}
    attempts: dict[str, int] = {}
    for path in files:
        for instance_id, resolved in _read_verdicts(path):
            attempts[instance_id] = attempts.get(instance_id, 0) + 1
            solved[instance_id] = solved.get(instance_id, 0) + resolved
    if not attempts:
        raise InstanceError(
            f"env.probe={folder} holds no judged trajectory; give the folder of a run of job=eval or job=rollout"
        )
    return {name: Tried(solved[name], count) for name, count in attempts.items()}


def _read_verdicts(path: Path) -> Iterator[tuple[str, bool]]:
    """Yields the instance and whether it was resolved, for each judged attempt of a file.

    A line that is no trajectory, as other files of a run have them, gives nothing. A file that cannot be read gives
    nothing either.
    """
    with suppress(OSError):
        for record in iter_jsonl(path):
            name = record.get("instance_id")
            status = record.get("status")
            is_attempt = "trajectory_id" in record and isinstance(name, str) and isinstance(status, str)
            if is_attempt and status not in INFRA_STATUSES:
                yield str(name), status == "resolved"
