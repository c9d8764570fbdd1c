"""Estimates of memory and disk in GB (10^9 bytes), from the model's facts and the layout alone.

Invariants:
- bfloat16 weights in engines, or fewer bits where their arguments say so (`engine.command` has the environment's
  command: `sizes.commanded`); float32 master weights in the trainer, and Adam moments of `trainer.optimizer_state`
  (bfloat16 weights and gradients on the GPU where the optimizer is offloaded). Below an adapter the base is bfloat16,
  without gradients or moments, and is the reference as well.
- Fragmentation is left out: good for refusing what cannot fit, not for promising that the last gigabyte will do.
"""

from swe_rl.config.choices import Advantage, EngineKind, OptimizerState, RolloutMode
from swe_rl.config.schema import Config, ModelConfig
from swe_rl.plan.sizes import (
    CACHE,
    WEIGHTS,
    WEIGHTS_CONFIG,
    Argument,
    arguments,
    replica_ranks,
    replicas,
    serves_adapter,
    settings_of,
    trajectories_at_once,
    trajectories_per_mini_batch,
    uses_no_gpu,
)

ENGINE_BYTES = 2  # bfloat16
CPU_BYTES = 4  # float32
GRADIENT_BYTES = 4  # float32, of master weights
MOMENT_BYTES = {  # of both Adam moments; 8 bits have a float32 scale for 256 values
    OptimizerState.float32: 8.0,
    OptimizerState.bfloat16: 4.0,
    OptimizerState.int8: 2.0 + 8.0 / 256,
}
LOGIT_CHUNK_TOKENS = 1024  # rows of logits that exist at once, in float32, with their gradient
CUDA_GB = 2.0  # context, NCCL buffers, kernels' workspace
CONTEXT_GB = 0.8  # what a trainer's rank that rests keeps beside its tensors
SLEEPING_ENGINE_GB = 1.0  # what a colocated engine keeps while the trainer works


def moment_bytes(config: Config) -> float:
    """Of both of AdamW's moments, a parameter."""
    return MOMENT_BYTES[config.trainer.optimizer_state]


def weights_gb(model: ModelConfig, bytes_per_parameter: float = ENGINE_BYTES) -> float:
    return model.params_b * bytes_per_parameter


def kv_bytes_per_token(model: ModelConfig, bytes_per_value: float = ENGINE_BYTES) -> int:
    """Keys and values of all layers for one token."""
    return int(2 * model.num_layers * model.num_kv_heads * model.head_dim * bytes_per_value)


def kv_gb(model: ModelConfig, tokens: int, bytes_per_value: float = ENGINE_BYTES) -> float:
    return kv_bytes_per_token(model, bytes_per_value) * tokens / 1e9


def bytes_per_weight(config: Config) -> float:
    """Embeddings and scales, which keep more, are left out. Other layers than experts may have a method of their own:
    `experts_int8` leaves them as they are, and a configuration says it of both.
    """
    given = arguments(config, {})
    method = given[WEIGHTS].value if WEIGHTS in given else ""
    said = {part: str(name) for part, name in settings_of(given, WEIGHTS_CONFIG).items()}
    experts = _bytes_of(said.get("moe") or method)
    others = _bytes_of(said.get("linear") or ("" if method == "experts_int8" else method))
    return others - (others - experts) * min(1.0, experts_b(config.model) / config.model.params_b)


def bytes_per_cached_value(config: Config) -> float:
    return _bytes_of(arguments(config, {}).get(CACHE, Argument("", "")).value)


def _bytes_of(method: str) -> float:
    """By its name: fp8_per_tensor, mxfp4."""
    name = method.lower()
    return 0.5 if "fp4" in name else 1.0 if "fp8" in name or "int8" in name else ENGINE_BYTES


def engine_gb_per_gpu(config: Config) -> float:
    """Weights, one full sequence and the engine's own, on each of its GPUs."""
    one_sequence = kv_gb(config.model, config.engine.max_model_len, bytes_per_cached_value(config))
    return engine_weights_gb(config) + one_sequence / _kv_shares(config) + CUDA_GB


def engine_weights_gb(config: Config) -> float:
    """On each of an engine's GPUs."""
    return weights_gb(config.model, bytes_per_weight(config)) / max(1, config.layout.engine_tp)


