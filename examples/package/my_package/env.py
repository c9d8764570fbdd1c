"""The environment: what is to be solved, and how a solution is graded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rl.api import Grade, Instance, SandboxProvider, Workspace, commit_of, folder_of, grade_by_tests, patch_between

TASKS = Path(__file__).with_name("tasks.jsonl")


class MyPackageEnv:
    """Small functions to repair, each with a test that no agent sees. The last `heldout` tasks are never trained."""

    name = "my_package"
    needs_container = False

    def __init__(self, cache: Path, heldout: int = 2) -> None:
        self._cache = cache / "my_package"
        self._tasks = [json.loads(line) for line in TASKS.read_text().splitlines()]
        self._heldout = heldout

    def instances(self, split: str) -> Sequence[Instance]:
        if split == "heldout":
            return [_read_instance(task) for task in self._tasks[-self._heldout :]]
        return [_read_instance(task) for task in self._tasks[: -self._heldout]]

    def workspace(self, instance: Instance) -> Workspace:
        files = next(task["broken"] for task in self._tasks if task["name"] == instance.instance_id)
        return Workspace(path=folder_of(files, self._cache / instance.base_commit))

    def prompt(self, instance: Instance) -> str:
        return instance.problem_statement

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        return await grade_by_tests(instance, patch, self.workspace(instance), sandboxes, timeout_s)


def _read_instance(task: Mapping) -> Instance:
    return Instance(
        instance_id=task["name"],
        repo="my_package",
        base_commit=commit_of(task["broken"]),
        problem_statement=task["issue"],
        patch=patch_between(task["broken"], task["right"]),
        test_patch=patch_between({}, task["tests"]),
        fail_to_pass=tuple(task["fail_to_pass"]),
        pass_to_pass=(),
    )
