"""Compares what a grading costs with twins and without: `python -m bench.twin_cost --pairs 5`.

A right patch of a row is graded with and without twins in turn, after gradings that are not counted: they find
out what is kept for an instance. The patch is the known fix with a file that fixes nothing, so it is not taken for the
known fix, which has fewer runs. It is graded as a new patch, and as one that was cleared before. CPU time is that of
all processes of a grading, and of this one. A wrong patch is graded as well, because most gradings of a training are
of patches that fail.
"""

import argparse
import asyncio
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch as replaced

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import EnvConfig, SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.env import Grading, NotStartedError
from swe_rl.env.grading import pytest as by_pytest
from swe_rl.env.grading import script_run
from swe_rl.env.grading.alert import ALERT, LOOKS_TO_TRUST
from swe_rl.env.grading.make import grade_by_eval_script
from swe_rl.env.grading.pytest import grade_by_pytest
from swe_rl.env.grading.swebench import grade_by_swebench
from swe_rl.env.patch_files import NOOP_PATCH
from swe_rl.env.twins.make import TwinnedTests
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace

TIMEOUT_S = 120.0


@dataclasses.dataclass(frozen=True)
class Row:
    """An instance with its tree and its grader."""

    kind: str
    instance: Instance
    workspace: Workspace
    grade: Grading


@dataclasses.dataclass(frozen=True)
class Cost:
    """CPU and wall seconds of one grading."""

    cpu_s: float
    wall_s: float


async def _put_none(*_: object, **__: object) -> TwinnedTests:
    return TwinnedTests()


@contextmanager
def without_twins() -> Iterator[None]:
    """Grades without twins in this block. A row without a known fix has no further sessions either."""
    with ExitStack() as stack:
        for module in (by_pytest, script_run):
            stack.enter_context(replaced.object(module, "put_twins", _put_none))
        yield


def cpu_seconds() -> float:
    """Returns the CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


async def measure(row: Row, patch: str, sandboxes: SandboxProvider) -> tuple[Cost, bool]:
    """Returns the cost of one grading, and whether it was paid."""
    cpu_s = cpu_seconds()
    wall_s = time.monotonic()
    is_paid = False
    with suppress(NotStartedError):  # a row without a known fix whose tests say nothing but an exit status
        is_paid = (await row.grade(row.instance, patch, row.workspace, sandboxes, TIMEOUT_S)).resolved
    return Cost(cpu_seconds() - cpu_s, time.monotonic() - wall_s), is_paid


async def compare(row: Row, patch: str, is_paid: bool, is_new: bool, sandboxes: SandboxProvider, num_pairs: int) -> str:
    """Returns a line of the table. Raises AssertionError for a verdict that is not `is_paid`."""
    ratios: dict[str, list[float]] = {"cpu_s": [], "wall_s": []}
    costs: dict[str, list[float]] = {"with": [], "without": []}
    row_without_fix = dataclasses.replace(row, instance=dataclasses.replace(row.instance, patch=""))
    uncounted = 1 if is_new else LOOKS_TO_TRUST
    for number in range(uncounted + num_pairs):
        if is_new:
            ALERT.cleared.forget_all()
        cost, paid = await measure(row, patch, sandboxes)
        assert paid == is_paid, f"{row.kind}: {paid}"
        with without_twins():
            plain, paid = await measure(row_without_fix, patch, sandboxes)
        assert paid == is_paid, f"{row.kind} without twins: {paid}"
        if number >= uncounted:
            ratios["cpu_s"].append(cost.cpu_s / plain.cpu_s)
            ratios["wall_s"].append(cost.wall_s / plain.wall_s)
            costs["with"].append(cost.cpu_s)
            costs["without"].append(plain.cpu_s)
    of_cpu = ratios["cpu_s"]
    cells = [
        row.kind,
        ("new right patch" if is_new else "right patch again") if is_paid else "no fix",
        f"{statistics.median(costs['without']):.2f}",
        f"{statistics.median(costs['with']):.2f}",
        f"{statistics.median(of_cpu):.2f} ({min(of_cpu):.2f}–{max(of_cpu):.2f})",
        f"{statistics.median(ratios['wall_s']):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def rows(root: Path) -> Iterator[Row]:
    """Yields a row for each way in which rows are judged."""
    from tests.red_team import test_red_team_other_runners as other_runners
    from tests.red_team.replicas import REPLICAS, make

    env = BugsEnv(EnvConfig(), root / "cache")
    for instance in env.instances("train")[::40][:2]:
        yield Row(f"pytest session, {instance.repo}", instance, env.workspace(instance), grade_by_pytest)
    for name in ("pytest", "django"):
        instance = make(REPLICAS[name], root / name)
        yield Row(f"log of {name}", instance, Workspace(path=root / name), grade_by_swebench)
    instance = dataclasses.replace(make(REPLICAS["pytest"], root / "status"), log_parser="", instance_id="status")
    yield Row("exit status of pytest", instance, Workspace(path=root / "status"), grade_by_eval_script)
    folder = root / "make" / "victim"
    folder.mkdir(parents=True)
    instance = other_runners.instance_of(other_runners.MAKE, folder)
    yield Row("exit status of make", instance, Workspace(path=folder), grade_by_eval_script)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--kinds", default="", help="only kinds that hold this")
    words: Any = parser.parse_args()
    print("| row | patch | CPU s without | CPU s with | ratio of CPU | ratio of wall time |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sandboxes = make_provider(SandboxConfig(isolation=Isolation.bubblewrap), root / "scratch", print)
        try:
            for row in rows(root):
                if words.kinds in row.kind:
                    right = row.instance.patch + NOOP_PATCH
                    kinds = ((right, True, True), (right, True, False), (NOOP_PATCH, False, True))
                    for change, is_paid, is_new in kinds:
                        print(await compare(row, change, is_paid, is_new, sandboxes, words.pairs), flush=True)
        finally:
            await sandboxes.close()


if __name__ == "__main__":
    asyncio.run(main())
