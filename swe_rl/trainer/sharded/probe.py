"""Is the parallel computation the model's? Packed, sharded log-probabilities against the plain forward pass.

Invariants:
- The reference is transformers' own code with its own attention on one row at a time, with the same weights.
- All ranks take part, and all come to the same verdict.
- A difference that rounding does not explain stops the run before the first step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from swe_rl.trainer.errors import CorruptionError
from swe_rl.trainer.sharded.model import ShardedModel
from swe_rl.trainer.sharded.packing import PackedBatch, pack

# Mean absolute difference in nats that rounding explains, measured for random and trained weights alike.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}


@dataclass(frozen=True, slots=True)
class Difference:
    """Of log-probabilities in nats, over `tokens` tokens; `spread` is their standard deviation in the reference."""

    mean: float
    largest: float
    spread: float
    tokens: int


def require_agreement(model: ShardedModel, *, tokens: int = 512, rows: int = 3) -> Difference:
    """Raises CorruptionError where packed and plain log-probabilities differ by more than rounding."""
    difference = compare(model, tokens=tokens, rows=rows)
    dtype = model.compute_dtype
    if not difference.mean <= TOLERANCE[dtype]:  # also where it is not a number
        raise CorruptionError(
            f"The packed, sharded forward pass gives log-probabilities that are off by {difference.mean:.3g} nats on "
            f"average ({difference.largest:.3g} at most, over {difference.tokens} tokens, {dtype}) from those of the "
            "model itself: training on them would be noise. Try trainer.attention=by_row, which uses torch's own "
            "attention, and layout.sequence_parallel=1; report the versions of torch and transformers."
        )
    return difference


@torch.no_grad()
def compare(model: ShardedModel, *, tokens: int, rows: int) -> Difference:
    """Random rows of uneven length, at most `tokens` long, packed into one sequence."""
    mesh, vocab = model.mesh, int(model.causal_lm.config.vocab_size)
    generator = np.random.default_rng(0)
    lengths = [max(4, tokens - i * tokens // (2 * rows)) for i in range(rows)]
    sequences = [([int(x) for x in generator.integers(0, vocab, n)], [0] + [1] * (n - 1)) for n in lengths]
    members = tuple(range(rows))

    def packed(indices: Sequence[int], ranks: int, rank: int) -> PackedBatch:
        chosen = [sequences[i] for i in indices]
        return pack(chosen, tuple(indices), 0, mesh.device, sp=ranks, sp_rank=rank)

    batch = packed(members, mesh.sp, mesh.sp_rank)
    got = model(batch, 1.0)[0]
    together = torch.zeros(sum(n - 1 for n in lengths), dtype=torch.float64, device=mesh.device)
    together[batch.trained_index] = got.double()
    together = mesh.sum(together) / mesh.dp  # the data-parallel groups computed the same rows
    with model.plain_attention():
        alone = torch.cat([model(packed([i], 1, 0), 1.0)[0] for i in members]).double()
    return _difference(together, alone)


def _difference(got: Tensor, expected: Tensor) -> Difference:
    error = (got - expected).abs()
    return Difference(float(error.mean()), float(error.max()), float(expected.std()), error.numel())
