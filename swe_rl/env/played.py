"""This module has what environments share that bring an agent of their own, which plays and scores each instance.

Invariants:
- The agent hands its score in as the patch, which `grade` reads. No sandbox is used for either.
- An instance starts from a folder with a file that says so. Its splits are `train` and `eval`, and slices of these.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.env import Grade, GradeError
from swe_rl.env.folder import commit_of, folder_of
from swe_rl.env.swe.splits import choose_evaluated, choose_instances
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace

_SPLIT = re.compile(r"(train|eval)(?:\[(\d*):(\d*)\])?")


class PlayedEnv(ABC):
    """Offers what its agent plays as instances. The agent has the environment's name."""

    name: str
    needs_container = False
    files: Mapping[str, str]  # The folder of every instance has these.
    played: str  # Messages call so what the agent scores.

    def __init__(self, config: EnvConfig, cache: Path) -> None:
        self._config = config
        self._cache = cache / self.name

    def instances(self, split: str) -> Sequence[Instance]:
        """Returns the instances of a split. It blocks. Raises InstanceError, and UserError for what cannot be used."""
        if split == self._config.split:
            return choose_instances(self._config, self._of_split(split), lambda: self._ids_of(self._config.eval_split))
        return choose_evaluated(self._config, self._of_split(split), lambda: self._ids_of(self._config.split))

    def workspace(self, instance: Instance) -> Workspace:
        """Returns an empty folder. The first call blocks (git). Raises OSError."""
        return Workspace(path=folder_of(self.files, self._cache / instance.base_commit))

    def prompt(self, instance: Instance) -> str:
        return instance.problem_statement

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Returns the verdict that the agent handed in as `patch`. Raises GradeError."""
        del sandboxes, timeout_s
        try:
            record = json.loads(patch)
            score = float(record["reward"])
            passed = bool(record["passed"])
        except (ValueError, KeyError, TypeError) as error:
            raise GradeError(
                f"{instance.instance_id}: there is no score of {self.played}; agent={self.name} hands one in"
            ) from error
        return Grade(resolved=passed, patch_applied=True, score=score, log_tail=patch)

    @abstractmethod
    def _make_instances(self, split: str, chosen: slice) -> list[Instance]:
        """Makes those of the split `train` or `eval` whose numbers are in the slice."""

    @cached_property
    def _commit(self) -> str:
        return commit_of(self.files)

    def _of_split(self, split: str) -> list[Instance]:
        parts = _SPLIT.fullmatch(split)
        if parts is None:
            raise InstanceError(
                f"env={self.name} has the splits train and eval, or a slice as train[:100]; not {split}"
            )
        return self._make_instances(parts[1], slice(*(int(text) if text else None for text in parts.group(2, 3))))

    def _ids_of(self, split: str) -> frozenset[str]:
        """Returns the ids of another split, and none where there is no such split."""
        try:
            return frozenset(instance.instance_id for instance in self._of_split(split))
        except InstanceError:
            return frozenset()

    def _instance(self, name: str, repo: str, statement: str) -> Instance:
        return Instance(
            instance_id=name,
            repo=repo,
            base_commit=self._commit,
            problem_statement=statement,
            patch="",
            test_patch="",
            fail_to_pass=(),
            pass_to_pass=(),
        )
