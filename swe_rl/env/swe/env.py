"""The environment of real repositories: rows of a data set, their images or source trees, graded by their own tests.

Invariants:
- A container sandbox gets an image, a process sandbox a folder; neither is made while a trajectory waits if
  `job=prepare` made it before.
"""

import asyncio
from pathlib import Path

from swe_rl.config.choices import GradingKind, SandboxKind
from swe_rl.config.schema import EnvConfig
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.grading.make import GRADERS
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.protocol import Grade
from swe_rl.env.source_build.build import SourceWorkspaces
from swe_rl.env.swe.read import read_split
from swe_rl.env.swe.splits import DatasetEnv
from swe_rl.sandbox.protocol import SandboxProvider, Workspace

EMBEDDED = "bugs/"  # how their repositories' names begin


class SweEnv(DatasetEnv):
    """Instances of every `conf/env` but bugs and kodcode; see the protocol."""

    def __init__(self, config: EnvConfig, cache: Path, sandbox: SandboxKind) -> None:
        super().__init__(config, cache, read_split)
        self._sandbox = sandbox
        self._sources = SourceWorkspaces(cache / "sources")
        self._embedded = BugsEnv(config, cache)  # a file may hold instances of the embedded packages

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

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Raises GradeError."""
        kind = GradingKind.pytest if instance.repo.startswith(EMBEDDED) else self._config.grading
        workspace = await asyncio.to_thread(self.workspace, instance)
        return await GRADERS[kind](instance, patch, workspace, sandboxes, timeout_s)
