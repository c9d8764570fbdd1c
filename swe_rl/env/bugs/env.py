"""The embedded environment: instances that ship with the package, or a file of the same kind."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rl.config.choices import GradingKind
from swe_rl.config.schema import EnvConfig
from swe_rl.env.bugs.workspace import package_folder, prepare_workspace
from swe_rl.env.grading.make import GRADERS, VerdictCache
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.protocol import Grade, Grading
from swe_rl.env.records import narrowed, read_instances, select_instances
from swe_rl.logger.disk import disk_error
from swe_rl.sandbox.protocol import SandboxProvider, Workspace

DATA = Path(__file__).parent / "data"
SPLITS = ("train", "heldout")


class BugsEnv:
    """Instances of `conf/env/bugs.yaml`; workspaces are prepared below `cache` when first asked for."""

    def __init__(self, config: EnvConfig, cache: Path, grader: Grading | None = None) -> None:
        self.name = config.name
        self._config = config
        self._cache = cache
        self._lock = threading.Lock()
        self._grade = grader or (VerdictCache().grade if config.cache_verdicts else GRADERS[GradingKind.pytest])

    def instances(self, split: str) -> Sequence[Instance]:
        """`env.instances` narrows the training split; the held-out split only where it names some of it. One list may
        name instances of both."""
        instances = read_instances(self._file(split))
        for instance in instances:
            package_folder(instance.repo)  # refuses what cannot be run before anything was started
        if self._config.instances and split == self._config.split:
            return select_instances(instances, self._config.instances, self._all_ids)
        if self._config.instances:
            return narrowed(instances, self._config.instances, self._all_ids)
        return instances

    def _all_ids(self) -> frozenset[str]:
        files = {self._file(split) for split in (self._config.split, self._config.eval_split)}
        return frozenset(instance.instance_id for file in files for instance in read_instances(file))

    def split_instances(self, split: str) -> int | None:
        return len(read_instances(self._file(split)))

    def left_out(self, split: str) -> Mapping[str, str]:
        del split
        return {}  # proven when they were made

    def _file(self, split: str) -> Path:
        """A dataset is a folder with one file a split, or one file that is every split."""
        dataset = Path(self._config.dataset)
        if self._config.dataset.startswith("builtin:"):
            if split not in SPLITS:
                raise InstanceError(f"env=bugs has no split {split!r}; there are {', '.join(SPLITS)}")
            dataset = DATA
        return dataset / f"{split}.jsonl" if dataset.is_dir() else dataset

    def workspace(self, instance: Instance) -> Workspace:
        """Blocking (git); about 50 ms the first time, then free. Raises InstanceError, DiskError."""
        folder = self._cache / f"{instance.instance_id}-{instance.base_commit[:12]}"
        with self._lock:
            if not folder.is_dir():
                try:
                    self._cache.mkdir(parents=True, exist_ok=True)
                    prepare_workspace(instance, folder)
                except OSError as error:
                    raise disk_error(folder, error, key="paths.cache") from error
        return Workspace(path=folder)

    def prompt(self, instance: Instance) -> str:
        return instance.problem_statement

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Raises GradeError."""
        return await self._grade(instance, patch, self.workspace(instance), sandboxes, timeout_s)
