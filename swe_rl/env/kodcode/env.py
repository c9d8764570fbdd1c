"""Offers the tasks of KodCode: a folder with stubs, graded by the row's own test file.

Invariants:
- Every test that pytest runs in the row's file counts.
- Instances need no container: workspaces are folders, which container sandboxes get as copies.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, Grading
from swe_rl.env.folder import WorkspaceFolders, make_recorded
from swe_rl.env.grading.make import GRADERS, VerdictCache
from swe_rl.env.kodcode.read import TESTS, read_split, tree_of
from swe_rl.env.swe.read import Read
from swe_rl.env.swe.splits import DatasetEnv
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace


class KodcodeEnv(DatasetEnv):
    """Offers the instances of `conf/env/kodcode.yaml`. The protocol says what each method does."""

    def __init__(
        self,
        config: EnvConfig,
        cache: Path,
        grader: Grading | None = None,
        *,
        read: Callable[[EnvConfig, str], Read] = read_split,
        files: Callable[[Instance], Mapping[str, str]] = tree_of,
    ) -> None:
        """Makes the environment. `read` and `files` are those of another data set of functions."""
        super().__init__(config, cache, read)
        self._files = files
        self._folders = WorkspaceFolders(self._cache / "functions")
        ours = GRADERS[config.grading]
        self._grade = grader or (VerdictCache(ours).grade if config.cache_verdicts else ours)

    def workspace(self, instance: Instance) -> Workspace:
        """Returns the folder that an agent starts from. Raises InstanceError, DiskError.

        It blocks (git) for tens of milliseconds the first time, then it is free.
        """
        files = self._files(instance)
        return Workspace(path=self._folders.find(instance, lambda folder: make_recorded(instance, files, folder)))

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Returns the verdict of the row's test file. Raises GradeError."""
        row = replace(instance, fail_to_pass=(TESTS,))  # An older job=prepare wrote names that it read in the file.
        return await self._grade(row, patch, self.workspace(instance), sandboxes, timeout_s)
