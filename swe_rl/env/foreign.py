"""An environment that somebody else wrote, held to what the rollout relies on.

Invariants:
- Instances that cannot be read are an InstanceError, before anything was started. A workspace or a prompt that fails
  is a failure of one attempt, a grading that fails or hangs a GradeError: none of them is ever a reward.
- Errors of ours keep their type.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from swe_rl.env.grading.foreign import GRACE_S, graded
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.protocol import Env, Grade
from swe_rl.errors import SweRlError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import LONGEST_S, failure, within
from swe_rl.sandbox.protocol import SandboxError, SandboxProvider, Workspace


class ForeignEnv:
    def __init__(self, env: Env, maker: Foreign, *, grace_s: float = GRACE_S) -> None:
        self.name = maker.name
        self._env = env
        self._maker = maker
        self._grace_s = grace_s

    def instances(self, split: str) -> Sequence[Instance]:
        try:
            instances = list(self._env.instances(split))
        except SweRlError:
            raise
        except Exception as error:
            raise InstanceError(failure(self._maker, f"instances({split!r})", error)) from error
        if not instances or not all(isinstance(instance, Instance) for instance in instances):
            raise InstanceError(
                f"{self._maker}: its method instances({split!r}) must return swe_rl.api.Instance objects, at least one"
            )
        names = [instance.instance_id for instance in instances]
        if len(set(names)) < len(names):
            again = next(name for name in names if names.count(name) > 1)
            raise InstanceError(f"{self._maker}: its method instances({split!r}) has {again} more than once")
        return instances

    def split_instances(self, split: str) -> int | None:
        return self._optional("split_instances", split, None)  # type: ignore[no-any-return]

    def left_out(self, split: str) -> Mapping[str, str]:
        return self._optional("left_out", split, {})  # type: ignore[no-any-return]

    def workspace(self, instance: Instance) -> Workspace:
        try:
            workspace = self._env.workspace(instance)
        except SweRlError:
            raise
        except Exception as error:
            self._broken("workspace", instance, error)
        if not isinstance(workspace, Workspace):
            self._broken("workspace", instance, TypeError(f"it returned {workspace!r:.80}, no swe_rl.api.Workspace"))
        return workspace

    def prompt(self, instance: Instance) -> str:
        try:
            with within(LONGEST_S):
                return str(self._env.prompt(instance))
        except SweRlError:
            raise
        except Exception as error:
            self._broken("prompt", instance, error)

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Raises GradeError."""
        verdict = self._env.grade(instance, patch, sandboxes, timeout_s)
        return await graded(verdict, instance, self._maker, timeout_s, self._grace_s)

    def _optional(self, method: str, split: str, otherwise: Any) -> Any:
        function = getattr(self._env, method, None)
        if function is None:
            return otherwise
        try:
            return function(split)
        except SweRlError:
            raise
        except Exception as error:
            raise InstanceError(failure(self._maker, f"{method}({split!r})", error)) from error

    def _broken(self, method: str, instance: Instance, error: Exception) -> NoReturn:
        raise SandboxError(f"{instance.instance_id}: {failure(self._maker, method, error)}") from error
