"""The trainer of many ranks from a configuration: shapes, attention, weights, a look at whether it computes right.

Invariants:
- The same call on every rank, at the same time.
- bfloat16 on GPUs, float32 on CPUs; weights that are trained and optimizer state are float32 everywhere. The base
  below an adapter is of the type that is computed in, and is the reference as well; so is a reference of its own.
- Nothing is trained before packed and plain log-probabilities were seen to agree.
- A multiplication and an addition count as two. Recomputation, the optimizer, and padding do not count; the output
  head counts at trained tokens only, attention under the causal mask only.
- Forward once, backward twice (Narayanan et al., arXiv:2104.04473, appendix).
- The reference is transformers' own code with its own attention on one row at a time, with the same weights.
- All ranks take part, and all come to the same verdict.
- A difference that rounding does not explain stops the run before the first step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swe_rl.config.choices import Advantage
from swe_rl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from swe_rl.model.load import has_teacher, load_shape, model_folder, teacher_model
from swe_rl.trainer.compute import ShardedCompute
from swe_rl.trainer.critic import attach_value_head
from swe_rl.trainer.lora import Adapter, attach, base_of
from swe_rl.trainer.protocol import CorruptionError
from swe_rl.trainer.pulse import Beat, no_beat
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.sharded.attention import Kernel, choose
from swe_rl.trainer.sharded.materialize import empty_model, fill_from_folder
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.model import ShardedModel, head_shape
from swe_rl.trainer.sharded.packing import PackedBatch, pack
from swe_rl.trainer.sharded.ulysses import check_heads, heads_per_rank


def sharded_trainer(
    model: ModelConfig,
    config: TrainerConfig,
    algo: AlgoConfig,
    mesh: Mesh,
    *,
    pad_token_id: int,
    temperature: float,
    beat: Beat = no_beat,
) -> RankTrainer:
    """Loads the policy, the reference where `algo.kl_coef` asks for one, and a teacher or a critic.

    `beat` is called for each tensor that is loaded, and later for each micro-batch.
    Raises ModelError, WeightsError, MeshError, TrainerError, and CorruptionError where the probe finds one.
    """
    policy, adapter = sharded_policy(model, config, mesh, beat)
    reference = None
    if algo.kl_coef and adapter is None:
        reference = sharded_model(model, config, mesh, beat, frozen=True)
    shape = DenseShape.of(policy.causal_lm.config)
    return RankTrainer(
        policy,
        config,
        algo,
        pad_token_id=pad_token_id,
        temperature=temperature,
        reference=reference,
        compute=ShardedCompute(mesh, cost_per_token(shape), beat),
        adapter=adapter,
        teacher=sharded_model(teacher_model(model, algo), config, mesh, beat, frozen=True)
        if has_teacher(algo)
        else None,
        critic=_critic(model, config, mesh, beat) if algo.advantage is Advantage.gae else None,
    )


def _critic(model: ModelConfig, config: TrainerConfig, mesh: Mesh, beat: Beat) -> ShardedModel:
    """The policy's weights with a scalar head. It is not probed: it is the policy's pass but for the head."""
    shape, folder = load_shape(model), model_folder(model)
    dtype, causal_lm = computed_in(mesh.device), empty_model(shape)
    attach_value_head(causal_lm)
    sharded = ShardedModel(
        causal_lm,
        mesh,
        kernel_of(shape, config, mesh, dtype),
        compute_dtype=dtype,
        offload=config.offload_optimizer,
        compiled=config.compile,
        values=True,
    )
    fill_from_folder(sharded, folder, mesh.device, beat=beat)
    return sharded


def sharded_model(
    model: ModelConfig, config: TrainerConfig, mesh: Mesh, beat: Beat = no_beat, *, frozen: bool = False
) -> ShardedModel:
    """As `sharded_policy`, the model alone. What is `frozen` is of the type that is computed in, without an adapter."""
    return _loaded(model, config, mesh, beat, frozen=frozen)[0]


def sharded_policy(
    model: ModelConfig, config: TrainerConfig, mesh: Mesh, beat: Beat = no_beat
) -> tuple[ShardedModel, Adapter | None]:
    """One model, loaded and probed, with an adapter where `trainer.lora_rank` asks for one."""
    return _loaded(model, config, mesh, beat, frozen=False)


def _loaded(
    model: ModelConfig, config: TrainerConfig, mesh: Mesh, beat: Beat, *, frozen: bool
) -> tuple[ShardedModel, Adapter | None]:
    shape, folder = load_shape(model), model_folder(model)
    dtype = computed_in(mesh.device)
    base = base_of(model, folder) if config.lora_rank > 0 and not frozen else None
    causal_lm, adapter = (empty_model(shape, dtype), None) if frozen else empty_policy(shape, config, dtype, base)
    sharded = ShardedModel(
        causal_lm,
        mesh,
        kernel_of(shape, config, mesh, dtype),
        compute_dtype=dtype,
        offload=config.offload_optimizer and adapter is None,  # an adapter's optimizer has next to nothing
        compiled=config.compile,
        float32_head=model.float32_head,
    )
    fill_from_folder(sharded, folder, mesh.device, seed=config.seed, beat=beat)
    require_agreement(sharded)
    beat()
    return sharded.requires_grad_(False) if frozen else sharded, adapter


def computed_in(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def empty_policy(
    shape: Any, config: TrainerConfig, dtype: torch.dtype, base: Mapping[str, Any] | None = None
) -> tuple[Any, Adapter | None]:
    """On the meta device. What is trained is float32; what is frozen is of `dtype`, in which it is computed."""
    if config.lora_rank <= 0:
        return empty_model(shape), None
    causal_lm = empty_model(shape, dtype)
    return causal_lm, attach(causal_lm, config, base)


def kernel_of(shape: object, config: TrainerConfig, mesh: Mesh, dtype: torch.dtype) -> Kernel:
    """The attention that `trainer.attention` names, checked for this rank's heads."""
    heads, kv_heads, head_dim = head_shape(shape)
    check_heads(heads, kv_heads, mesh.sp)
    return choose(mesh, (*heads_per_rank(heads, kv_heads, mesh.sp), head_dim), dtype, config.attention)


