"""Estimates of memory and disk in GB (10^9 bytes), from the model's facts alone.

Invariants:
- Estimates leave activations and fragmentation out: they are lower bounds, good for refusing, not for promising.
- bfloat16 weights in engines; float32 master weights and Adam moments in the trainer.
"""

from swe_rl.config.schema import Config, ModelConfig
from swe_rl.config.sizes import uses_no_gpu

ENGINE_BYTES = 2  # bfloat16
CPU_BYTES = 4  # float32
OPTIMIZER_BYTES = 8  # two float32 Adam moments
CHECKPOINT_BYTES = CPU_BYTES + OPTIMIZER_BYTES


def weights_gb(model: ModelConfig, bytes_per_parameter: int = ENGINE_BYTES) -> float:
    return model.params_b * bytes_per_parameter


def kv_bytes_per_token(model: ModelConfig, bytes_per_value: int = ENGINE_BYTES) -> int:
    """Keys and values of all layers for one token."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * bytes_per_value


def kv_gb(model: ModelConfig, tokens: int, bytes_per_value: int = ENGINE_BYTES) -> float:
    return kv_bytes_per_token(model, bytes_per_value) * tokens / 1e9


def engine_gb_per_gpu(config: Config) -> float:
    """Weights and one full sequence, split over the GPUs of one engine."""
    one = weights_gb(config.model) + kv_gb(config.model, config.engine.max_model_len)
    return one / max(1, config.layout.engine_tp)


def kv_tokens_per_engine(config: Config) -> int:
    """Tokens that fit beside the weights in the share of memory that is the engine's; 0 where there is no GPU."""
    layout, budget = config.layout, config.hardware.gpu_memory_gb * config.engine.gpu_memory_utilization
    if uses_no_gpu(layout):
        return 0
    free_gb = budget * layout.engine_tp - weights_gb(config.model)
    return max(0, int(free_gb * 1e9 / kv_bytes_per_token(config.model)))


def trainer_gb(config: Config) -> float:
    """Weights, gradients and Adam moments, all float32, of the model; a reference model on top if KL needs it."""
    reference = weights_gb(config.model) if config.algo.kl_coef > 0 else 0.0
    return config.model.params_b * (CPU_BYTES + CPU_BYTES + OPTIMIZER_BYTES) + reference


def trainer_gb_per_gpu(config: Config) -> float:
    """FSDP shards over all trainer GPUs, sequence-parallel groups included."""
    return trainer_gb(config) / max(1, config.layout.trainer_gpus)


def checkpoint_gb(config: Config) -> float:
    """Float32 weights and Adam moments."""
    return config.model.params_b * CHECKPOINT_BYTES
