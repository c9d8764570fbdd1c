"""Offers rows of NeMo-Gym as instances (`env=nemo_gym`), which a resource server gives tools to and verifies.

Invariants:
- `agent=nemo_gym` plays a row at the server, and hands in the reward of `verify` as the patch, which `grade` reads.
- The split `train` has the rows of `env.dataset`, and `eval` those of `env.eval_dataset`. No row is in both.
- A server that is no resource server, or lacks a tool that a row offers, is refused before anything is played.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.server_address import NEMO_GYM_SERVER, clean_address
from swe_rl.env.nemo_gym.rows import GymRow, read_gym_rows
from swe_rl.env.played import PlayedEnv
from swe_rl.env.served import read_object
from swe_rl.errors import UserError

_NEEDED_PATHS = ("/seed_session", "/verify")


class NemoGymEnv(PlayedEnv):
    """Makes instances of the rows of one file for each split. `server` is the address of their resource server.

    Raises UserError for an address that cannot be used.
    """

    name = "nemo_gym"
    files = {"README.md": "Tasks are played at their resource server.\n"}
    played = "a task"

    def __init__(self, config: EnvConfig, cache: Path, server: str = "none", allow_remote: bool = False) -> None:
        super().__init__(config, cache)
        self._address = clean_address(server, NEMO_GYM_SERVER, allow_remote=allow_remote)

    def split_instances(self, split: str) -> int | None:
        name = split.partition("[")[0]
        if name not in ("train", "eval"):
            return None
        return len(self._rows(name))

    def _make_instances(self, split: str, chosen: slice) -> list[Instance]:
        rows = self._rows(split)[chosen]
        _require_tools(rows, look_at_paths(self._address), self._address)
        return [
            self._instance(row.row_id, f"nemo_gym/{row.row_id.rpartition('-')[0]}", _show_task(row)) for row in rows
        ]

    def _rows(self, split: str) -> Sequence[GymRow]:
        config = self._config
        if split == "train":
            return read_gym_rows(config.dataset)
        if config.eval_dataset is None:
            raise InstanceError(
                "env=nemo_gym has no split eval without env.eval_dataset=FILE; give it, or slices of env.dataset: "
                "'env.split=\"train[20:]\"' 'env.eval_split=\"train[:20]\"'"
            )
        rows = read_gym_rows(config.eval_dataset)
        if config.eval_dataset != config.dataset:
            _refuse_shared(rows, read_gym_rows(config.dataset))
        return rows


@functools.lru_cache(maxsize=8)
def look_at_paths(address: str) -> frozenset[str]:
    """Returns the paths that the server at a clean address takes POST requests at. It blocks. Raises UserError."""
    paths = read_object(address, "/openapi.json", NEMO_GYM_SERVER).get("paths")
    if not isinstance(paths, dict):
        raise UserError(f"{NEMO_GYM_SERVER.key}={address}: GET /openapi.json names no paths")
    taken = frozenset(str(path) for path, methods in paths.items() if isinstance(methods, dict) and "post" in methods)
    missing = [path for path in _NEEDED_PATHS if path not in taken]
    if missing:
        words = "so it is no resource server of NeMo-Gym (tried: 0.4 of the package nemo-gym)"
        if {"/reset", "/step"} <= taken:
            words = "as servers in Gymnasium's style have reset and step instead, which env=nemo_gym does not speak"
        raise UserError(f"{NEMO_GYM_SERVER.key}={address} takes no POST {' and '.join(missing)}, {words}")
    return taken


def _require_tools(rows: Sequence[GymRow], paths: frozenset[str], address: str) -> None:
    """Refuses a row whose tools the server does not have. Raises InstanceError."""
    if any(path.count("/") == 1 and "{" in path for path in paths):
        # The server takes any name, and says of each call whether it knows it.
        return
    for row in rows:
        missing = [name for name in row.tool_names if f"/{name}" not in paths]
        if missing:
            raise InstanceError(
                f"{row.where} offers the tool {missing[0]}, which the server at {address} does not have. Start the "
                f"server that these rows are of, or name it: {NEMO_GYM_SERVER.key}=ADDRESS"
            )


def _refuse_shared(evaluated: Sequence[GymRow], trained: Sequence[GymRow]) -> None:
    """Refuses two files with a row in common. Raises InstanceError."""
    digests = {row.row_id.rpartition("-")[2]: row.where for row in trained}
    for row in evaluated:
        where = digests.get(row.row_id.rpartition("-")[2])
        if where is not None:
            raise InstanceError(
                f"{row.where} is the row of {where}: a score on rows that are trained on says nothing. Remove it from "
                "one of env.dataset and env.eval_dataset"
            )


def _show_task(row: GymRow) -> str:
    """Returns what the user of a row says. The agent shows the model the whole conversation of the row."""
    said = [str(message["content"]) for message in row.messages if message["role"] == "user"]
    return "\n\n".join(said) or str(row.messages[-1]["content"])
