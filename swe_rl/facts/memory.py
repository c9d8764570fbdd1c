"""This module estimates memory and disk in GB (10^9 bytes), from the model's facts and the layout alone.

Invariants:
- Engines have bfloat16 weights, or fewer bits if their arguments say so (`engine.command` has the environment's
  command: `sizes.commanded`). The trainer has float32 master weights, and Adam moments of `trainer.optimizer_state`
  (bfloat16 weights and gradients on the GPU if the optimizer is offloaded). Below an adapter the base is bfloat16,
  without gradients or moments, and is the reference as well.
- Fragmentation is left out: good for refusing what cannot fit, not for promising that the last gigabyte will do.
"""

from swe_rl.config.choices import AdvantageKind, EngineKind, OptimizerState, RolloutMode
from swe_rl.config.schema import Config, ModelConfig
from swe_rl.facts.server_arguments import CACHE, WEIGHTS, WEIGHTS_CONFIG, Argument, server_arguments, settings_of
from swe_rl.facts.sizes import num_replicas, replica_ranks, serves_adapter, trajectories_per_mini_batch, uses_no_gpu

# Engines compute in bfloat16.
ENGINE_BYTES = 2
# A CPU computes in float32, and so do master weights.
CPU_BYTES = 4
# Master weights have gradients in float32.
GRADIENT_BYTES = 4
# Counts both Adam moments. Moments of 8 bits have a float32 scale for 256 values.
MOMENT_BYTES = {
    OptimizerState.float32: 8.0,
    OptimizerState.bfloat16: 4.0,
    OptimizerState.int8: 2.0 + 8.0 / 256,
}
# So many rows of logits exist at once, in float32, with their gradient.
LOGIT_CHUNK_TOKENS = 1024
# A process on a GPU needs this for its context, NCCL's buffers and its kernels' workspace.
CUDA_GB = 2.0
# A trainer's rank that rests keeps this beside its tensors.
CONTEXT_GB = 0.8
# Engines, sandboxes and files take the rest of a node's memory: 236 GB of 270 were too much.
MOST_OF_A_HOST = 0.85
# A colocated engine keeps this while the trainer works.
SLEEPING_ENGINE_GB = 1.0


def moment_bytes(config: Config) -> float:
    """Returns the bytes a parameter of both of AdamW's moments."""
    return MOMENT_BYTES[config.trainer.optimizer_state]


def weights_gb(model: ModelConfig, bytes_per_parameter: float = ENGINE_BYTES) -> float:
    return model.params_b * bytes_per_parameter


def kv_bytes_per_token(model: ModelConfig, bytes_per_value: float = ENGINE_BYTES) -> int:
    """Returns the bytes of keys and values of all layers for one token."""
    return int(2 * model.num_layers * model.num_kv_heads * model.head_dim * bytes_per_value)


def cached_token_bytes(config: Config) -> int:
    """Returns the bytes of one token's keys and values, as engines keep them."""
    return max(1, kv_bytes_per_token(config.model, bytes_per_cached_value(config)))


def kv_gb(model: ModelConfig, tokens: int, bytes_per_value: float = ENGINE_BYTES) -> float:
    return kv_bytes_per_token(model, bytes_per_value) * tokens / 1e9


def bytes_per_weight(config: Config) -> float:
    """Returns the bytes a weight in engines. Embeddings and scales, which keep more, are left out. Other layers than
    experts may have a method of their own: `experts_int8` leaves them as they are, and a configuration says it of
    both."""
    given = server_arguments(config, {})
    method = ""
    if WEIGHTS in given:
        method = given[WEIGHTS].value
    said = {part: str(name) for part, name in settings_of(given, WEIGHTS_CONFIG).items()}
    experts = _bytes_of(said.get("moe") or method)
    others = _bytes_of(said.get("linear") or ("" if method == "experts_int8" else method))
    return others - (others - experts) * min(1.0, experts_b(config.model) / config.model.params_b)


def bytes_per_cached_value(config: Config) -> float:
    return _bytes_of(server_arguments(config, {}).get(CACHE, Argument("", "")).value)


def _bytes_of(method: str) -> float:
    """Returns the bytes a value by the method's name: fp8_per_tensor, mxfp4."""
    name = method.lower()
    if "fp4" in name:
        return 0.5
    if "fp8" in name or "int8" in name:
        return 1.0
    return ENGINE_BYTES


def engine_gb_per_gpu(config: Config) -> float:
    """Returns what each of an engine's GPUs needs: weights, one full sequence and the engine's own."""
    one_sequence = kv_gb(config.model, config.engine.max_model_len, bytes_per_cached_value(config))
    return engine_weights_gb(config) + one_sequence / _kv_shares(config) + CUDA_GB


