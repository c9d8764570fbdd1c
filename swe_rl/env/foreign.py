"""Wraps an environment that somebody else wrote, and holds it to what the rollout relies on.

Invariants:
- Instances that cannot be read are an InstanceError, before anything was started. A workspace or a prompt that fails
  is a failure of one attempt. A grading that fails or hangs is a GradeError. None of them is ever a reward.
- Errors of ours keep their type.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.records import refuse_duplicates
from swe_rl.env.env import Env, Grade
from swe_rl.env.grading.foreign import GRACE_S, await_grade
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import LONGEST_S, failing_as
from swe_rl.sandbox.sandbox import SandboxError, SandboxProvider, Workspace


class ForeignEnv:
    """Passes each call on to a user's environment, and turns what the user's code raises into errors of ours."""

    def __init__(self, env: Env, maker: Foreign, *, grace_s: float = GRACE_S) -> None:
        self.name = maker.name
        self._env = env
        self._maker = maker
        self._grace_s = grace_s

    def instances(self, split: str) -> Sequence[Instance]:
        with failing_as(InstanceError, self._maker, f"instances({split!r})"):
            instances = list(self._env.instances(split))
        if not instances or not all(isinstance(instance, Instance) for instance in instances):
            raise InstanceError(
                f"{self._maker}: its method instances({split!r}) must return swe_rl.api.Instance objects, at least one"
            )
        place = f"{self._maker}: its method instances({split!r})"
        refuse_duplicates((instance.instance_id, f"{place}, number {at}") for at, instance in enumerate(instances))
        return instances

    def split_instances(self, split: str) -> int | None:
        return self._optional("split_instances", split, None)  # type: ignore[no-any-return]

    def left_out(self, split: str) -> Mapping[str, str]:
        return self._optional("left_out", split, {})  # type: ignore[no-any-return]

    def workspace(self, instance: Instance) -> Workspace:
        with failing_as(_of_attempt(instance), self._maker, "workspace"):
            workspace = self._env.workspace(instance)
            if not isinstance(workspace, Workspace):
                raise TypeError(f"it returned {workspace!r:.80}, no swe_rl.api.Workspace")
        return workspace

    def prompt(self, instance: Instance) -> str:
        with failing_as(_of_attempt(instance), self._maker, "prompt", LONGEST_S):
            return str(self._env.prompt(instance))

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Returns the verdict of the user's environment. Raises GradeError."""
        verdict = self._env.grade(instance, patch, sandboxes, timeout_s)
        return await await_grade(verdict, instance, self._maker, timeout_s, self._grace_s)

    def _optional(self, method: str, split: str, otherwise: Any) -> Any:
        """Returns what a method gives that an environment may lack, and `otherwise` where it is lacking.

        Raises InstanceError.
        """
        function = getattr(self._env, method, None)
        if function is None:
            return otherwise
        with failing_as(InstanceError, self._maker, f"{method}({split!r})"):
            return function(split)


def _of_attempt(instance: Instance) -> Callable[[str], SandboxError]:
    """Makes a failure one of this attempt alone, which a SandboxError is."""
    return lambda said: SandboxError(f"{instance.instance_id}: {said}")
