"""The weights of a group of ranks as engines take them: a mapping, or files.

Invariants:
- Nothing is moved before somebody asks; whoever asks for tensors gets those of the last request.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from swe_rl.trainer.group import TrainerGroup


class GroupWeights(Mapping[str, Tensor]):
    """Names as in transformers; tied weights once. Also `engine.http_weights.WritesFiles`."""

    def __init__(self, group: "TrainerGroup") -> None:
        self._group = group
        self._tensors: dict[str, Tensor] | None = None

    def fetch(self) -> dict[str, Tensor]:
        """Into this process's memory, once. Raises TrainerError."""
        if self._tensors is None:
            self._tensors = self._group.fetch_weights()
        return self._tensors

    def write_files(self, folder: Path, twice: Mapping[str, str]) -> None:
        """By all ranks, each its share, without a way through this process. Raises TrainerError."""
        self._group.write_weights(folder, twice)

    def __getitem__(self, name: str) -> Tensor:
        return self.fetch()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fetch())

    def __len__(self) -> int:
        return len(self.fetch())
