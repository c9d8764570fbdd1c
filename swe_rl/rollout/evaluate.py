"""The held-out measure: every instance of a split, the same number of samples each."""

from typing import Any

from swe_rl.rollout.batch import groups_of
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.trajectory import INFRA_STATUSES, Status, cheating_counts


def eval_numbers(
    collected: Collected, *, step: int, split: str, eval_s: float, split_instances: int | None = None
) -> dict[str, Any]:
    """`resolved_rate` counts an infrastructure failure neither as solved nor as a sample. `split_instances`: how many
    the split has, those that were left out of this evaluation included."""
    by_instance: dict[str, list[int]] = {}
    for group in groups_of(collected.trajectories).values():
        valid = [one for one in group if one.status not in INFRA_STATUSES]
        by_instance[group[0].instance_id] = [sum(one.status is Status.resolved for one in valid), len(valid)]
    solved, samples = (sum(counts[i] for counts in by_instance.values()) for i in (0, 1))
    return {
        "step": step,
        "split": split,
        "resolved_rate": solved / samples if samples else None,
        "num_samples": samples,
        "num_instances": len(by_instance),
        "split_instances": split_instances,
        "eval_s": eval_s,
        "by_instance": by_instance,
        "cheating": cheating_counts(collected.trajectories),
    }
