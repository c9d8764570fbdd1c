"""The trajectories whose beginnings may be repeated, a file each in the run's folder.

Invariants:
- A file has the ids as they were sampled, by turn, and what each turn was answered. Nothing is made of them but its
  first tokens.
- It is written when a trajectory becomes a source and before a checkpoint names that; it stays while one of the two
  newest checkpoints does. A source without a file is no prefix: its group begins plain.
- The last turn of a trajectory is no part of a prefix: something is always left to be decided.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from swe_rl.agent.protocol import Turn
from swe_rl.gateway.trace import Trace
from swe_rl.logger.disk import decode_json, disk_error, encode_json, write_bytes_atomic
from swe_rl.rollout.prefixes import Choice
from swe_rl.rollout.trajectory import Prefix, Trajectory


class PrefixFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, trajectory: Trajectory, traces: Sequence[Trace]) -> None:
        """Nothing where its traces are not one chain, a trace a turn. Raises DiskError."""
        path = self._path(trajectory.trajectory_id)
        if path.exists() or len(traces) != len(trajectory.turns) or any(trace.chain for trace in traces):
            return
        turns = [
            {"message": turn.message, "observation": turn.observation, "sampled_ids": trace.sampled_ids.tolist()}
            for turn, trace in zip(trajectory.turns, traces, strict=True)
        ]
        write_bytes_atomic(path, encode_json({"name": trajectory.trajectory_id, "turns": turns}))

    def find(self, choice: Choice) -> Prefix | None:
        try:
            record: dict[str, Any] = decode_json(self._path(choice.source).read_bytes())
            turns = [
                (Turn(0, turn["message"], None, turn["observation"]), turn["sampled_ids"]) for turn in record["turns"]
            ]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cut(choice.source, turns, choice.tokens)

    def keep_only(self, names: Iterable[str]) -> None:
        """Raises DiskError."""
        kept = {self._path(name) for name in names}
        for path in self._folder.glob("*.json"):
            if path not in kept:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise disk_error(path, error) from error

    def _path(self, name: str) -> Path:
        """Names have what an instance's id has."""
        return self._folder / f"{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}.json"


def cut(source: str, turns: Sequence[tuple[Turn, Sequence[int]]], tokens: int) -> Prefix | None:
    """The first `tokens` that were sampled, without the last turn; None where there is no such turn before it."""
    whole, left = 0, tokens
    before = turns[:-1]
    while whole < len(before) and left >= len(before[whole][1]):
        left -= len(before[whole][1])
        whole += 1
    begun = tuple(before[whole][1][:left]) if whole < len(before) else ()
    if not whole and not begun:
        return None
    ids = tuple(tuple(sampled) for _, sampled in before[:whole])
    return Prefix(source, tuple(turn for turn, _ in before[:whole]), ids, begun)
