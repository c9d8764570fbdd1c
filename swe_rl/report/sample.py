"""Which trajectories go into the page: all where they fit, else a spread sample within a budget of bytes.

Invariants:
- The first and the last held-out evaluation come first, each within its share; then steps, spread over the run.
- Within a set every status (a step) or every instance (an evaluation) is met before any is met twice.
- The total never passes the budget, and each set knows how many it really had.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.report.clip import clipped_trajectory

BUDGET_BYTES = 4_000_000
_EVAL_SHARE = 0.3  # of the budget, for each of the two evaluations
_MIN_STEP_BYTES = 64_000  # rather fewer steps than steps with nothing to read
_MIN_TRAJECTORY_BYTES, _MAX_TRAJECTORY_BYTES = 16_000, 60_000
_MAX_PER_SET = 1000
_FILE = re.compile(r"(step|eval)_(\d+)\.jsonl")


@dataclass(slots=True)
class TrajectorySet:
    """One evaluation or one step; `total` is the number of trajectories on disk."""

    kind: str
    step: int
    total: int
    trajectories: list[dict[str, Any]] = field(default_factory=list)


def sample_trajectories(folder: RunFolder, budget_bytes: int = BUDGET_BYTES) -> list[TrajectorySet]:
    """Evaluations first, then steps in ascending order; sets of which nothing fits are left out."""
    files = _files(folder)
    evals, steps = sorted(files["eval"]), sorted(files["step"])
    left = budget_bytes
    sets: list[TrajectorySet] = []
    for step in dict.fromkeys(evals[:1] + evals[-1:]):
        taken, size = _take(files["eval"][step], "eval", step, int(budget_bytes * _EVAL_SHARE), _instance_of)
        sets.append(taken)
        left -= size
    allowance = max(_MIN_STEP_BYTES, left // max(1, len(steps)))
    for step in spread(steps):
        if left < min(_MIN_STEP_BYTES, budget_bytes // 10):
            break
        taken, size = _take(files["step"][step], "step", step, min(left, allowance), _status_of)
        sets.append(taken)
        left -= size
    return sorted((one for one in sets if one.trajectories), key=lambda one: (one.kind != "eval", one.step))


def spread(steps: list[int]) -> list[int]:
    """Last, first, then always the middle of what is still untouched: any beginning of it covers the run evenly."""
    order = dict.fromkeys(steps[-1:] + steps[:1])
    gaps = [(0, len(steps) - 1)]
    while gaps:
        following = []
        for low, high in gaps:
            if high - low > 1:
                middle = (low + high) // 2
                order[steps[middle]] = None
                following += [(low, middle), (middle, high)]
        gaps = following
    return list(order)


def _take(
    path: Path, kind: str, step: int, budget_bytes: int, variety: Callable[[dict[str, Any]], str]
) -> tuple[TrajectorySet, int]:
    """Reads the file twice, a line at a time: the first pass chooses, the second clips what was chosen."""
    kinds = [variety(record) for record in iter_jsonl(path)]
    rank = {index: place for place, index in enumerate(_varied(kinds)[:_MAX_PER_SET])}
    share = min(_MAX_TRAJECTORY_BYTES, max(_MIN_TRAJECTORY_BYTES, budget_bytes // 4))
    clipped = {
        index: clipped_trajectory(record, share) for index, record in enumerate(iter_jsonl(path)) if index in rank
    }
    chosen: list[int] = []
    size = 0
    for index in sorted(clipped, key=lambda index: rank[index]):
        if size + clipped[index][1] <= budget_bytes:
            chosen.append(index)
            size += clipped[index][1]
    return TrajectorySet(kind, step, len(kinds), [clipped[index][0] for index in sorted(chosen)]), size


def _varied(kinds: list[str]) -> list[int]:
    """Indices so that the k-th of each kind comes before the k+1-th of any."""
    met: Counter[str] = Counter()
    ranks = []
    for index, kind in enumerate(kinds):
        ranks.append((met[kind], index))
        met[kind] += 1
    return [index for _, index in sorted(ranks)]


def _instance_of(record: dict[str, Any]) -> str:
    return str(record.get("instance_id"))


def _status_of(record: dict[str, Any]) -> str:
    return str(record.get("status"))


def _files(folder: RunFolder) -> dict[str, dict[int, Path]]:
    found: dict[str, dict[int, Path]] = {"step": {}, "eval": {}}
    paths: Iterable[Path] = folder.trajectories_folder.glob("*.jsonl")
    for path in paths:
        if match := _FILE.fullmatch(path.name):
            found[match[1]][int(match[2])] = path
    return found
