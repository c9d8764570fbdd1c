"""The strength of the tests of a run's instances, measured by `job=validate` and told to the run that uses them.

Invariants:
- An instance that was measured with the same tests, tree and environment is not measured again.
- Each measurement is in the file of proofs as soon as it is made: what is interrupted goes on where it was.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Env
from swe_rl.env.mix import MixedEnv
from swe_rl.env.strength.measure import StrengthMeasure, UnmeasuredError
from swe_rl.env.strength.record import Strength, summarize_strengths
from swe_rl.env.strength.siblings import read_siblings
from swe_rl.env.swe.proven import ProvenEnv
from swe_rl.report.figures import strength_line
from swe_rl.sandbox.lease import reap_stale
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import SandboxProvider

Say = Callable[[str], None]
_SHOWN_SURVIVORS = 3


async def measure_here(
    config: Config, env: ProvenEnv, instances: Sequence[Instance], scratch: Path, say: Say
) -> dict[str, Strength]:
    """In sandboxes of this job's own, those that were not measured yet. Raises UserError."""
    if config.env.siblings:
        siblings = read_siblings(Path(config.env.siblings))
    else:
        siblings = {}
    todo = [instance for instance in instances if _is_unmeasured(env, instance)]
    if todo:
        reap_stale(scratch)
        sandboxes = make_provider(config.sandbox, scratch, say, run=f"strength-{os.getpid()}")
        try:
            await _measure_instances(config, env, todo, sandboxes, siblings, say)
        finally:
            await sandboxes.close()
    known = {instance.instance_id: env.strength(instance) for instance in instances}
    return {name: strength for name, strength in known.items() if strength is not None}


def _is_unmeasured(env: ProvenEnv, instance: Instance) -> bool:
    """Tells whether the tests of an instance have to be measured.

    Versions up to 0.8.0 measured rows that name no tests without any, so that all wrong patches were accepted.
    """
    strength = env.strength(instance)
    if strength is None:
        return True
    return instance.is_unmeasured and strength.graded > 0 and strength.accepted == strength.graded


async def _measure_instances(
    config: Config,
    env: ProvenEnv,
    instances: Sequence[Instance],
    sandboxes: SandboxProvider,
    siblings: Mapping[str, Sequence[str]],
    say: Say,
) -> None:
    """A line for each instance, as soon as it is there."""
    places = asyncio.Semaphore(min(len(instances), os.cpu_count() or 1))
    done = 0
    say(
        f"the tests of {len(instances)} instances are tried with wrong patches: up to {config.env.mutants} mutants of "
        f"each gold patch, {config.env.mutants_cpu_s:g} s of CPU an instance"
    )
    measure = StrengthMeasure(
        env=env,
        sandboxes=sandboxes,
        mutants=config.env.mutants,
        budget_s=config.env.mutants_cpu_s,
        timeout_s=config.rollout.grade_timeout_s,
    )

    async def measured(instance: Instance) -> None:
        nonlocal done
        async with places:
            try:
                # A row of one's own names no tests. Without those of its proof every wrong patch would be accepted.
                result: Strength | UnmeasuredError = await measure.measure(
                    env.as_proven(instance), siblings.get(instance.instance_id, ())
                )
            except UnmeasuredError as error:
                result = error
        done += 1
        if isinstance(result, Strength):
            _store_strength(env, instance, result)
        say(f"[{done}/{len(instances)}] {instance.instance_id}: {line_of(result)}")

    async with asyncio.TaskGroup() as group:
        for instance in instances:
            group.create_task(measured(instance))


def _store_strength(env: ProvenEnv, instance: Instance, strength: Strength) -> None:
    """Raises DiskError."""
    proof = env.book.of(instance.instance_id)
    assert proof is not None  # only what is proven is measured
    env.book.put(replace(proof, strength=strength))


def line_of(result: Strength | UnmeasuredError) -> str:
    """What a measurement found, for one line of the terminal."""
    if isinstance(result, UnmeasuredError):
        return str(result)
    if not result.graded:
        return f"nothing was measured: {result.reason}{_describe_gaps(result)}"
    rejected = f"its tests reject {result.graded - result.accepted} of {result.graded} wrong patches"
    shown = [survivor.what for survivor in result.survivors[:_SHOWN_SURVIVORS]]
    more = ""
    if len(result.survivors) > _SHOWN_SURVIVORS:
        more = ", ..."
    accepted = ""
    if shown:
        accepted = f"; accepted: {', '.join(shown)}{more}"
    return f"{rejected}{accepted}{_describe_gaps(result)} ({result.cpu_s:.0f} s of CPU)"


def _describe_gaps(strength: Strength) -> str:
    parts = []
    if strength.not_tried:
        parts.append(f"{strength.not_tried} not tried, for the CPU time was spent (env.mutants_cpu_s)")
    if strength.no_verdict:
        parts.append(f"{strength.no_verdict} got no verdict, for their grading failed")
    return "".join(f"; {part}" for part in parts)


def print_strengths(strengths: Mapping[str, Strength], proofs: Path, say: Say) -> None:
    """The rate over all instances, and where the accepted patches can be looked at."""
    if (line := strength_line(summarize_strengths(strengths))) is None:
        return
    say(line)
    survivors = sum(len(strength.survivors) for strength in strengths.values())
    if survivors:
        say(f"the {survivors} accepted patches are in {proofs}, column strength.survivors: look whether they are wrong")


def strengths_of(env: Env, split: str) -> dict[str, Any] | None:
    """The summary of a split's used instances, for eval.json; None where nothing was measured."""
    if isinstance(env, MixedEnv):
        strengths = {
            f"{part.name}.{name}": strength
            for part in env.parts_in(split)
            if isinstance(part.env, ProvenEnv)
            for name, strength in part.env.strengths(env.split_of(part, split)).items()
        }
        return summarize_strengths(strengths)
    if not isinstance(env, ProvenEnv):
        return None
    return summarize_strengths(env.strengths(split))
