"""Makes the trainer of many ranks from a configuration: shapes, attention, weights.

Invariants:
- The same call is made on every rank, at the same time.
- Computation is bfloat16 on GPUs, float32 on CPUs; weights that are trained and optimizer state are float32 everywhere.
  The base below an adapter is of the type that is computed in, and is the reference as well; so is a reference of its
  own.
- Nothing is trained before packed and plain log-probabilities were seen to agree.
"""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from swe_rl.algo.own_algorithm import Loss
from swe_rl.config.choices import AdvantageKind
from swe_rl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from swe_rl.facts.schedule import NO_CHANGES
from swe_rl.model.load import has_teacher, load_shape, model_folder, teacher_model
from swe_rl.trainer.compute import ShardedCompute
from swe_rl.trainer.critic import attach_value_head
from swe_rl.trainer.lora import Adapter, attach_adapter, base_of
from swe_rl.trainer.pulse import Beat, no_beat
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.sharded.attention import Kernel, choose_kernel
from swe_rl.trainer.sharded.flops import cost_per_token
from swe_rl.trainer.sharded.materialize import empty_model, fill_from_folder
from swe_rl.trainer.sharded.mesh import Mesh
from swe_rl.trainer.sharded.model import ShardedModel, head_shape, is_fast, require_agreement
from swe_rl.trainer.sharded.pack_proof import pack_if_proven
from swe_rl.trainer.sharded.row_attention import use_row_attention
from swe_rl.trainer.sharded.ulysses import check_heads, heads_per_rank


def sharded_trainer(
    model: ModelConfig,
    config: TrainerConfig,
    algo: AlgoConfig,
    mesh: Mesh,
    *,
    pad_token_id: int,
    temperature: float,
    temperatures: Mapping[int, float] = NO_CHANGES,
    loss: Loss | None = None,
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
    teacher = None
    if has_teacher(algo):
        teacher = sharded_model(teacher_model(model, algo), config, mesh, beat, frozen=True)
    critic = None
    if algo.advantage is AdvantageKind.gae:
        critic = _load_critic(model, config, mesh, beat, policy)
    models = [computed for computed in (policy, reference, teacher, critic) if computed is not None]
    return RankTrainer(
        policy,
        config,
        algo,
        pad_token_id=pad_token_id,
        temperature=temperature,
        temperatures=temperatures,
        reference=reference,
        compute=ShardedCompute(
            mesh,
            cost_per_token(policy.causal_lm.config),
            beat,
            packs_rows=all(computed.packs_rows for computed in models),
        ),
        adapter=adapter,
        teacher=teacher,
        critic=critic,
        loss=loss,
    )


def _load_critic(
    model: ModelConfig, config: TrainerConfig, mesh: Mesh, beat: Beat, policy: ShardedModel
) -> ShardedModel:
    """Returns the policy's weights with a head of one number. It is not probed: it is the policy's pass but for the
    head.
    """
    shape = load_shape(model)
    folder = model_folder(model)
    dtype = computed_in(mesh.device)
    causal_lm = empty_model(shape)
    attach_value_head(causal_lm)
    sharded = ShardedModel(
        causal_lm,
        mesh,
        kernel_of(shape, config, mesh, dtype),
        compute_dtype=dtype,
        offload=config.offload_optimizer,
        compiled=bool(config.compile),
        values=True,
    )
    fill_from_folder(sharded, folder, mesh.device, beat=beat)
    if policy.packs_rows and not policy.is_fast:
        use_row_attention(causal_lm)
        sharded.packs_rows = True
    return sharded


def sharded_model(
    model: ModelConfig, config: TrainerConfig, mesh: Mesh, beat: Beat = no_beat, *, frozen: bool = False
) -> ShardedModel:
    """Returns the model of `sharded_policy` alone. `frozen` gives it the type that is computed in, and no adapter."""
    return _load_model(model, config, mesh, beat, frozen=frozen)[0]


def sharded_policy(
    model: ModelConfig, config: TrainerConfig, mesh: Mesh, beat: Beat = no_beat
) -> tuple[ShardedModel, Adapter | None]:
    """Returns one model, loaded and probed, with an adapter where `trainer.lora_rank` asks for one."""
    return _load_model(model, config, mesh, beat, frozen=False)


def _load_model(
    model: ModelConfig, config: TrainerConfig, mesh: Mesh, beat: Beat, *, frozen: bool
) -> tuple[ShardedModel, Adapter | None]:
    shape = load_shape(model)
    folder = model_folder(model)
    dtype = computed_in(mesh.device)
    base = None
    if config.lora_rank > 0 and not frozen:
        base = base_of(model, folder)
    causal_lm, adapter = (empty_model(shape, dtype), None) if frozen else empty_policy(shape, config, dtype, base)
    sharded = ShardedModel(
        causal_lm,
        mesh,
        kernel_of(shape, config, mesh, dtype),
        compute_dtype=dtype,
        # An adapter's optimizer has next to nothing.
        offload=config.offload_optimizer and adapter is None,
        # plan/duration.py has decided it, for all ranks alike.
        compiled=bool(config.compile),
        float32_head=model.float32_head,
    )
    fill_from_folder(sharded, folder, mesh.device, seed=config.seed, beat=beat)
    if sharded.is_fast:
        require_agreement(sharded)
    else:
        _say_how_rows_go(pack_if_proven(sharded), shape.model_type)
    beat()
    return sharded.requires_grad_(False) if frozen else sharded, adapter


def _say_how_rows_go(problem: str | None, family: str) -> None:
    """Prints into the rank's log how the rows of a family that is not fast are computed."""
    if problem is None:
        how = "packed, and equal single rows"
    else:
        how = f"one at a time: {problem}"
    print(f"rows of this `{family}` model are computed {how}", file=sys.stderr, flush=True)


def computed_in(device: torch.device) -> torch.dtype:
    if device.type == "cuda":
        return torch.bfloat16
    return torch.float32


def empty_policy(
    shape: Any, config: TrainerConfig, dtype: torch.dtype, base: Mapping[str, Any] | None = None
) -> tuple[Any, Adapter | None]:
    """Returns the model on the meta device. What is trained is float32; what is frozen is of `dtype`, as
    computed in.
    """
    if config.lora_rank <= 0:
        return empty_model(shape), None
    causal_lm = empty_model(shape, dtype)
    return causal_lm, attach_adapter(causal_lm, config, base)


def kernel_of(shape: Any, config: TrainerConfig, mesh: Mesh, dtype: torch.dtype) -> Kernel | None:
    """Returns the attention that `trainer.attention` names, checked for this rank's heads; None of a family that is
    not fast.
    """
    if not is_fast(shape):
        return None
    heads, kv_heads, head_dim = head_shape(shape)
    check_heads(heads, kv_heads, mesh.sp)
    return choose_kernel(mesh, (*heads_per_rank(heads, kv_heads, mesh.sp), head_dim), dtype, config.attention)
