"""Offers the issues of real repositories: rows of a data set, with images or source trees, graded by their own
tests.

Invariants:
- A container sandbox gets an image, a process sandbox a folder; neither is made while a trajectory waits if
  `job=prepare` made it before.
- An environment with other packages than its proof names is not used.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from swe_rl.config.choices import GradingKind, SandboxKind, Unproven
from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.env import Env, Grade, Grading, SuiteRun
from swe_rl.env.grading.make import GRADERS
from swe_rl.env.grading.swebench import suite_by_swebench
from swe_rl.env.proof.record import Standing
from swe_rl.env.source_build.build import SourceWorkspaces
from swe_rl.env.source_build.environment import environment_key, facts_of
from swe_rl.env.source_build.origin import origin_of
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.releases import nearer_releases
from swe_rl.env.source_build.repository import is_absent
from swe_rl.env.source_build.sdist import Release, cached_sdist
from swe_rl.env.swe.proven import ProvenEnv
from swe_rl.env.swe.read import read_split
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace

EMBEDDED = "bugs/"  # The names of the embedded packages' repositories begin so.


def sources_folder(cache: Path) -> Path:
    """Returns the folder below which everything lies that is made of rows that name their source."""
    return cache / "sources"


class SweEnv(ProvenEnv):
    """Offers the instances of every `conf/env` but bugs and kodcode. The protocol says what each method does."""

    def __init__(
        self,
        config: EnvConfig,
        cache: Path,
        sandbox: SandboxKind,
        embedded: Env,
        grader: Grading | None = None,
        judged_by: str = "",
    ) -> None:
        """Makes the environment.

        `embedded` knows the instances of the embedded packages, which a file may hold, too. `grader` takes the place of
        those of env.grading; `judged_by` names it and its settings for proofs.
        """
        super().__init__(config, cache, sandbox, read_split, judged_by)
        self._sources_cache = sources_folder(cache)
        self._sources = SourceWorkspaces(self._sources_cache)
        self._embedded = embedded
        self._grader = grader

    def workspace(self, instance: Instance) -> Workspace:
        """Returns the image or the folder that a sandbox starts from.

        It blocks where the folder has to be built. Raises InstanceError, BuildError, DiskError.
        """
        if instance.repo.startswith(EMBEDDED):
            return self._embedded.workspace(instance)
        if self._sandbox is SandboxKind.process:
            return self._proven_folder(instance)
        if not instance.image:
            raise InstanceError(
                f"{instance.instance_id} has no image: its row names none and env.image_template is null; set "
                "env.image_template='REGISTRY/NAME.{instance_id}:latest'"
            )
        if instance.workdir:
            return Workspace(image=instance.image, workdir=instance.workdir)
        return Workspace(image=instance.image)

    def _proven_folder(self, instance: Instance) -> Workspace:
        """Returns the folder that a process sandbox starts from. Raises InstanceError, BuildError.

        A proof of another machine is a proof of that machine's packages, and packages were resolved anew here. So the
        two are compared.
        """
        promised = self._promised.get(instance.instance_id)
        try:
            workspace = self._sources.workspace(instance)
        except InstanceError as error:
            # The error is a failure of the instance's attempts, and not of the run.
            if promised or self._config.unproven is Unproven.keep:
                raise BuildError(str(error)) from error
            raise
        if promised and self._environment_is_other(instance, promised):
            raise BuildError(
                f"{instance.instance_id}: its environment has other packages than the one that it was proven with; "
                "job=prepare proves it anew"
            )
        return workspace

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Returns the verdict of the configured grader. Raises GradeError."""
        kind = GradingKind.pytest if instance.repo.startswith(EMBEDDED) else self._config.grading
        workspace = await asyncio.to_thread(self.workspace, instance)
        return await (self._grader or GRADERS[kind])(instance, patch, workspace, sandboxes, timeout_s)

    async def run_tests(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> SuiteRun:
        """Returns every test of the suite with its result. Raises GradeError."""
        workspace = await asyncio.to_thread(self.workspace, instance)
        return await suite_by_swebench(instance, patch, workspace, sandboxes, timeout_s)

    def standing(self, instance: Instance) -> tuple[Standing, str]:
        """Returns whether the instance is proven, and why it is not. Raises InstanceError for env.proofs."""
        if instance.repo.startswith(EMBEDDED):
            return Standing.proven, ""
        if not self.has_a_way(instance):
            return Standing.refuted, "its row names no source, and sandbox=process has no images"
        return super().standing(instance)

    def has_a_way(self, instance: Instance) -> bool:
        """Tells whether these sandboxes can start from the instance."""
        from_row = instance.source is not None or instance.repo.startswith(EMBEDDED)
        return from_row or self._sandbox is not SandboxKind.process

    def released(self, instance: Instance) -> datetime | None:
        """Returns the time at which what its source names was made. Raises InstanceError, BuildError."""
        return origin_of(instance, self._sources_cache / "sdists").released()

    def nearer(self, instance: Instance) -> Sequence[Release]:
        """Returns releases that its patches fit, the nearest to the base commit first.

        Raises InstanceError, BuildError.
        """
        return nearer_releases(instance, self._sources_cache / "sdists")

    def environment_digest(self, instance: Instance) -> str:
        """Returns the hash of its packages, where the environment is made here and is there, else an empty text."""
        source = instance.source
        archives = self._sources_cache / "sdists"
        missing = source and (
            cached_sdist(source.sdist, archives) is None if source.sdist else is_absent(source, archives)
        )
        if source is None or missing:
            return ""  # Nothing is fetched just to look.
        try:
            origin = origin_of(instance, archives)
        except (InstanceError, BuildError):
            return ""
        folder = self._sources_cache / "environments" / environment_key(instance, origin)
        return str(facts_of(folder).get("sha256") or "")
