"""Turns sequences of uneven length into padded micro-batches.

Invariants:
- Everything is deterministic: the same sequences in the same order give the same micro-batches.
- Padding is on the right, so plain causal attention needs no mask: a real token never sees a padded one.
- What cannot influence a trained token (the last token as input, anything after the last trained token) is not fed.
- Every trained token is predicted from the hidden state one position before it; the first token of a sequence has none
  and cannot be trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Below this many padded tokens a micro-batch stays open for shorter rows: small matrices waste more than padding does.
MIN_MICRO_BATCH_TOKENS = 4096
# A sequence shorter than this share of its micro-batch's width opens a new one, because more than 15 % of its row would
# be computed for nothing.
MIN_FILL = 0.85


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of padded rows. `members` are indices into the caller's sequences; per-token tensors follow them.

    The shapes are: input_ids [rows, length]; hidden_index, targets and member_of_token [trained tokens], all int64.
    `hidden_index` points into the hidden states flattened to [rows * length, hidden]. `routes` is [rows * length,
    layers, experts], as `routing.Routing.of` makes it.
    """

    members: tuple[int, ...]
    input_ids: Tensor
    hidden_index: Tensor
    targets: Tensor
    member_of_token: Tensor
    routes: Tensor | None = None


# These are the ids and the mask of one sequence, with one entry a token.
IdsAndMask = tuple[npt.ArrayLike, npt.ArrayLike]


def input_length(loss_mask: npt.ArrayLike) -> int:
    """Returns how many tokens must be fed to predict every trained token: the index of the last one, or 0
    without any.
    """
    return int(np.flatnonzero(np.asarray(loss_mask)).max(initial=0))


def split_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[tuple[int, ...]]:
    """Returns the indices of the members of each micro-batch, longest first.

    A micro-batch has at most `max_tokens` padded tokens, except where one sequence alone is longer. It is also closed
    early where the next sequence would be mostly padding.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not batches or not _fits_batch(lengths[index], len(batches[-1]), lengths[batches[-1][0]], max_tokens):
            batches.append([])
        batches[-1].append(index)
    return [tuple(batch) for batch in batches]


def micro_batches(
    sequences: Sequence[IdsAndMask],
    max_tokens: int,
    pad_token_id: int,
    device: torch.device,
) -> list[MicroBatch]:
    """Returns padded micro-batches of (token ids, loss mask) pairs, each with at least one trained token."""
    lengths = [input_length(mask) for _, mask in sequences]
    return [
        pad_batch([sequences[i] for i in members], [lengths[i] for i in members], members, pad_token_id, device)
        for members in split_by_tokens(lengths, max_tokens)
    ]


def pad_batch(
    sequences: Sequence[IdsAndMask],
    lengths: Sequence[int],
    members: tuple[int, ...],
    pad_token_id: int,
    device: torch.device,
) -> MicroBatch:
    width = max(lengths)
    input_ids = np.full((len(sequences), width), pad_token_id, np.int64)
    trained = [np.flatnonzero(np.asarray(mask)) for _, mask in sequences]
    for row, ((ids, _), length) in enumerate(zip(sequences, lengths, strict=True)):
        input_ids[row, :length] = np.asarray(ids)[:length]
    owners = np.repeat(np.arange(len(sequences)), [len(places) for places in trained])
    targets = [np.asarray(ids)[places] for (ids, _), places in zip(sequences, trained, strict=True)]

    def tensor(values: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(device)

    return MicroBatch(
        members=members,
        input_ids=tensor(input_ids),
        hidden_index=tensor(owners * width + np.concatenate(trained) - 1),
        targets=tensor(np.concatenate(targets)),
        member_of_token=tensor(owners),
    )


def _fits_batch(length: int, rows: int, width: int, max_tokens: int) -> bool:
    if (rows + 1) * width > max_tokens:
        return False
    return rows * width < MIN_MICRO_BATCH_TOKENS or length >= MIN_FILL * width
