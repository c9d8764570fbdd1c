"""What the oracle found, as a table and as a verdict.

Invariants:
- Pure: numbers in, text out.
"""

from collections.abc import Sequence
from statistics import median

from swe_rl.dataset.instance import Instance
from tests.support.oracle.run import Arm

WANTED_INSTANCES = 30
WANTED_PACKAGES = 6
_HEADER = ("package", "instances", "fail to pass", "pass to pass", "gold resolved", "no-op resolved", "grading s")


def table(instances: Sequence[Instance], gold: Arm, no_op: Arm) -> str:
    """A line for each repository; `grading s` is the median of the gold patches."""
    rows: list[tuple[str, ...]] = [_HEADER]
    for repo in (*sorted({one.repo for one in instances}), "all"):
        rows.append(_row(repo, [one for one in instances if repo in (one.repo, "all")], gold, no_op))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def shortfalls(instances: Sequence[Instance], gold: Arm, no_op: Arm, *, whole: bool) -> list[str]:
    """Why the oracle is not met; empty if it is. `whole`: also ask for enough instances and packages."""
    ids = {one.instance_id for one in instances}
    found = []
    for arm in (gold, no_op):
        missing = ids - {one["instance_id"] for one in arm.trajectories}
        found += [f"agent={arm.agent} left out {', '.join(sorted(missing))}"] if missing else []
    unsolved = [one for one in gold.trajectories if one["status"] != "resolved"]
    found += [f"{one['instance_id']}: the gold patch is {one['status']} ({one['error']})" for one in unsolved]
    wrong = [one for one in no_op.trajectories if one["status"] != "unresolved"]  # its tests have to run, and fail
    found += [f"{one['instance_id']}: the change that fixes nothing is {one['status']}" for one in wrong]
    packages = {one.repo for one in instances}
    if whole and (len(instances) < WANTED_INSTANCES or len(packages) < WANTED_PACKAGES):
        found.append(f"{len(instances)} instances of {len(packages)} packages are too few")
    return found


def _row(repo: str, ours: Sequence[Instance], gold: Arm, no_op: Arm) -> tuple[str, ...]:
    ids = {one.instance_id for one in ours}
    times_s = [
        one["times_s"]["grade"] for one in gold.trajectories if one["instance_id"] in ids and "grade" in one["times_s"]
    ]
    return (
        repo,
        str(len(ours)),
        str(sum(len(one.fail_to_pass) for one in ours)),
        str(sum(len(one.pass_to_pass) for one in ours)),
        f"{100 * gold.resolved(ids) / len(ids):.1f} %",
        f"{100 * no_op.resolved(ids) / len(ids):.1f} %",
        f"{median(times_s):.1f}" if times_s else "-",
    )
