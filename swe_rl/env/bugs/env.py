"""Offers the embedded instances, which ship with the package, or a file of instances of the same kind."""

from collections.abc import Sequence
from pathlib import Path

from swe_rl.config.choices import GradingKind, SandboxKind
from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.records import narrow_instances, read_instances, select_instances
from swe_rl.env.bugs.workspace import package_folder, prepare_workspace
from swe_rl.env.env import Grade, Grading
from swe_rl.env.folder import WorkspaceFolders
from swe_rl.env.grading.make import GRADERS, VerdictCache
from swe_rl.env.grading.twin_trial import remember_proof
from swe_rl.env.proof.record import Standing
from swe_rl.env.swe.proven import ProvenEnv
from swe_rl.env.swe.read import read_split
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace

DATA = Path(__file__).parent / "data"
SPLITS = ("train", "heldout")


class BugsEnv(ProvenEnv):
    """Offers the instances of `conf/env/bugs.yaml`. Workspaces are prepared below `cache` when first asked for."""

    def __init__(
        self,
        config: EnvConfig,
        cache: Path,
        grader: Grading | None = None,
        sandbox: SandboxKind = SandboxKind.process,
    ) -> None:
        super().__init__(config, cache, sandbox, read_split)
        self._folders = WorkspaceFolders(cache)
        self._grade = grader or (VerdictCache().grade if config.cache_verdicts else GRADERS[GradingKind.pytest])

    def _chosen(self, split: str) -> tuple[list[Instance], int | None]:
        """Returns the chosen instances of a split, and how many it has. Raises InstanceError.

        `env.instances` narrows the training split. It narrows the held-out split only where it names some of its
        instances. One list may name instances of both.
        """
        instances = read_instances(self._file(split))
        for instance in instances:
            package_folder(instance.repo)  # A package that is not there is refused before anything is started.
        left = instances
        if self._config.instances and split == self._config.split:
            left = select_instances(instances, self._config.instances, self._all_ids)
        elif self._config.instances:
            left = narrow_instances(instances, self._config.instances, self._all_ids)
        return left, len(instances)

    def _check_apart(self, split: str, instances: Sequence[Instance]) -> None:
        """Accepts splits that share instances, because one file may be every split."""

    def standing(self, instance: Instance) -> tuple[Standing, str]:
        """Returns that the instance is proven: each was proven when it was made."""
        del instance
        return Standing.proven, ""

    def as_proven(self, instance: Instance) -> Instance:
        if self._is_builtin:
            remember_proof(instance.instance_id, (), tried=True)
        return instance  # No proof mends one of these instances.

    def _all_ids(self) -> frozenset[str]:
        """Returns the ids of all instances of both splits. Raises InstanceError."""
        files = {self._file(split) for split in (self._config.split, self._config.eval_split)}
        return frozenset(instance.instance_id for file in files for instance in read_instances(file))

    @property
    def _is_builtin(self) -> bool:
        return self._config.dataset.startswith("builtin:")

    def _file(self, split: str) -> Path:
        """Returns the file of a split. Raises InstanceError.

        A data set is a folder with one file a split, or one file that is every split.
        """
        dataset = Path(self._config.dataset)
        if self._is_builtin:
            if split not in SPLITS:
                raise InstanceError(f"env=bugs has no split {split!r}; there are {', '.join(SPLITS)}")
            dataset = DATA
        return dataset / f"{split}.jsonl" if dataset.is_dir() else dataset

    def workspace(self, instance: Instance) -> Workspace:
        """Returns the folder that an agent starts from. Raises InstanceError, DiskError.

        It blocks (git) for about 50 ms the first time, then it is free.
        """
        return Workspace(path=self._folders.find(instance, lambda folder: prepare_workspace(instance, folder)))

    def prompt(self, instance: Instance) -> str:
        return instance.problem_statement

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Returns the verdict of the instance's tests. Raises GradeError."""
        return await self._grade(instance, patch, self.workspace(instance), sandboxes, timeout_s)