@dataclass(frozen=True, slots=True)
class DenseShape:
    """The numbers of a dense decoder that its arithmetic depends on.

    A mixture of experts is as dense as what one token passes: `intermediate` is that of its experts together, and
    `routes` how many of them its router knows.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    routes: int = 0

    @classmethod
    def of(cls, config: Any) -> "DenseShape":
        """Of a transformers configuration."""
        routes = getattr(config, "num_experts", 0) or 0
        passed = config.num_experts_per_tok * config.moe_intermediate_size if routes else config.intermediate_size
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=passed,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocab=config.vocab_size,
            routes=routes,
        )

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's matrices that a token passes."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + self.hidden * (3 * self.intermediate + self.routes)


def train_flops(shape: DenseShape, row_tokens: Sequence[int], trained_tokens: int) -> float:
    """Of one forward and backward pass over rows of so many tokens."""
    matrices = 2.0 * shape.layers * shape.layer_weights * sum(row_tokens)
    attention = sum(_attention(shape) * tokens * tokens / 2.0 for tokens in row_tokens)
    head = 2.0 * shape.vocab * shape.hidden * trained_tokens
    return 3.0 * (matrices + attention + head)


def cost_per_token(shape: DenseShape) -> float:
    """A token's matrices, in pairs of attending tokens: rows longer than this cost mostly attention."""
    return 2.0 * shape.layers * shape.layer_weights / _attention(shape)


def _attention(shape: DenseShape) -> float:
    """One pair of tokens: a product with the key and one with the value, in every head and layer."""
    return 4.0 * shape.layers * shape.heads * shape.head_dim


_PROBED_ROWS = 3
# Mean absolute difference in nats that rounding explains, measured for random and trained weights alike.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}


@dataclass(frozen=True, slots=True)
class Difference:
    """Of log-probabilities in nats, over `tokens` tokens; `spread` is their standard deviation in the reference."""

    mean: float
    largest: float
    spread: float
    tokens: int


def require_agreement(model: ShardedModel, *, tokens: int = 512) -> Difference:
    """Raises CorruptionError where packed and plain log-probabilities differ by more than rounding."""
    difference = compare(model, tokens=tokens, rows=_PROBED_ROWS)
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
