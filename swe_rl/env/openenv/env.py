"""Offers episodes of an OpenEnv server as instances (`env=openenv`), one for each seed.

Invariants:
- The server decides what an episode is and what its steps are paid. `agent=openenv` plays it, and hands its score in
  as the patch, which `grade` reads. No sandbox is used for either.
- The seeds of `eval` are none of `train`'s, however many there are of each.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance
from swe_rl.dataset.server_address import OPENENV_SERVER, clean_address
from swe_rl.env.openenv.server import look_at_server
from swe_rl.env.played import PlayedEnv
from swe_rl.errors import UserError

_FIRST_SEEDS = {"train": 0, "eval": 1_000_000}
_MOST_EPISODES = 1_000_000


class OpenEnvEnv(PlayedEnv):
    """Makes instances of seeds. `env.dataset` is the server's address. `reset` is read by the agent alone.

    Raises UserError for an address or a number that cannot be used.
    """

    name = "openenv"
    files = {"README.md": "Episodes are played at their server.\n"}
    played = "an episode"

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
        super().__init__(config, cache)
        self._numbers = {"train": episodes, "eval": eval_episodes}
        for name, number in {"episodes": episodes, "eval_episodes": eval_episodes}.items():
            if not isinstance(number, int) or not 0 < number <= _MOST_EPISODES:
                raise UserError(f"env.params.{name}={number} is no number of seeds from 1 to {_MOST_EPISODES}")
        self._address = clean_address(config.dataset, OPENENV_SERVER, allow_remote=allow_remote)

    def split_instances(self, split: str) -> int | None:
        return self._numbers.get(split.partition("[")[0])

    def _make_instances(self, split: str, chosen: slice) -> list[Instance]:
        facts = look_at_server(self._address)
        name = re.sub(r"[^A-Za-z0-9_.]+", "_", facts.name).strip("_.")[:80] or "environment"
        statement = f"You act in the environment {facts.name}."
        if facts.description:
            statement += f" {facts.description}"
        return [
            self._instance(f"{name}-{split}-{_FIRST_SEEDS[split] + number}", f"openenv/{name}", statement)
            for number in range(self._numbers[split])[chosen]
        ]


def seed_of(instance_id: str) -> int:
    """Returns the seed of the episode that an instance is."""
    return int(instance_id.rpartition("-")[2])
