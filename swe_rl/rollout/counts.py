"""Sorts trajectories by group, instance and part of a mix, and counts solved and valid attempts.

Invariants:
- An attempt that infrastructure broke is not valid, and counts nowhere.
"""

from collections.abc import Callable, Sequence
from typing import Any

from swe_rl.algo.advantage import is_degenerate
from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.rollout.trajectory import Status, Trajectory


def groups_of(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return groups


def in_baseline(group: Sequence[Trajectory]) -> list[bool]:
    return [trajectory.in_baseline and trajectory.reward is not None for trajectory in group]


def degenerate_groups(trajectories: Sequence[Trajectory]) -> set[str]:
    """Returns the ids of the groups that have nothing to compare: equal rewards, or fewer than two in the baseline."""
    groups = groups_of(trajectories).items()
    return {name for name, group in groups if is_degenerate_group(group)}


def is_degenerate_group(group: Sequence[Trajectory]) -> bool:
    return is_degenerate([trajectory.reward for trajectory in group], in_baseline(group))


def signal_rate(trajectories: Sequence[Trajectory]) -> float | None:
    """Returns the share of groups in which rewards differ; None where each group is one trajectory."""
    groups = groups_of(trajectories)
    if groups and all(len(group) == 1 for group in groups.values()):
        return None
    return 1.0 - len(degenerate_groups(trajectories)) / max(1, len(groups))


def valid_counts(trajectories: Sequence[Trajectory]) -> dict[str, tuple[int, int]]:
    """Returns (solved, valid attempts) of each instance, in the order of first sight."""
    counts: dict[str, tuple[int, int]] = {}
    for trajectory in trajectories:
        solved, attempts = counts.get(trajectory.instance_id, (0, 0))
        valid = trajectory.status not in INFRA_STATUSES
        counts[trajectory.instance_id] = (solved + (trajectory.status is Status.resolved), attempts + valid)
    return counts


def resolved_numbers(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Returns the resolved rate over all valid attempts, and what it is over."""
    by_instance = valid_counts(trajectories)
    solved, samples = (sum(counts[i] for counts in by_instance.values()) for i in (0, 1))
    return {
        "resolved_rate": solved / samples if samples else None,
        "num_samples": samples,
        "num_instances": len(by_instance),
    }


def learning_numbers(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Returns what tells whether there is something to learn from a step's trajectories."""
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    counts = valid_counts(trajectories)
    solved, samples = (sum(pair[i] for pair in counts.values()) for i in (0, 1))
    return {
        "groups": len(groups_of(trajectories)),
        "num_trajectories": len(trajectories),
        "avg_response_length": sum(attempt.response_tokens for attempt in trajectories) / max(1, len(trajectories)),
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "signal_rate": signal_rate(trajectories),
        "resolved_rate": solved / samples if samples else None,
        "resolved_samples": samples,
    }


def part_of_eval(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Returns what an evaluation says of one part. Its instances are named once, in `by_instance` of the whole."""
    return {**resolved_numbers(trajectories), "instances": list(valid_counts(trajectories))}


def part_numbers(trajectories: Sequence[Trajectory], numbers: Callable[[Sequence[Trajectory]], Any]) -> dict[str, Any]:
    """Returns what `numbers` says of the trajectories of each part of a mix; nothing where there is one environment."""
    by_part: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_part.setdefault(trajectory.part, []).append(trajectory)
    if not any(by_part):
        return {}
    return {"parts": {name: numbers(members) for name, members in sorted(by_part.items())}}
