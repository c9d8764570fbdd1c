"""Offers the tasks of KodCode: a folder with stubs, graded by the row's own test file.

Invariants:
- Every test that pytest runs in the row's file counts.
- Instances need no container: workspaces are folders, which container sandboxes get as copies.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.bugs.workspace import commit_tree
from swe_rl.env.env import Grade, Grading
from swe_rl.env.grading.make import GRADERS, VerdictCache
from swe_rl.env.kodcode.read import TESTS, read_split, tree_of
from swe_rl.env.swe.read import Read
from swe_rl.env.swe.splits import DatasetEnv
from swe_rl.files.disk import disk_error
from swe_rl.files.names import folder_name
from swe_rl.sandbox.lease import made_aside
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
        self._lock = threading.Lock()
        ours = GRADERS[config.grading]
        self._grade = grader or (VerdictCache(ours).grade if config.cache_verdicts else ours)

    def workspace(self, instance: Instance) -> Workspace:
        """Returns the folder that an agent starts from. Raises InstanceError, DiskError.

        It blocks (git) for tens of milliseconds the first time, then it is free.
        """
        folder = self._cache / "functions" / folder_name(f"{instance.instance_id}-{instance.base_commit[:12]}")
        with self._lock:
            if not folder.is_dir():
                try:
                    make_tree(instance, folder, self._files(instance))
                except OSError as error:
                    raise disk_error(folder, error, key="paths.cache") from error
        return Workspace(path=folder)

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Returns the verdict of the row's test file. Raises GradeError."""
        row = replace(instance, fail_to_pass=(TESTS,))  # An older job=prepare wrote names that it read in the file.
        return await self._grade(row, patch, self.workspace(instance), sandboxes, timeout_s)


def make_tree(instance: Instance, destination: Path, files: Mapping[str, str]) -> None:
    """Makes the tree of these files aside, then renames it.

    Raises InstanceError when git does not agree on the commit, OSError.
    """
    with made_aside(destination) as aside:
        aside.mkdir()
        for name, text in files.items():
            (aside / name).write_text(text, encoding="utf-8")
            (aside / name).chmod(0o644)
        commit = commit_tree(aside)
        if commit != instance.base_commit:
            raise InstanceError(
                f"{instance.instance_id}: the tree's commit is {commit}, the record says {instance.base_commit}; "
                "run job=prepare again"
            )
