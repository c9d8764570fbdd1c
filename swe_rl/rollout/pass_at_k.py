"""Computes pass@k over a split: how likely one of k attempts at an instance is right.

Invariants:
- It is pure. Intervals are those of `report/statistics`, over instances, and the resolved rate is that of
  `report/resolved`.
- Attempts that infrastructure broke are no attempts; an instance with fewer than k valid ones has no pass@k and is left
  out of that mean, which then says over how many instances it was taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from typing import Any

from swe_rl.report.resolved import of_counts
from swe_rl.report.statistics import clustered_interval
from swe_rl.rollout.counts import part_numbers, valid_counts
from swe_rl.rollout.trajectory import Trajectory, cheating_counts

_RESOLVED = ("rate", "low", "high", "num_samples", "num_instances")


@dataclass(frozen=True, slots=True)
class PassRate:
    k: int
    rate: float
    low: float
    high: float
    # These have at least k valid attempts.
    num_instances: int
    # These have fewer.
    left_out: int = 0
    # This is the rate of all instances, had those failed.
    least: float = 0.0
    # This is the rate of all instances, had those passed.
    most: float = 0.0


def pass_at_k(solved: int, attempts: int, k: int) -> float:
    """Returns 1 - C(attempts - solved, k) / C(attempts, k). Raises ValueError for k > attempts.

    It is the unbiased estimate of Chen et al. 2021 (arXiv 2107.03374), section 2.1, equation 1.
    """
    if not 1 <= k <= attempts:
        raise ValueError(f"pass@{k} needs at least {k} attempts, not {attempts}")
    return 1.0 - comb(attempts - solved, k) / comb(attempts, k)


def pass_rate(counts: Sequence[tuple[int, int]], k: int) -> PassRate | None:
    """Returns pass@k over instances; None where no instance has k valid attempts.

    `counts` are (solved, valid attempts) of each instance. Each instance weighs the same. Where all have equally many
    attempts, pass@1 is the resolved rate, with its interval.
    """
    rated = [(pass_at_k(solved, attempts, k), attempts) for solved, attempts in counts if attempts >= k]
    if not rated:
        return None
    values = [value for value, _ in rated]
    attempts = max(1, round(sum(number for _, number in rated) / len(rated)))
    interval = clustered_interval([(value * attempts, attempts) for value in values])
    assert interval is not None
    left_out = len(counts) - len(values)
    total = sum(values)
    least = total / len(counts)
    most = (total + left_out) / len(counts)
    return PassRate(k, total / len(values), *interval, len(values), left_out, least, most)


def reported_ks(n: int) -> list[int]:
    """Returns 1, 2, 4, ... and n itself: a table of n samples an instance shows these."""
    return sorted({1, n, *(2**power for power in range(1, n.bit_length()) if 2**power <= n)})


def score_table(trajectories: Sequence[Trajectory], repos: Mapping[str, str], n: int) -> dict[str, Any]:
    """Returns `eval.json`: `all`, each part of a mix and each repository with its counts, rates and statuses.

    `repos` maps an instance's id to its repository.
    """
    by_repo: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_repo.setdefault(repos.get(trajectory.instance_id, "unknown"), []).append(trajectory)
    return {
        "samples_per_instance": n,
        "all": _compute_scores(trajectories, n),
        **part_numbers(trajectories, lambda members: _compute_scores(members, n)),
        "repositories": {repo: _compute_scores(members, n) for repo, members in sorted(by_repo.items())},
    }


def _compute_scores(trajectories: Sequence[Trajectory], n: int) -> dict[str, Any]:
    by_instance = valid_counts(trajectories)
    counts = list(by_instance.values())
    whole = of_counts({name: pair for name, pair in by_instance.items() if pair[1]})
    statuses: dict[str, int] = {}
    for trajectory in trajectories:
        statuses[trajectory.status.value] = statuses.get(trajectory.status.value, 0) + 1
    rates = {str(k): share for k in reported_ks(n) if (share := pass_rate(counts, k)) is not None}
    return {
        "instances": len(counts),
        "attempts": sum(attempts for _, attempts in counts),
        "solved_attempts": sum(solved for solved, _ in counts),
        "resolved": None if whole is None else {key: getattr(whole, key) for key in _RESOLVED},
        "instances_solved": sum(solved > 0 for solved, _ in counts),
        "pass_at": {k: asdict(rate) for k, rate in rates.items()},
        "statuses": dict(sorted(statuses.items())),
        "cheating": cheating_counts(trajectories),
    }
