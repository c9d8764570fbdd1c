"""The environment of KodCode: a folder with stubs, graded by the row's own test file.

Invariants:
- Instances need no container: workspaces are folders, which container sandboxes get as copies.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from swe_rl.config.schema import EnvConfig
from swe_rl.env.grading.make import GRADERS, VerdictCache
from swe_rl.env.instance import Instance
from swe_rl.env.kodcode.read import read_split
from swe_rl.env.kodcode.tree import make_tree
from swe_rl.env.protocol import Grade
from swe_rl.env.swe.apart import refuse_shared
from swe_rl.env.swe.env import chosen, load_instances
from swe_rl.logger.disk import disk_error
from swe_rl.sandbox.protocol import SandboxProvider, Workspace


class KodcodeEnv:
    """Instances of `conf/env/kodcode.yaml`; see the protocol."""

    def __init__(self, config: EnvConfig, cache: Path) -> None:
        self.name = config.name
        self._config = config
        self._cache = cache
        self._lock = threading.Lock()
        self._loaded: dict[str, Sequence[Instance]] = {}
        self._split_rows: dict[str, int | None] = {}
        grader = GRADERS[config.grading]
        self._grade = VerdictCache(grader).grade if config.cache_verdicts else grader

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
        """Blocking (git); tens of milliseconds the first time, then free. Raises InstanceError, DiskError."""
        folder = self._cache / "functions" / f"{instance.instance_id}-{instance.base_commit[:12]}"
        with self._lock:
            if not folder.is_dir():
                try:
                    make_tree(instance, folder)
                except OSError as error:
                    raise disk_error(folder, error) from error
        return Workspace(path=folder)

    def prompt(self, instance: Instance) -> str:
        return instance.problem_statement.strip()

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Raises GradeError."""
        return await self._grade(instance, patch, self.workspace(instance), sandboxes, timeout_s)
