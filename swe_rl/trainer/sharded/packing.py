"""Lays rows end to end, without padding between them, and gives a sequence-parallel rank its share.

Invariants:
- Positions start at 0 in every row and attention never crosses from one row into another (`Segments`).
- The few tokens that make the length divisible are appended to the last row, where causality hides them.
- Rank r of a group holds the r-th of `sp` equal slices of the tokens, and the trained tokens predicted from them:
  together the ranks hold each trained token exactly once.
- What cannot influence a trained token is not fed (see `batching`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swe_rl.trainer.batching import IdsAndMask, input_length

# Each rank's slice is a multiple of this: the matrix units of GPUs are fastest at multiples of 8.
ALIGN_TOKENS = 8
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Segments:
    """The lengths of the rows in one packed sequence. `starts` is [rows + 1], int32 on the device."""

    lengths: tuple[int, ...]
    starts: Tensor

    @property
    def total(self) -> int:
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The slice of this rank. `members`, `hidden_index`, `targets` and `member_of_token` are as in `MicroBatch`.

    input_ids and position_ids are [1, slice]; `segments` is of the whole sequence. `trained_index` says which of all
    trained tokens of the members, in their order, are this rank's: [trained tokens of the slice], all int64. `routes`
    is [slice, layers, experts].
    """

    members: tuple[int, ...]
    input_ids: Tensor
    position_ids: Tensor
    segments: Segments
    hidden_index: Tensor
    targets: Tensor
    member_of_token: Tensor
    trained_index: Tensor
    routes: Tensor | None = None


def pack_sequences(
    sequences: Sequence[IdsAndMask],
    members: tuple[int, ...],
    pad_token_id: int,
    device: torch.device,
    *,
    sp: int = 1,
    sp_rank: int = 0,
) -> PackedBatch:
    """Returns the packed (token ids, loss mask) pairs of one micro-batch.

    No pair at all gives a batch of padding without trained tokens.
    """
    parts = [_Part.of(ids, mask) for ids, mask in sequences]
    fed = sum(part.length for part in parts)
    unit = sp * ALIGN_TOKENS
    padding = -fed % unit or (unit if fed == 0 else 0)
    lengths = [part.length for part in parts] or [0]
    lengths[-1] += padding
    ids = np.concatenate([*(part.ids for part in parts), np.full(padding, pad_token_id, np.int64)])
    positions = np.concatenate([np.arange(length) for length in lengths])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    index = np.concatenate([part.predicted_from + start for part, start in zip(parts, starts, strict=False)] or [_NONE])
    share = (fed + padding) // sp
    low = sp_rank * share
    kept = np.flatnonzero((index >= low) & (index < low + share))
    owners = np.repeat(np.arange(len(parts)), [len(part.targets) for part in parts])
    targets = np.concatenate([part.targets for part in parts] or [_NONE])

    def tensor(values: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(device=device, dtype=dtype)

    return PackedBatch(
        members=members,
        input_ids=tensor(ids[low : low + share])[None],
        position_ids=tensor(positions[low : low + share])[None],
        segments=Segments(tuple(lengths), tensor(starts, torch.int32)),
        hidden_index=tensor(index[kept] - low),
        targets=tensor(targets[kept]),
        member_of_token=tensor(owners[kept]),
        trained_index=tensor(kept),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    ids: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    predicted_from: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    targets: "np.ndarray[tuple[int], np.dtype[np.int64]]"

    @property
    def length(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, ids: npt.ArrayLike, mask: npt.ArrayLike) -> "_Part":
        trained = np.flatnonzero(np.asarray(mask))
        length = input_length(mask)
        tokens = np.asarray(ids)[: length + 1].astype(np.int64)
        return cls(tokens[:length], trained - 1, tokens[trained])
