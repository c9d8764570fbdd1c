"""Offers episodes of an OpenEnv server as instances (`env=openenv`), one for each seed.

Invariants:
- The server decides what an episode is and what its steps are paid. `agent=openenv` plays it, and hands its score in
  as the patch, which `grade` reads. No sandbox is used for either.
- The seeds of `eval` are none of `train`'s, however many there are of each.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.env import Grade, GradeError
from swe_rl.env.folder import commit_of, folder_of
from swe_rl.env.openenv.server import ServerFacts, clean_address, look_at_server
from swe_rl.env.swe.splits import choose_evaluated, choose_instances
from swe_rl.errors import UserError
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace

_SPLIT = re.compile(r"(train|eval)(?:\[(\d*):(\d*)\])?")
_FIRST_SEEDS = {"train": 0, "eval": 1_000_000}
_MOST_EPISODES = 1_000_000
# Nothing is done in it.
_FILES: Mapping[str, str] = {"README.md": "Episodes are played at their server.\n"}


class OpenEnvEnv:
    """Makes instances of seeds. `env.dataset` is the server's address. `reset` is read by the agent alone.

    Raises UserError for an address or a number that cannot be used.
    """

    name = "openenv"
    needs_container = False

    def __init__(
        self,
        config: EnvConfig,
        cache: Path,
        episodes: int = 64,
        eval_episodes: int = 32,
        allow_remote: bool = False,
        reset: Mapping[str, Any] | None = None,
    ) -> None:
        del reset
        self._config = config
        self._cache = cache / "openenv"
        self._numbers = {"train": episodes, "eval": eval_episodes}
        for name, number in {"episodes": episodes, "eval_episodes": eval_episodes}.items():
            if not isinstance(number, int) or not 0 < number <= _MOST_EPISODES:
                raise UserError(f"env.params.{name}={number} is no number of seeds from 1 to {_MOST_EPISODES}")
        self._address = clean_address(config.dataset, allow_remote=allow_remote)

    def instances(self, split: str) -> Sequence[Instance]:
        """Returns the episodes of a split. It blocks. Raises InstanceError, and UserError without a server."""
        if split == self._config.split:
            return choose_instances(self._config, self._of_split(split), lambda: self._ids_of(self._config.eval_split))
        return choose_evaluated(self._config, self._of_split(split), lambda: self._ids_of(self._config.split))

    def split_instances(self, split: str) -> int | None:
        return self._numbers.get(split.partition("[")[0])

    def workspace(self, instance: Instance) -> Workspace:
        """Returns an empty folder. The first call blocks (git). Raises OSError."""
        return Workspace(path=folder_of(_FILES, self._cache / instance.base_commit))

    def prompt(self, instance: Instance) -> str:
        return instance.problem_statement

    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade:
        """Returns the verdict that `agent=openenv` handed in as `patch`: its episode's score. Raises GradeError."""
        del sandboxes, timeout_s
        try:
            record = json.loads(patch)
            score = float(record["reward"])
            passed = bool(record["passed"])
        except (ValueError, KeyError, TypeError) as error:
            raise GradeError(
                f"{instance.instance_id}: there is no score of an episode; agent=openenv hands one in"
            ) from error
        return Grade(resolved=passed, patch_applied=True, score=score, log_tail=patch)

    def _of_split(self, split: str) -> list[Instance]:
        parts = _SPLIT.fullmatch(split)
        if parts is None:
            raise InstanceError(f"env=openenv has the splits train and eval, or a slice as train[:100]; not {split}")
        facts = look_at_server(self._address)
        commit = commit_of(_FILES)
        bounds = slice(*(int(text) if text else None for text in parts.group(2, 3)))
        numbers = range(self._numbers[parts[1]])[bounds]
        return [_make_instance(facts, parts[1], _FIRST_SEEDS[parts[1]] + number, commit) for number in numbers]

    def _ids_of(self, split: str) -> frozenset[str]:
        """Returns the ids of another split, and none where the configuration names no such split."""
        try:
            return frozenset(instance.instance_id for instance in self._of_split(split))
        except InstanceError:
            return frozenset()


def seed_of(instance_id: str) -> int:
    """Returns the seed of the episode that an instance is."""
    return int(instance_id.rpartition("-")[2])


def _make_instance(facts: ServerFacts, split: str, seed: int, commit: str) -> Instance:
    name = re.sub(r"[^A-Za-z0-9_.]+", "_", facts.name).strip("_.")[:80] or "environment"
    statement = f"You act in the environment {facts.name}."
    if facts.description:
        statement += f" {facts.description}"
    return Instance(
        instance_id=f"{name}-{split}-{seed}",
        repo=f"openenv/{name}",
        base_commit=commit,
        problem_statement=statement,
        patch="",
        test_patch="",
        fail_to_pass=(),
        pass_to_pass=(),
    )