def kv_tokens_per_engine(config: Config) -> int:
    """Tokens that fit beside the weights in the share of memory that is the engine's, `engine.kv_cache_tokens` at most;
    0 where there is no GPU."""
    layout, budget = config.layout, config.hardware.gpu_memory_gb * config.engine.gpu_memory_utilization
    if uses_no_gpu(layout) or config.engine.kind != EngineKind.vllm:
        return 0
    free_gb_per_gpu = budget - CUDA_GB - engine_weights_gb(config)
    token_bytes = max(1, kv_bytes_per_token(config.model, bytes_per_cached_value(config)))
    fits = max(0, int(free_gb_per_gpu * 1e9 * _kv_shares(config) / token_bytes))
    return min(fits, config.engine.kv_cache_tokens) if config.engine.kv_cache_tokens > 0 else fits


def crowding(config: Config) -> float:
    """Tokens of the trajectories under way over the tokens that the engines can hold; 0 where nothing is known."""
    capacity = kv_tokens_per_engine(config) * config.layout.engines
    return trajectories_at_once(config) * config.rollout.typical_trajectory_tokens / capacity if capacity else 0.0


def _kv_shares(config: Config) -> int:
    """Key-value heads are shared out over the engine's GPUs; past their number they are repeated."""
    return max(1, min(config.layout.engine_tp, config.model.num_kv_heads))


def lora_params_b(config: Config) -> float:
    """Billions of adapter parameters: a pair of rank r on each linear map of a layer; of a mixture on attention's."""
    model, rank = config.model, config.trainer.lora_rank
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = 2 * (model.hidden_size + queries) + 2 * (model.hidden_size + keys)
    mlp = 0 if model.num_experts else 3 * (model.hidden_size + model.intermediate_size)
    return rank * model.num_layers * (attention + mlp) / 1e9


def update_gb(config: Config) -> float:
    """What engines are sent after each update: the model, or an adapter alone, which goes in float32."""
    if serves_adapter(config):
        return lora_params_b(config) * CPU_BYTES
    return weights_gb(config.model, CPU_BYTES if uses_no_gpu(config.layout) else ENGINE_BYTES)


def trainer_gb(config: Config) -> float:
    """States of the ranks of a replica together: weights, gradients, Adam moments, all of them twice with a critic; a
    reference model on top if KL needs it, and a teacher.

    With an offloaded optimizer these rest in the host's memory, too.
    """
    model = config.model
    full = CPU_BYTES + CPU_BYTES + moment_bytes(config)
    if config.trainer.lora_rank > 0:
        states = weights_gb(model) + lora_params_b(config) * full
    elif config.trainer.offload_optimizer:
        states = model.params_b * (ENGINE_BYTES + ENGINE_BYTES)
    else:
        states = model.params_b * full
    copies = 2 if config.algo.advantage is Advantage.gae else 1  # of the policy: itself, and a critic
    return states * copies if config.trainer.offload_optimizer else states * copies + _frozen_gb(config)


def _frozen_gb(config: Config) -> float:
    """A reference and a teacher, in the type that is computed in; an adapter's base is its own reference."""
    algo = config.algo
    reference_b = config.model.params_b if algo.kl_coef > 0 and config.trainer.lora_rank == 0 else 0.0
    teacher_b = algo.teacher_params_b or config.model.params_b if algo.advantage is Advantage.teacher else 0.0
    return (reference_b + teacher_b) * ENGINE_BYTES


def offloaded_gb(config: Config) -> float:
    """Master weights, their gradients and moments in the nodes' memory, and the reference's weights, of all replicas.

    16 bytes a parameter with float32 moments: 14 billion on one GPU need 236 GB, and the kernel ended that rank on a
    host of 264 GB, where the engine and the files of the model took the rest.
    """
    if not config.trainer.offload_optimizer or config.trainer.lora_rank > 0:
        return 0.0
    copies = 2 if config.algo.advantage is Advantage.gae else 1
    bytes_per_parameter = CPU_BYTES + GRADIENT_BYTES + moment_bytes(config)
    states_gb = copies * config.model.params_b * bytes_per_parameter + _frozen_gb(config)
    return states_gb * replicas(config.layout)


