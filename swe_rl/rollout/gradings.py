"""Gradings of attempts, and what is graded beside them to know whose fault a failure is.

Invariants:
- A failure after an agent acted is the attempt's if the same step without its files does not show it, and the machine's
  otherwise. The step without its files is a grading of the known fix, or of a sandbox in which nobody acted.
- A failure of the machine raises GradeError or SandboxError: it is never a reward.
- A sandbox in which nobody acted is asked only after the agent's own sandbox has given its place back.
"""

import asyncio
import math
from dataclasses import replace

from swe_rl.config.schema import RolloutConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.env import ComparesWithFix, Env, Grade, GradeError, GradesInPlace, InstanceLimits
from swe_rl.env.grading.blame import BROKEN
from swe_rl.env.history import hide_history
from swe_rl.env.mix import env_of
from swe_rl.env.patch import NOOP_PATCH, collect_patch
from swe_rl.errors import one_line
from swe_rl.sandbox.sandbox import OutsideError, Sandbox, SandboxError, SandboxProvider, run_whole

_SETUP_S = 600.0
_HIDE_HISTORY_S = 120.0
_TAKE_PATCH_S = 60.0  # at least: a large tree is no command of the agent's
_NO_LIMITS = InstanceLimits(math.inf, math.inf)


class Gradings:
    """Grades with one environment. It remembers how long an instance's tests take, and which verifiers work."""

    def __init__(self, env: Env, sandboxes: SandboxProvider, rollout: RolloutConfig) -> None:
        self._env = env
        self._sandboxes = sandboxes
        self._timeout_s = rollout.grade_timeout_s
        self.take_patch_s = max(rollout.command_timeout_s, _TAKE_PATCH_S)
        self._tests_s: dict[str, float] = {}  # by instance: the shortest grading whose tests ran to their end
        self._judged_untouched: set[str] = set()  # instances whose verifier gave a verdict where nobody acted

    def limits(self, instance: Instance) -> InstanceLimits:
        env = env_of(self._env, instance)
        return env.limits(instance) if isinstance(env, GradesInPlace) else _NO_LIMITS

    async def grade(self, instance: Instance, patch: str) -> Grade:
        """Grades a patch. Tests that did not end are run once more: a hiccup of the machine is no verdict.

        Raises GradeError.
        """
        for _ in range(2):
            grade = await self._env.grade(instance, patch, self._sandboxes, self._timeout_s)
            self._note_duration(instance, grade)
            if not grade.timed_out:
                return grade
        if not self._ends_in_time(instance, self._timeout_s):
            known = instance.patch if instance.patch.strip() else NOOP_PATCH
            if patch != known:
                shown = await self._env.grade(instance, known, self._sandboxes, self._timeout_s)
                self._note_duration(instance, shown)
        if not self._ends_in_time(instance, self._timeout_s):
            raise self._too_slow(instance, self._timeout_s)
        return grade

    async def grade_in(self, env: GradesInPlace, sandbox: Sandbox, instance: Instance) -> Grade:
        """Grades the sandbox that an agent left. A grade that has not `started` says nothing of the attempt before
        `check_untouched`. Raises OutsideError."""
        timeout_s = min(self._timeout_s, env.limits(instance).grade_s)
        try:
            grade = await env.grade_in(instance, sandbox, timeout_s)
        except OutsideError:
            raise
        except (GradeError, SandboxError) as error:
            return replace(Grade.failed(instance, str(error), BROKEN), started=False)
        self._note_duration(instance, grade)
        return grade

    async def check_untouched(self, instance: Instance, grade: Grade) -> None:
        """Returns where a verifier that gave no verdict after an agent had acted gives one where nobody acted.

        Raises GradeError where it gives none there either, SandboxError.
        """
        timeout_s = min(self._timeout_s, self.limits(instance).grade_s)
        if grade.timed_out and self._ends_in_time(instance, timeout_s):
            return
        if not grade.timed_out and instance.instance_id in self._judged_untouched:
            return
        shown = await self._env.grade(instance, NOOP_PATCH, self._sandboxes, self._timeout_s)
        self._note_duration(instance, shown)
        if not shown.started or shown.timed_out:
            words = "it did not end in time" if shown.timed_out else one_line(shown.log_tail[-300:])
            raise GradeError(
                f"the verifier of {instance.instance_id} gave no verdict, and in an untouched sandbox it gives none "
                f"either: {words}"
            )
        if grade.timed_out and not self._ends_in_time(instance, timeout_s):
            raise self._too_slow(instance, timeout_s)
        self._judged_untouched.add(instance.instance_id)

    async def compared_with_the_fix(self, instance: Instance, grade: Grade) -> Grade:
        """Returns the grade of an agent's sandbox, which is worthless if tests passed there that have to fail.

        Raises GradeError, SandboxError.
        """
        env = env_of(self._env, instance)
        if not isinstance(env, ComparesWithFix):
            return grade
        names = grade.session.passed_twins
        failing = await env.failing_with_fix(instance, names, self._sandboxes, self._timeout_s)
        return grade.worthless("twin_passed") if failing else grade

    async def check_patch_can_be_taken(self, instance: Instance, error: SandboxError) -> None:
        """Returns where the patch of a sandbox in which nobody acted is taken in half of the time. Raises `error`
        where it is not: then the machine kept the attempt's patch from being taken."""
        workspace = await asyncio.to_thread(self._env.workspace, instance)
        sandbox = await self._sandboxes.create(workspace, owner=f"untouched-{instance.instance_id}")
        try:
            base_commit = instance.base_commit if workspace.image is None else await prepare_image(sandbox, instance)
            await collect_patch(sandbox, base_commit, self.take_patch_s / 2)
        except SandboxError as also:
            raise error from also
        finally:
            await sandbox.close()

    def _note_duration(self, instance: Instance, grade: Grade) -> None:
        if grade.started and grade.patch_applied and not grade.timed_out and not grade.cached:
            known_s = self._tests_s.get(instance.instance_id, grade.duration_s)
            self._tests_s[instance.instance_id] = min(grade.duration_s, known_s)

    def _ends_in_time(self, instance: Instance, timeout_s: float) -> bool:
        """Tests that did not end say something of an attempt only where they are known to end in half of the time."""
        return self._tests_s.get(instance.instance_id, math.inf) <= timeout_s / 2

    def _too_slow(self, instance: Instance, timeout_s: float) -> GradeError:
        return GradeError(
            f"the tests of {instance.instance_id} did not end within rollout.grade_timeout_s={timeout_s:g}, and "
            "neither its known fix nor an attempt ended them in half of it; raise it, or lower rollout.concurrency; "
            "with other values it is a new run"
        )


async def prepare_image(sandbox: Sandbox, instance: Instance) -> str:
    """Makes an image what an agent may see; returns the commit to take patches against. Raises SandboxError."""
    for name, script in (("setup_script", instance.setup_script), ("hide_script", instance.hide_script)):
        if not script:
            continue
        done = await run_whole(sandbox, script, _SETUP_S)
        if done.exit_code:
            raise SandboxError(
                f"{instance.instance_id}: its {name} failed with status {done.exit_code}: {done.output[-500:]}"
            )
    return await hide_history(sandbox, instance.base_commit, _HIDE_HISTORY_S)
