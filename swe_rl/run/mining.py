"""Runs the tests of changes that are split, and of releases that bugs are put into, in sandboxes of the job's own.

Invariants:
- What cannot be built or run ends nothing: it is a candidate without an instance, with the reason.
- So many changes are worked on side by side as the machine has cores; the runs of one change follow each other.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.env import GradeError, SuiteRun
from swe_rl.env.mining.candidate import Reason, TaskCandidate
from swe_rl.env.mining.cost import MiningCost, Phase
from swe_rl.env.mining.leaks import file_with_fix
from swe_rl.env.mining.runs import CountedRuns, RunBudget
from swe_rl.env.source_build.program import BuildError, ended_with_the_job
from swe_rl.env.swe.env import SweEnv
from swe_rl.errors import one_line
from swe_rl.sandbox.lease import reap_stale
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import SandboxError, SandboxProvider, Workspace

# A longer build is told of. Shorter ones are those whose environment another instance has made.
_SLOW_BUILD_S = 2.0


@dataclass(frozen=True, slots=True)
class MiningWork:
    """Holds a candidate, and what makes others of it: a call with its instance as it runs, and a budget of runs."""

    candidate: TaskCandidate
    search: Callable[[Instance, CountedRuns], Awaitable[list[TaskCandidate]]]


@dataclass(frozen=True, slots=True)
class _Suites:
    env: SweEnv
    sandboxes: SandboxProvider
    timeout_s: float

    async def run(self, instance: Instance, patch: str, timeout_s: float | None) -> SuiteRun:
        """Returns one run of the tests; infrastructure may break once. Raises GradeError, SandboxError."""
        limit_s = min(timeout_s or self.timeout_s, self.timeout_s)
        try:
            return await self.env.run_tests(instance, patch, self.sandboxes, limit_s)
        except (GradeError, SandboxError):
            return await self.env.run_tests(instance, patch, self.sandboxes, limit_s)


async def make_workspaces(env: SweEnv, instances: Sequence[Instance], say: Callable[[str], None]) -> dict[str, float]:
    """Makes the environments and trees of instances before their tests run. Returns how long each took, by its id.

    What cannot be built is left to those who use it: they get the same error. Raises UserError.
    """
    room = asyncio.Semaphore(os.cpu_count() or 1)
    build_s: dict[str, float] = {}

    async def made(instance: Instance) -> None:
        async with room:
            began_s = time.monotonic()
            with suppress(BuildError, InstanceError):
                await asyncio.to_thread(env.workspace, instance)
            took_s = time.monotonic() - began_s
            build_s[instance.instance_id] = took_s
            if took_s > _SLOW_BUILD_S:
                say(f"built {len(build_s)} of {len(instances)}: {instance.instance_id} took {took_s:.0f} s")

    with ended_with_the_job():
        await asyncio.gather(*map(made, instances))
    return build_s


async def shown_fixes(env: SweEnv, instances: Sequence[Instance]) -> dict[str, str]:
    """Returns the files that show an agent the fix: by the ids of the instances that have such a file.

    Instances whose environment cannot be made have none. Raises UserError.
    """
    shown: dict[str, str] = {}
    for instance in instances:
        with suppress(BuildError, InstanceError):
            workspace = await asyncio.to_thread(env.workspace, instance)
            file = await asyncio.to_thread(_file_that_shows, instance.patch, workspace)
            if file:
                shown[instance.instance_id] = file
    return shown


def _file_that_shows(patch: str, workspace: Workspace) -> str:
    """Returns a file of the tree or of the installed packages that has the fix, or an empty text."""
    file = ""
    if workspace.path is not None:
        file = file_with_fix(patch, workspace.path)
    if file or workspace.toolchain is None:
        return file
    return file_with_fix(patch, workspace.toolchain.folder, is_installed=True)


async def search_by_tests(
    config: Config,
    env: SweEnv,
    works: Sequence[MiningWork],
    scratch: Path,
    say: Callable[[str], None],
    cost: MiningCost,
) -> list[TaskCandidate]:
    """Returns what the works find, in their order."""
    reap_stale(scratch)
    sandboxes = make_provider(config.sandbox, scratch, say, run=f"mine-{os.getpid()}")
    suites = _Suites(env, sandboxes, config.rollout.grade_timeout_s)
    budget = RunBudget(config.mine.max_runs, config.mine.max_run_s)
    instances = {instance.instance_id: instance for instance in env.chosen(config.env.split)}
    room = asyncio.Semaphore(os.cpu_count() or 1)
    with cost.counting(Phase.build):
        build_s = await make_workspaces(env, list(instances.values()), say)

    async def searched(work: MiningWork) -> list[TaskCandidate]:
        row = work.candidate.instance
        instance = None if row is None else instances.get(row.instance_id)
        if instance is None:
            refused = replace(work.candidate, instance=None, reason=Reason.unrunnable)
            return [replace(refused, detail="its row was left out when it was read")]
        async with room:
            runs = CountedRuns(suites.run, budget, build_s.get(instance.instance_id, 0.0))
            try:
                await asyncio.to_thread(env.workspace, instance)
                candidates = await work.search(instance, runs)
            except (BuildError, GradeError, InstanceError, SandboxError) as error:
                detail = f"{one_line(str(error))}; {runs.spent}"
                candidates = [replace(work.candidate, instance=None, reason=Reason.unrunnable, detail=detail)]
        tasks = sum(candidate.instance is not None for candidate in candidates)
        say(f"{work.candidate.name}: {tasks} candidates, {runs.spent}")
        return candidates

    try:
        with ended_with_the_job(), cost.counting(Phase.search):
            results = await asyncio.gather(*map(searched, works))
    finally:
        await sandboxes.close()
    return [candidate for candidates in results for candidate in candidates]
