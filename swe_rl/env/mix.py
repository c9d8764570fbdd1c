"""Offers the instances of several environments as those of one.

Invariants:
- Agents, graders and the parts themselves know nothing of a mix: a part is asked about its own instances, under the
  ids that it gave them.
- An id that several parts have in one split gets the part's name in front of it, in each of them. An id that is trained
  in one part and evaluated in another is refused: nobody could tell the two apart.
- The splits of a mix are names alone. A part reads its own `split` and `eval_split`.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.env import ComparesWithFix, Env, Grade, GradesInPlace, InstanceLimits
from swe_rl.facts.mix import MIX, is_trained
from swe_rl.sandbox.sandbox import Sandbox, SandboxProvider, Workspace


@dataclass(frozen=True, slots=True)
class EnvPart:
    """Holds one environment of a run: a part of a mix, or with an empty name the only one."""

    name: str
    config: EnvConfig
    env: Env
    trained: bool = True  # Groups are of its instances; without them it is evaluated only.


class _Member(Env):
    """Passes each call on to a part, about the instance under the id that the part gave it."""

    def __init__(self, env: Env, instance: Instance) -> None:
        self.name = env.name
        self._env = env
        self._instance = instance

    def instances(self, split: str) -> Sequence[Instance]:
        return self._env.instances(split)

    def workspace(self, instance: Instance) -> Workspace:
        del instance
        return self._env.workspace(self._instance)

    def prompt(self, instance: Instance) -> str:
        del instance
        return self._env.prompt(self._instance)

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Returns the part's verdict. Raises GradeError."""
        del instance
        return await self._env.grade(self._instance, patch, sandboxes, timeout_s)


class _MemberInPlace(_Member):
    """Passes on what a part grades in the agent's own sandbox."""

    def __init__(self, env: Env, in_place: GradesInPlace, instance: Instance) -> None:
        super().__init__(env, instance)
        self._in_place = in_place

    def limits(self, instance: Instance) -> InstanceLimits:
        del instance
        return self._in_place.limits(self._instance)

    async def grade_in(self, instance: Instance, sandbox: Sandbox, timeout_s: float) -> Grade:
        """Returns the part's verdict. Raises GradeError, SandboxError."""
        del instance
        return await self._in_place.grade_in(self._instance, sandbox, timeout_s)

    async def failing_with_fix(
        self, instance: Instance, names: Collection[str], sandboxes: SandboxProvider, timeout_s: float
    ) -> frozenset[str]:
        """Returns what the part knows of these tests; nothing where it does not compare. Raises GradeError."""
        del instance
        if not isinstance(self._env, ComparesWithFix):
            return frozenset()
        return await self._env.failing_with_fix(self._instance, names, sandboxes, timeout_s)


class MixedEnv(Env):
    """Offers the parts of `conf/env/mix.yaml`. The protocol Env says what each method does."""

    def __init__(self, config: EnvConfig, parts: Sequence[EnvPart]) -> None:
        self.name = MIX
        self.parts = tuple(parts)
        self._config = config
        self._members: dict[str, tuple[EnvPart, Instance]] = {}

    def instances(self, split: str) -> Sequence[Instance]:
        """Returns the instances of all parts, one part after another. Raises InstanceError."""
        placed = [
            (part, instance)
            for part in self.parts_in(split)
            for instance in part.env.instances(self.split_of(part, split))
        ]
        counts = Counter(instance.instance_id.casefold() for _, instance in placed)
        offered: list[Instance] = []
        for part, instance in placed:
            shown = instance
            if counts[instance.instance_id.casefold()] > 1:
                shown = replace(instance, instance_id=f"{part.name}.{instance.instance_id}")
            self._remember(shown.instance_id, part, instance)
            offered.append(shown)
        return offered

    def _remember(self, shown_id: str, part: EnvPart, instance: Instance) -> None:
        """Notes whose instance an id is. Raises InstanceError where it is another part's already."""
        known = self._members.get(shown_id)
        if known is not None and (known[0].name, known[1].instance_id) != (part.name, instance.instance_id):
            raise InstanceError(
                f"env.mix.{part.name}: its instance {shown_id} has the id of one of env.mix.{known[0].name}, in the "
                f"other split: the run's files could not tell them apart. Leave it out of one part with "
                f"env.mix.{part.name}.instances=FILE, or give its rows other ids with env.mix.{part.name}.columns."
            )
        self._members[shown_id] = (part, instance)

    def parts_in(self, split: str) -> list[EnvPart]:
        """Returns the parts that have instances in a split of the mix."""
        if split == self._config.eval_split:
            return list(self.parts)
        return [part for part in self.parts if part.trained]

    def split_of(self, part: EnvPart, split: str) -> str:
        """Returns what a split of the mix is in a part. Raises InstanceError."""
        if split == self._config.eval_split:
            return part.config.eval_split
        if split == self._config.split:
            return part.config.split
        raise InstanceError(
            f"env=mix has no split {split!r}; there are {self._config.split} and {self._config.eval_split}"
        )

    def part_of(self, instance: Instance) -> EnvPart:
        """Returns the part of an instance, whose environment can be asked about this very instance."""
        part, inner = self._members[instance.instance_id]
        if isinstance(part.env, GradesInPlace):
            return replace(part, env=_MemberInPlace(part.env, part.env, inner))
        return replace(part, env=_Member(part.env, inner))

    def split_instances(self, split: str) -> int | None:
        sizes = [part.env.split_instances(self.split_of(part, split)) for part in self.parts_in(split)]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return None
        return sum(known)

    def left_out(self, split: str) -> Mapping[str, str]:
        return {
            f"{part.name}.{name}": reason
            for part in self.parts_in(split)
            for name, reason in part.env.left_out(self.split_of(part, split)).items()
        }

    def workspace(self, instance: Instance) -> Workspace:
        return self.part_of(instance).env.workspace(instance)

    def prompt(self, instance: Instance) -> str:
        return self.part_of(instance).env.prompt(instance)

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Returns the verdict of the instance's part. Raises GradeError."""
        return await self.part_of(instance).env.grade(instance, patch, sandboxes, timeout_s)


def parts_of(env: Env, config: EnvConfig) -> tuple[EnvPart, ...]:
    """Returns the environments of a run: the parts of a mix, or the only one."""
    if isinstance(env, MixedEnv):
        return env.parts
    return (EnvPart("", config, env),)


def part_of(env: Env, config: EnvConfig, instance: Instance) -> EnvPart:
    """Returns the environment that an instance belongs to."""
    if isinstance(env, MixedEnv):
        return env.part_of(instance)
    return EnvPart("", config, env)


def env_of(env: Env, instance: Instance) -> Env:
    """Returns what can be asked about an instance alone: `env` itself, or the part of a mix that has the instance."""
    if isinstance(env, MixedEnv):
        return env.part_of(instance).env
    return env


def make_part(config: EnvConfig, name: str, part_config: EnvConfig, env: Env) -> EnvPart:
    """Returns a part of the mix that `config` describes."""
    return EnvPart(name, part_config, env, trained=is_trained(config, name))