def engine_weights_gb(config: Config) -> float:
    """Returns the weights on each of an engine's GPUs."""
    return weights_gb(config.model, bytes_per_weight(config)) / max(1, config.layout.engine_tp)


def kv_tokens_per_engine(config: Config) -> int:
    """Returns how many tokens fit beside the weights in the share of memory that is the engine's,
    `engine.kv_cache_tokens` at most; 0 if there is no GPU."""
    if uses_no_gpu(config.layout) or config.engine.kind != EngineKind.vllm:
        return 0
    engine_gb = config.hardware.gpu_memory_gb * config.engine.gpu_memory_utilization
    free_gb_per_gpu = engine_gb - CUDA_GB - engine_weights_gb(config)
    fits = max(0, int(free_gb_per_gpu * 1e9 * _kv_shares(config) / cached_token_bytes(config)))
    if config.engine.kv_cache_tokens > 0:
        return min(fits, config.engine.kv_cache_tokens)
    return fits


def _kv_shares(config: Config) -> int:
    """Returns over how many of the engine's GPUs key-value heads are shared out; past the heads' number they are
    repeated."""
    return max(1, min(config.layout.engine_tp, config.model.num_kv_heads))


def lora_params_b(config: Config) -> float:
    """Returns billions of adapter parameters: a pair of rank r on each linear map of a layer, and in a mixture on
    attention's alone."""
    model = config.model
    queries = model.num_heads * model.head_dim
    keys = model.num_kv_heads * model.head_dim
    attention = 2 * (model.hidden_size + queries) + 2 * (model.hidden_size + keys)
    if model.num_experts:
        mlp = 0
    else:
        mlp = 3 * (model.hidden_size + model.intermediate_size)
    return config.trainer.lora_rank * model.num_layers * (attention + mlp) / 1e9


def update_gb(config: Config) -> float:
    """Returns what engines are sent after each update: the model, or an adapter alone, which goes in float32."""
    if serves_adapter(config):
        return lora_params_b(config) * CPU_BYTES
    return weights_gb(config.model, CPU_BYTES if uses_no_gpu(config.layout) else ENGINE_BYTES)


def trainer_gb(config: Config) -> float:
    """Returns the states of the ranks of a replica together: weights, gradients, Adam moments, all of them twice with a
    critic; a reference model on top if KL needs it, and a teacher.

    With LoRA only the adapter has gradients and moments. With an offloaded optimizer the reference and the teacher
    rest in the host's memory, too.
    """
    model = config.model
    full = CPU_BYTES + GRADIENT_BYTES + moment_bytes(config)
    if config.trainer.lora_rank > 0:
        states = weights_gb(model, _frozen_bytes(config)) + lora_params_b(config) * full
    elif config.trainer.offload_optimizer:
        states = model.params_b * (ENGINE_BYTES + ENGINE_BYTES)
    else:
        states = model.params_b * full
    # A critic is a second copy of the policy.
    copies = 1
    if config.algo.advantage is AdvantageKind.gae:
        copies = 2
    if config.trainer.offload_optimizer:
        return states * copies
    return states * copies + _frozen_gb(config)


def _frozen_gb(config: Config) -> float:
    """Returns a reference and a teacher, in the type that is computed in; an adapter's base is its own reference."""
    algo = config.algo
    reference_b = 0.0
    if algo.kl_coef > 0 and config.trainer.lora_rank == 0:
        reference_b = config.model.params_b
    teacher_b = 0.0
    if algo.advantage is AdvantageKind.teacher:
        teacher_b = algo.teacher_params_b or config.model.params_b
    return (reference_b + teacher_b) * _frozen_bytes(config)


def _frozen_bytes(config: Config) -> int:
    """Returns the bytes of a weight that is not trained: those of the type that is computed in."""
    if uses_no_gpu(config.layout):
        return CPU_BYTES
    return ENGINE_BYTES


def offloaded_gb(config: Config) -> float:
    """Returns master weights, their gradients and moments in the nodes' memory, and the weights of a reference and of a
    teacher, of all replicas. With LoRA the base and the adapter's states stay on the GPU.

    With float32 moments it is 16 bytes a parameter: 14 billion on one GPU need 236 GB, and the kernel ended that rank
    on a host of 264 GB, where the engine and the files of the model took the rest.
    """
    if not config.trainer.offload_optimizer:
        return 0.0
    copies = 1
    if config.algo.advantage is AdvantageKind.gae:
        copies = 2
    if config.trainer.lora_rank > 0:
        copies = 0
    bytes_per_parameter = CPU_BYTES + GRADIENT_BYTES + moment_bytes(config)
    return (copies * config.model.params_b * bytes_per_parameter + _frozen_gb(config)) * num_replicas(config.layout)