def states_gb_per_gpu(config: Config) -> float:
    """FSDP shards over the ranks of a replica, sequence-parallel groups included; with offloading what stays."""
    return trainer_gb(config) / replica_ranks(config.layout)


def tokens_per_gpu(config: Config) -> int:
    """Tokens of one forward and backward pass on one GPU: the micro-batch's limit, or less where a step has less."""
    step = trajectories_per_mini_batch(config) * config.rollout.max_trajectory_tokens
    return min(config.trainer.max_tokens_per_micro_batch, -(-step // max(1, config.layout.sequence_parallel)))


def activations_gb(config: Config) -> float:
    """Of one micro-batch on one GPU, in bfloat16: with checkpointing one hidden state a layer and one layer whole, else
    all layers whole; and a chunk of float32 logits with its gradient. A mixture has each token once for each of its
    experts: as they get it, as they give it, put in order, and a gradient; between ranks that share the experts twice
    as often, as what is sent is not what arrives.
    """
    model, tokens = config.model, tokens_per_gpu(config)
    intermediate = model.expert_intermediate_size * model.active_experts or model.intermediate_size
    times = 8 if config.layout.expert_parallel > 1 else 4
    copies = times * model.active_experts * model.hidden_size
    layer = tokens * (10 * model.hidden_size + copies + 4 * intermediate) * 2
    layers = model.num_layers * tokens * model.hidden_size * 2 + layer
    if not config.trainer.activation_checkpointing:
        layers = model.num_layers * layer
    logits = min(tokens, LOGIT_CHUNK_TOKENS) * model.vocab_size * CPU_BYTES * 2
    return (layers + logits) / 1e9


def gathered_gb(config: Config) -> float:
    """Two layers whole, in bfloat16: the one at work and the next, which FSDP fetches meanwhile. Of experts that ranks
    share, a rank fetches its own."""
    model = config.model
    if config.layout.trainer_gpus < 2:
        return 0.0
    elsewhere_b = experts_b(model) * (1 - 1 / max(1, config.layout.expert_parallel))
    return 2 * ENGINE_BYTES * (model.params_b - elsewhere_b) / max(1, model.num_layers)


def experts_b(model: ModelConfig) -> float:
    """Billions of parameters of all layers' experts; 0 of a dense model."""
    return 3 * model.num_layers * model.num_experts * model.hidden_size * model.expert_intermediate_size / 1e9


def trainer_gb_per_gpu(config: Config) -> float:
    """The peak of an optimizer step on one GPU."""
    return states_gb_per_gpu(config) + activations_gb(config) + gathered_gb(config) + CUDA_GB


def colocated_gb_per_gpu(config: Config) -> float:
    """The larger peak of both turns: engines awake beside a resting trainer, or the trainer beside sleeping engines."""
    engine = config.hardware.gpu_memory_gb * config.engine.gpu_memory_utilization
    return max(engine + resting_gb_per_gpu(config), trainer_gb_per_gpu(config) + SLEEPING_ENGINE_GB)


def resting_gb_per_gpu(config: Config) -> float:
    """Of the trainer, on one GPU, while engines have their turn there."""
    return states_gb_per_gpu(config) + CONTEXT_GB


def checkpoint_gb(config: Config) -> float:
    """Float32 weights, and Adam moments as they are kept, a critic's too; with LoRA those of the adapter."""
    params = lora_params_b(config) if config.trainer.lora_rank > 0 else config.model.params_b
    return params * (CPU_BYTES + moment_bytes(config)) * (2 if config.algo.advantage is Advantage.gae else 1)


def checkpoints(config: Config) -> int:
    """On disk at once: one more than are kept, as the next is complete before the oldest goes; at most all that the run
    writes by its plan."""
    trainer = config.trainer
    written = -(-trainer.steps // (trainer.checkpoint_every_steps or max(1, trainer.steps)))
    if config.rollout.mode is RolloutMode.stream and trainer.eval_every_steps:  # whose weights outlast a kill
        written += trainer.steps // trainer.eval_every_steps
    return min(trainer.keep_checkpoints + 1, max(1, written))


def checkpoints_gb(config: Config) -> float:
    return checkpoint_gb(config) * checkpoints(config)
