"""The environment of real repositories: rows of a data set, their images or source trees, graded by their own tests.

Invariants:
- A container sandbox gets an image, a process sandbox a folder; neither is made while a trajectory waits if
  `job=prepare` made it before.
- An instance whose proof failed here is used by nobody, unless env.unproven=keep; where a proof mended the environment
  the mended one is used.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from swe_rl.config.choices import GradingKind, SandboxKind, Unproven
from swe_rl.config.schema import EnvConfig
from swe_rl.env.grading.make import GRADERS
from swe_rl.env.grading.swebench import suite_by_swebench
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.proof.record import ProofBook, Standing, book_of, book_path, made_of_digest, tests_digest
from swe_rl.env.protocol import Env, Grade, Grading, SuiteRun
from swe_rl.env.source_build.build import SourceWorkspaces
from swe_rl.env.source_build.environment import environment_key, facts_of
from swe_rl.env.source_build.origin import origin_of
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.releases import nearer_releases
from swe_rl.env.source_build.repository import is_absent
from swe_rl.env.source_build.sdist import Release, fetched
from swe_rl.env.swe.read import read_split
from swe_rl.env.swe.splits import DatasetEnv
from swe_rl.sandbox.protocol import SandboxProvider, Workspace

EMBEDDED = "bugs/"  # how their repositories' names begin
_SHOWN = 3


def sources_folder(cache: Path) -> Path:
    """Of what is made of rows that name their source."""
    return cache / "sources"


class SweEnv(DatasetEnv):
    """Instances of every `conf/env` but bugs and kodcode; see the protocol."""

    def __init__(
        self,
        config: EnvConfig,
        cache: Path,
        sandbox: SandboxKind,
        embedded: Env,
        grader: Grading | None = None,
        judged_by: str = "",
    ) -> None:
        """`embedded` knows the instances of the embedded packages, which a file may hold, too. `grader`: in place of
        those of env.grading; `judged_by` names it, and its settings, for proofs."""
        super().__init__(config, cache, read_split)
        self._sandbox = sandbox
        self._sources_cache = sources_folder(cache)
        self._sources = SourceWorkspaces(self._sources_cache)
        self._promised: dict[str, str] = {}  # by instance: the environment that its proof is of
        self._embedded = embedded
        self._grader = grader
        self._judged_by = judged_by or str(config.grading)

    @property
    def book(self) -> ProofBook:
        """Raises InstanceError."""
        return book_of(book_path(self._config.proofs, self._cache))

    def workspace(self, instance: Instance) -> Workspace:
        """Blocking where it has to be built. Raises InstanceError, BuildError, DiskError."""
        if instance.repo.startswith(EMBEDDED):
            return self._embedded.workspace(instance)
        if self._sandbox is SandboxKind.process:
            return self._proven_folder(instance)
        if not instance.image:
            raise InstanceError(
                f"{instance.instance_id} has no image: its row names none and env.image_template is null; set "
                "env.image_template='REGISTRY/NAME.{instance_id}:latest'"
            )
        return Workspace(image=instance.image)

    def _proven_folder(self, instance: Instance) -> Workspace:
        """A proof of another machine is of its packages: they were resolved anew here."""
        promised = self._promised.get(instance.instance_id)
        try:
            workspace = self._sources.workspace(instance)
        except InstanceError as error:
            if promised or self._config.unproven is Unproven.keep:  # a failure of its attempts, and not of the run
                raise BuildError(str(error)) from error
            raise
        if promised and self._environment_is_other(instance, promised):
            raise BuildError(
                f"{instance.instance_id}: its environment has other packages than the one that it was proven with; "
                "job=prepare proves it anew"
            )
        return workspace

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Raises GradeError."""
        kind = GradingKind.pytest if instance.repo.startswith(EMBEDDED) else self._config.grading
        workspace = await asyncio.to_thread(self.workspace, instance)
        return await (self._grader or GRADERS[kind])(instance, patch, workspace, sandboxes, timeout_s)

    async def run_tests(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> SuiteRun:
        """Raises GradeError."""
        workspace = await asyncio.to_thread(self.workspace, instance)
        return await suite_by_swebench(instance, patch, workspace, sandboxes, timeout_s)

    def standing(self, instance: Instance) -> tuple[Standing, str]:
        """And why it is not proven. Raises InstanceError for env.proofs."""
        if instance.repo.startswith(EMBEDDED):
            return Standing.proven, ""
        if not self.has_a_way(instance):
            return Standing.refuted, "its row names no source, and sandbox=process has no images"
        proof = self.book.of(instance.instance_id)
        if proof is None:
            measured = " and measured its tests" if instance.is_unmeasured else ""
            return Standing.untried, f"nobody tried its gold patch{measured} here"
        if (proof.tests, proof.made_of) != self.digests(instance):
            return Standing.untried, "its proof is of another row, of other tests or of another kind of sandbox"
        if not proof.proven:
            return Standing.refuted, proof.reason
        if proof.environment and self._environment_is_other(proof.applied(instance), proof.environment):
            return Standing.untried, "its proof is of an environment with other packages than are here"
        if len(proof.gold) < self._config.proof_runs:
            runs = f"its gold patch was run {len(proof.gold)} times"
            return Standing.untried, f"{runs}, and env.proof_runs={self._config.proof_runs}"
        return Standing.proven, ""

    def has_a_way(self, instance: Instance) -> bool:
        """Whether these sandboxes can start from it."""
        from_row = instance.source is not None or instance.repo.startswith(EMBEDDED)
        return from_row or self._sandbox is not SandboxKind.process

    def untried(self, split: str) -> list[Instance]:
        """The chosen instances of a split that a proof can be made of here: their rows name a source."""
        chosen, _ = self._chosen(split)
        return [it for it in chosen if it.source is not None and self.standing(it)[0] is Standing.untried]

    def chosen(self, split: str) -> list[Instance]:
        """Proven or not, as their rows have them. Raises InstanceError."""
        return self._chosen(split)[0]

    def forget(self) -> None:
        """Proofs were made: what can be used is decided anew."""
        self._loaded.clear()
        self._promised.clear()

    def digests(self, instance: Instance) -> tuple[str, str]:
        as_image = self._sandbox is not SandboxKind.process
        return tests_digest(instance, self._judged_by), made_of_digest(instance, as_image=as_image)

    def released(self, instance: Instance) -> datetime | None:
        """When what its source names was made. Raises InstanceError, BuildError."""
        return origin_of(instance, self._sources_cache / "sdists").released()

    def nearer(self, instance: Instance) -> Sequence[Release]:
        """Releases that its patches fit, the nearest to the base commit first. Raises InstanceError, BuildError."""
        return nearer_releases(instance, self._sources_cache / "sdists")

    def environment_digest(self, instance: Instance) -> str:
        """Of its packages, where the environment is made here and is there; else empty."""
        source, archives = instance.source, self._sources_cache / "sdists"
        missing = source and (fetched(source.sdist, archives) is None if source.sdist else is_absent(source, archives))
        if source is None or missing:
            return ""  # nothing is fetched to look
        try:
            origin = origin_of(instance, archives)
        except (InstanceError, BuildError):
            return ""
        folder = self._sources_cache / "environments" / environment_key(instance, origin)
        return str(facts_of(folder).get("sha256") or "")

    def _environment_is_other(self, instance: Instance, proven: str) -> bool:
        """False where it is not there yet: made as the proof says, it has the same packages, or is refused then."""
        return self.environment_digest(instance) not in ("", proven)

    def _usable(self, split: str) -> tuple[Sequence[Instance], Mapping[str, str], int | None]:
        """Raises InstanceError where env.unproven=refuse, or where nothing is left."""
        instances, rows = self._chosen(split)
        reasons = {instance.instance_id: self.left_out_because(instance) for instance in instances}
        left_out = {name: reason for name, reason in reasons.items() if reason}
        refused = self._config.unproven is Unproven.refuse
        if left_out and (refused or len(left_out) == len(instances)):
            raise InstanceError(_words(split, left_out, len(instances), self._config.unproven))
        usable = [self._as_proven(instance) for instance in instances if not reasons[instance.instance_id]]
        return usable, left_out, rows

    def left_out_because(self, instance: Instance) -> str:
        """Why an instance is left out; empty for what is used. An image that others published and nobody tried here is
        used, unless env.unproven=refuse. Nothing uses a row whose tests nobody measured: any patch would resolve it."""
        kept = self._config.unproven is Unproven.keep
        if kept and not instance.is_unmeasured:
            return ""
        standing, reason = self.standing(instance)
        if instance.is_unmeasured:
            return "" if standing is Standing.proven else reason
        is_image = self._sandbox is not SandboxKind.process
        published = standing is Standing.untried and is_image and self._config.unproven is not Unproven.refuse
        return "" if standing is Standing.proven or published else reason

    def _as_proven(self, instance: Instance) -> Instance:
        proof = self.book.of(instance.instance_id)
        if proof is None or not proof.proven or self.standing(instance)[0] is not Standing.proven:
            return instance
        self._promised[instance.instance_id] = proof.environment
        return proof.applied(instance)


def _words(split: str, left_out: Mapping[str, str], instances: int, unproven: Unproven) -> str:
    shown = "; ".join(f"{name}: {reason}" for name, reason in list(left_out.items())[:_SHOWN])
    more = f"; and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
    way = "job=prepare proves instances (job=validate those with images of others)"
    rest = {
        Unproven.refuse: "; env.unproven=skip leaves them out",
        Unproven.skip: "; env.unproven=keep uses them all the same",
    }.get(unproven, "")
    return f"{len(left_out)} of {instances} instances of {split} are not proven: {shown}{more}. {way}{rest}"