def states_gb_per_gpu(config: Config) -> float:
    """Returns one GPU's share: FSDP shards over the ranks of a replica, sequence-parallel groups included; with
    offloading what stays."""
    return trainer_gb(config) / replica_ranks(config.layout)


def tokens_per_gpu(config: Config) -> int:
    """Returns the tokens of one forward and backward pass on one GPU: the micro-batch's limit, or less if a step has
    less."""
    step_tokens = trajectories_per_mini_batch(config) * config.rollout.max_trajectory_tokens
    return min(config.trainer.max_tokens_per_micro_batch, -(-step_tokens // max(1, config.layout.sequence_parallel)))


def activations_gb(config: Config) -> float:
    """Returns the activations of one micro-batch on one GPU, in bfloat16: with checkpointing one hidden state a layer
    and one layer whole, else all layers whole; and a chunk of float32 logits with its gradient.

    A mixture has each token once for each of its experts: as they get it, as they give it, put in order, and a
    gradient; between ranks that share the experts twice as often, as what is sent is not what arrives.
    """
    model = config.model
    tokens = tokens_per_gpu(config)
    intermediate = model.expert_intermediate_size * model.active_experts or model.intermediate_size
    times = 4
    if config.layout.expert_parallel > 1:
        times = 8
    copies = times * model.active_experts * model.hidden_size
    layer = tokens * (10 * model.hidden_size + copies + 4 * intermediate) * 2
    layers = model.num_layers * tokens * model.hidden_size * 2 + layer
    if not config.trainer.activation_checkpointing:
        layers = model.num_layers * layer
    logits = min(tokens, LOGIT_CHUNK_TOKENS) * model.vocab_size * CPU_BYTES * 2
    return (layers + logits) / 1e9


def gathered_gb(config: Config) -> float:
    """Returns two layers whole, in bfloat16: the one at work and the next, which FSDP fetches meanwhile. If ranks share
    experts, a rank fetches its own."""
    model = config.model
    if config.layout.trainer_gpus < 2:
        return 0.0
    elsewhere_b = experts_b(model) * (1 - 1 / max(1, config.layout.expert_parallel))
    return 2 * ENGINE_BYTES * (model.params_b - elsewhere_b) / max(1, model.num_layers)


def experts_b(model: ModelConfig) -> float:
    """Returns billions of parameters of all layers' experts; 0 for a dense model."""
    return 3 * model.num_layers * model.num_experts * model.hidden_size * model.expert_intermediate_size / 1e9


def trainer_gb_per_gpu(config: Config) -> float:
    """Returns the peak of an optimizer step on one GPU."""
    return states_gb_per_gpu(config) + activations_gb(config) + gathered_gb(config) + CUDA_GB


def colocated_gb_per_gpu(config: Config) -> float:
    """Returns the larger peak of both turns: engines awake beside a resting trainer, or the trainer beside sleeping
    engines."""
    return max(
        config.hardware.gpu_memory_gb * config.engine.gpu_memory_utilization + resting_gb_per_gpu(config),
        trainer_gb_per_gpu(config) + SLEEPING_ENGINE_GB,
    )


def resting_gb_per_gpu(config: Config) -> float:
    """Returns what the trainer keeps on one GPU while engines have their turn there."""
    return states_gb_per_gpu(config) + CONTEXT_GB


def checkpoint_gb(config: Config) -> float:
    """Returns the size of a checkpoint: float32 weights, and Adam moments as they are kept, a critic's too; with LoRA
    those of the adapter."""
    if config.trainer.lora_rank > 0:
        params = lora_params_b(config)
    else:
        params = config.model.params_b
    return params * (CPU_BYTES + moment_bytes(config)) * (2 if config.algo.advantage is AdvantageKind.gae else 1)


def checkpoints_on_disk(config: Config) -> int:
    """Returns how many checkpoints are on disk at once: one more than are kept, as the next is complete before the
    oldest goes; at most all that the run writes by its plan."""
    trainer = config.trainer
    written = -(-trainer.steps // (trainer.checkpoint_every_steps or max(1, trainer.steps)))
    # The weights of an evaluation must outlast a kill, so it has a checkpoint.
    if config.rollout.mode is RolloutMode.stream and trainer.eval_every_steps:
        written += trainer.steps // trainer.eval_every_steps
    return min(trainer.keep_checkpoints + 1, max(1, written))


def checkpoints_gb(config: Config) -> float:
    return checkpoint_gb(config) * checkpoints_on_disk(config)
