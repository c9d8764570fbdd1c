"""The environment of real repositories: rows of a data set, their images or source trees, graded by their own tests.

Invariants:
- An instance is loaded, checked and chosen before anything is started; what cannot be used is refused by its name.
- What training and evaluation use never meets: not by id, and not by repository and base commit.
- A container sandbox gets an image, a process sandbox a folder; neither is made while a trajectory waits if
  `job=prepare` made it before.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from swe_rl.config.choices import GradingKind, SandboxKind
from swe_rl.config.schema import EnvConfig
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.grading.make import GRADERS
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.protocol import Grade
from swe_rl.env.records import select_instances
from swe_rl.env.source_build.workspace import SourceWorkspaces
from swe_rl.env.swe.apart import refuse_shared
from swe_rl.env.swe.prepared import prepared_instances, prepared_split_rows
from swe_rl.env.swe.probe import kept_instances
from swe_rl.env.swe.read import Read, read_split
from swe_rl.sandbox.protocol import SandboxProvider, Workspace

EMBEDDED = "bugs/"  # how their repositories' names begin


class SweEnv:
    """Instances of every `conf/env` but bugs and kodcode; see the protocol."""

    def __init__(self, config: EnvConfig, cache: Path, sandbox: SandboxKind) -> None:
        self.name = config.name
        self._config = config
        self._cache = cache
        self._sandbox = sandbox
        self._sources = SourceWorkspaces(cache / "sources")
        self._embedded = BugsEnv(config, cache)  # a file may hold instances of the embedded packages
        self._loaded: dict[str, Sequence[Instance]] = {}
        self._split_rows: dict[str, int | None] = {}

    def instances(self, split: str) -> Sequence[Instance]:
        """Raises InstanceError. `env.instances` and `env.keep` narrow the training split only."""
        if split not in self._loaded:
            found, rows = load_instances(self._config, split, self._cache, read_split)
            if split == self._config.split:
                found = chosen(self._config, found)
            for other, instances in self._loaded.items():
                refuse_shared((other, instances), (split, found), self._config)
            self._loaded[split], self._split_rows[split] = found, rows
        return self._loaded[split]

    def split_instances(self, split: str) -> int | None:
        self.instances(split)
        return self._split_rows[split]

    def workspace(self, instance: Instance) -> Workspace:
        """Blocking where it has to be built. Raises InstanceError, BuildError, DiskError."""
        if instance.repo.startswith(EMBEDDED):
            return self._embedded.workspace(instance)
        if self._sandbox is SandboxKind.process:
            return self._sources.workspace(instance)
        if not instance.image:
            raise InstanceError(
                f"{instance.instance_id} has no image: its row names none and env.image_template is null; set "
                "env.image_template='REGISTRY/NAME.{instance_id}:latest'"
            )
        return Workspace(image=instance.image)

    def prompt(self, instance: Instance) -> str:
        return instance.problem_statement.strip()

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Raises GradeError."""
        kind = GradingKind.pytest if instance.repo.startswith(EMBEDDED) else self._config.grading
        workspace = await asyncio.to_thread(self.workspace, instance)
        return await GRADERS[kind](instance, patch, workspace, sandboxes, timeout_s)


def load_instances(
    config: EnvConfig, split: str, cache: Path, read: Callable[[EnvConfig, str], Read]
) -> tuple[list[Instance], int | None]:
    """All usable instances of a split, prepared ones where they fit, else the data set's; and how many rows the split
    has without its slice. Raises InstanceError."""
    prepared = prepared_instances(config, split, cache)
    if prepared is not None:
        return prepared, prepared_split_rows(config, split, cache)
    found = read(config, split)
    return found.instances, found.split_rows


def chosen(config: EnvConfig, instances: Sequence[Instance]) -> list[Instance]:
    """What `env.instances`, and a probe with `env.keep`, leave. Raises InstanceError."""
    left = select_instances(instances, config.instances) if config.instances else list(instances)
    left = select_instances(left, config.instance_ids) if config.instance_ids else left
    return kept_instances(left, config.probe, config.keep) if config.probe else left
