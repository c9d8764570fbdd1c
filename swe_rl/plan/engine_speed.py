"""This module estimates how long one step of an engine takes: a roofline over the model's and the hardware's facts.

Invariants:
- Times are linear in the tokens that attention reads, so that many steps of pure decoding have a closed form.
- The shares of the published peaks come from measurements and are the same for every router.
"""

from dataclasses import dataclass

from swe_rl.config.schema import HardwareConfig, LayoutConfig, ModelConfig
from swe_rl.errors import UserError
from swe_rl.facts.memory import CPU_BYTES, ENGINE_BYTES, kv_bytes_per_token
from swe_rl.facts.sizes import uses_no_gpu

# These are one core of a common server in float32, and what Python and torch cost a step there; the engine is in the
# process.
_CPU_TFLOPS = 0.03
_CPU_GB_PER_S = 8.0
_CPU_OVERHEAD_S = 0.006


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Has the shares of the published peaks that engines reach, and what steps and calls cost beside.

    Sources of the defaults: Qwen3-14B in bfloat16 on four H200, vLLM, 160 programs of the load `agent_load`, 120,000
    tokens of keys and values an engine. `linear`, `weights`, `kv` and `overhead_s` were fitted together to one arm,
    `router=default`; the arms `tr` and `cap` there and all arms on two H200 follow within 3 %. `call_s` was read off:
    what agents waited without what the engines and the router account for, 0.075 to 0.13 s a call. Not fitted:
    `attention`, and `experts`, which is that of FP8_EXPERTS.
    """

    # Is a share of the peak, in the linear layers of a prefill.
    linear: float = 0.67
    # Is a share of the peak, in the layers of experts.
    experts: float = 0.1
    # Is a share of the peak, in a prefill's attention.
    attention: float = 0.6
    # Is a share of the memory's bandwidth, while weights are read.
    weights: float = 0.86
    # Is a share of the memory's bandwidth, while keys and values are read.
    kv: float = 0.88
    # Is lost in each step.
    overhead_s: float = 0.0011
    # Is lost in each call: HTTP, chat template, tokens of the text and text of the tokens.
    call_s: float = 0.1


# Keys and values come from the host's memory at this speed, over PCIe 5.0 with 16 lanes. It was measured on H200 with
# vLLM's native tier. Older buses have half of it.
COPY_GB_PER_S = 50.0

# These were measured with Qwen3-Coder-30B-A3B on two H100, weights, keys and values in FP8: inter-token times of 10,
# 15, 20, 29 and 38 ms at 4, 8, 12, 16 and 24 sessions of 95k to 70k tokens, and 22-23k prefilled tokens a second. Keys
# and values of one byte take nearly as long to read as those of two. The tests hold the errors.
FP8_EXPERTS = Efficiency(linear=0.8, weights=0.8, kv=0.45, overhead_s=0.003)


class SpeedError(UserError):
    """The hardware's speed is not known."""


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Has the costs of an engine's step, in seconds. `pair_s` is the time of one query and one key, and `expert_share`
    the share of the experts that one token passes. `call_s` passes between an agent and the engine, whatever the engine
    does. `copy_s` brings one token's keys and values from the host's memory, beside what the engine computes."""

    overhead_s: float
    # Reads the weights that every token passes.
    dense_read_s: float
    # Reads all other weights.
    experts_read_s: float
    expert_share: float
    # Computes the linear layers of one token.
    token_s: float
    # Reads one token of context of one decoding sequence.
    kv_read_s: float
    pair_s: float
    call_s: float = 0.0
    copy_s: float = 0.0

    def step_s(self, decodes: int, context_tokens: int, prefill_tokens: int = 0, prefill_pairs: int = 0) -> float:
        """Returns the seconds of one step. `context_tokens` is the sum over the decoding sequences. Weights are read
        once for all tokens of the step."""
        tokens = decodes + prefill_tokens
        linear_s = max(self.weights_read_s(tokens), self.token_s * tokens)
        return self.overhead_s + linear_s + self.kv_read_s * context_tokens + self.pair_s * prefill_pairs

    def weights_read_s(self, tokens: int) -> float:
        """Returns the seconds of reading the weights. Of the experts it counts those that at least one of the tokens is
        routed to, as if they were chosen at random."""
        if not self.experts_read_s:
            return self.dense_read_s
        return self.dense_read_s + self.experts_read_s * (1.0 - (1.0 - self.expert_share) ** tokens)


def engine_speed(
    model: ModelConfig,
    tflops: float,
    gb_per_s: float,
    efficiency: Efficiency = Efficiency(),
    *,
    bytes_per_value: float = ENGINE_BYTES,
    copy_gb_per_s: float = COPY_GB_PER_S,
) -> EngineSpeed:
    """Returns the speed of an engine whose GPUs have this peak and bandwidth together, and this bus to the host.

    A token costs two floating-point operations per active parameter; a pair four per attention channel and layer.
    """
    operations_per_s = tflops * 1e12
    bytes_per_s = gb_per_s * 1e9
    dense, experts = _dense_and_experts(model)
    share = 0.0
    if experts:
        share = model.active_experts / model.num_experts
    linear_s = dense / efficiency.linear + share * experts / efficiency.experts
    kv_bytes = kv_bytes_per_token(model) / ENGINE_BYTES * bytes_per_value
    return EngineSpeed(
        overhead_s=efficiency.overhead_s,
        dense_read_s=dense * bytes_per_value / (bytes_per_s * efficiency.weights),
        experts_read_s=experts * bytes_per_value / (bytes_per_s * efficiency.weights),
        expert_share=share,
        token_s=2 * linear_s / operations_per_s,
        kv_read_s=kv_bytes / (bytes_per_s * efficiency.kv),
        pair_s=4 * model.num_layers * model.num_heads * model.head_dim / (operations_per_s * efficiency.attention),
        call_s=efficiency.call_s,
        copy_s=kv_bytes / (copy_gb_per_s * 1e9),
    )


def speed_of(model: ModelConfig, hardware: HardwareConfig, layout: LayoutConfig) -> EngineSpeed:
    """Returns the speed of one engine of the layout. Raises SpeedError for GPUs of unknown speed."""
    if uses_no_gpu(layout):
        efficiency = Efficiency(overhead_s=_CPU_OVERHEAD_S, call_s=0.0)
        return engine_speed(model, _CPU_TFLOPS, _CPU_GB_PER_S, efficiency, bytes_per_value=CPU_BYTES)
    if hardware.gpu_bf16_tflops <= 0 or hardware.gpu_bandwidth_gb_per_s <= 0:
        raise SpeedError(
            f"hardware={hardware.name} does not say how fast its GPUs are: set hardware.gpu_bf16_tflops and "
            "hardware.gpu_bandwidth_gb_per_s to the published figures, e.g. 989 and 3350 for an H100"
        )
    # A rule names a width that is wrong.
    width = max(1, layout.engine_tp)
    return engine_speed(
        model,
        hardware.gpu_bf16_tflops * width,
        hardware.gpu_bandwidth_gb_per_s * width,
        copy_gb_per_s=COPY_GB_PER_S * width,
    )


def _dense_and_experts(model: ModelConfig) -> tuple[float, float]:
    """Returns the parameters that every token passes, and those of all experts, from the model's total and active
    counts."""
    total = model.params_b * 1e9
    active = model.active_params_b * 1e9
    spare = model.num_experts - model.active_experts
    if spare <= 0 or total <= active:
        return total, 0.0
    expert = (total - active) / spare
    return active - model.active_experts * expert, model.num_experts * expert
