"""Each task by its own solution and by nothing, before anybody is trained or measured on it."""

from collections.abc import Callable, Sequence

from swe_rl.env.harbor.env import HarborEnv
from swe_rl.env.instance import Instance
from swe_rl.env.patch import NOOP_PATCH
from swe_rl.env.protocol import GradeError
from swe_rl.errors import one_line
from swe_rl.sandbox.protocol import SandboxError, SandboxProvider


async def prove_tasks(
    env: HarborEnv,
    instances: Sequence[Instance],
    sandboxes: SandboxProvider,
    timeout_s: float,
    say: Callable[[str], None],
) -> int:
    """A line for each task; how many are not proven."""
    failed = 0
    for number, instance in enumerate(instances, start=1):
        reason = await _why_not(env, instance, sandboxes, timeout_s)
        failed += bool(reason)
        verdict = reason or "proven (its solution resolved, nothing did not)"
        say(f"[{number}/{len(instances)}] {instance.instance_id}: {verdict}")
    say(f"{len(instances) - failed} of {len(instances)} tasks are proven")
    return failed


async def _why_not(env: HarborEnv, instance: Instance, sandboxes: SandboxProvider, timeout_s: float) -> str:
    if not instance.patch:
        return "it has no solution/solve.sh"
    try:
        gold = await env.grade(instance, instance.patch, sandboxes, timeout_s)
        if not gold.resolved:
            return f"its solution does not resolve it: {one_line(gold.log_tail[-300:])}"
        idle = await env.grade(instance, NOOP_PATCH, sandboxes, timeout_s)
    except (GradeError, SandboxError) as error:
        return f"not tried: {error}"
    return "a sandbox in which nobody acted resolves it" if idle.resolved else ""
