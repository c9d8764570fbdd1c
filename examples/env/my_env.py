"""An environment of your own: a data set of small functions to repair, graded by tests that no agent sees."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rl.api import Grade, Instance, SandboxProvider, Workspace, commit_of, folder_of, grade_by_tests, patch_between

ROWS = Path(__file__).with_name("my_env.jsonl")  # comes along with the code: job.code=[FOLDER]


class MyEnv:
    """Rows of a JSON file: a broken module, the right one, and a test."""

    name = "my_env"
    needs_container = False  # its instances start from folders

    def __init__(self, cache: Path, rows: str = str(ROWS), heldout: int = 2) -> None:
        self._cache = cache / "my_env"  # swe_rl gives the folder for what can be made again
        self._rows = [json.loads(line) for line in Path(rows).read_text().splitlines()]
        self._heldout = heldout  # so many of the last rows are never trained on

    def instances(self, split: str) -> Sequence[Instance]:
        rows = self._rows[-self._heldout :] if split == "heldout" else self._rows[: -self._heldout]
        return [_instance(row) for row in rows]

    def workspace(self, instance: Instance) -> Workspace:
        files = next(row["broken"] for row in self._rows if row["name"] == instance.instance_id)
        return Workspace(path=folder_of(files, self._cache / instance.base_commit))

    def prompt(self, instance: Instance) -> str:
        return instance.problem_statement

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        return await grade_by_tests(instance, patch, self.workspace(instance), sandboxes, timeout_s)


def _instance(row: Mapping) -> Instance:
    return Instance(
        instance_id=row["name"],
        repo="my_env",
        base_commit=commit_of(row["broken"]),
        problem_statement=row["issue"],
        patch=patch_between(row["broken"], row["right"]),
        test_patch=patch_between({}, row["tests"]),
        fail_to_pass=tuple(row["fail_to_pass"]),
        pass_to_pass=(),
    )
