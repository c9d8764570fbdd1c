"""`job=plan`: what the run will use, before it uses it: GPUs, batches, tokens, memory, disk, sandboxes, time.

Invariants:
- Computed from the configuration alone; the same numbers are written to a run's `plan.json`.
- An estimate says what it assumes; environment variables are shown with their origin, secrets masked.
"""

import json
from pathlib import Path
from typing import Any

from swe_rl.config import duration, memory, sizes
from swe_rl.config.choices import EngineKind, OutputFormat
from swe_rl.config.compose import config_hash
from swe_rl.config.environment import shown
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.layout.placement import place


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    del folder
    made = plan(config) | {"environment": shown()}
    if config.job.format == OutputFormat.json:
        print(json.dumps(made, indent=2))
    else:
        from swe_rl.job.plan_table import print_plan

        print_plan(made, config, origins)
    return 0


def plan(config: Config) -> dict[str, Any]:
    """Sections of flat tables; every key names its unit."""
    return {
        "config_hash": config_hash(config),
        "gpus": {
            f"node {gpu.node} gpu {gpu.index}": ", ".join(roles) or "idle"
            for gpu, roles in place(config).roles().items()
        },
        "batch": _batch(config),
        "tokens": _tokens(config),
        "memory": _memory(config),
        "cache": _cache(config),
        "disk": _disk(config),
        "slots": _slots(config),
        "time": _time(config),
    }


def _batch(config: Config) -> dict[str, Any]:
    updates = sizes.optimizer_steps_per_step(config)
    return {
        "prompts_per_step": config.rollout.prompts_per_step,
        "trajectories_per_prompt": config.rollout.n,
        "trajectories_per_step": sizes.trajectories_per_step(config),
        "rows_per_step_at_least": sizes.trajectories_per_step(config),  # one each, more where a history was rewritten
        "optimizer_steps_per_step": updates,
        "trajectories_per_optimizer_step": sizes.trajectories_per_mini_batch(config),
        "data_parallel_ranks": sizes.data_parallel(config.layout),
        "tokens_per_micro_batch_and_gpu": memory.tokens_per_gpu(config),
        "steps": config.trainer.steps,
        "optimizer_steps": updates * config.trainer.steps,
        "trajectories": sizes.trajectories_per_step(config) * config.trainer.steps,
    }


def _tokens(config: Config) -> dict[str, Any]:
    rollout = config.rollout
    sampled = min(rollout.max_turns * rollout.max_turn_tokens, rollout.max_trajectory_tokens)
    return {
        "max_prompt_tokens": rollout.max_prompt_tokens,
        "max_trajectory_tokens": rollout.max_trajectory_tokens,
        "engine_max_model_len": config.engine.max_model_len,
        "model_positions": config.model.max_position_embeddings,
        "max_sampled_tokens_per_trajectory": sampled,
        "max_tokens_per_step": sizes.max_tokens_per_step(config),
        "max_tokens_of_the_run": sizes.max_tokens_per_step(config) * config.trainer.steps,
    }


def _memory(config: Config) -> dict[str, Any]:
    """GB of GPU memory, or of this process's where no GPU is used."""
    if sizes.uses_no_gpu(config.layout):
        kv_tokens = config.engine.max_num_seqs * config.engine.max_model_len
        return {
            "weights_gb": _round(memory.weights_gb(config.model, memory.CPU_BYTES)),
            "trainer_states_gb": _round(memory.trainer_gb(config)),
            "activations_gb": _round(memory.activations_gb(config)),
            "kv_cache_gb_at_most": _round(memory.kv_gb(config.model, kv_tokens, memory.CPU_BYTES)),
        }
    parts: dict[str, Any] = {"gpu_memory_gb": config.hardware.gpu_memory_gb}
    if config.engine.kind == EngineKind.vllm:
        parts |= {
            "engine_share_gb": _round(config.hardware.gpu_memory_gb * config.engine.gpu_memory_utilization),
            "engine_weights_gb": _round(memory.weights_gb(config.model) / config.layout.engine_tp),
        }
    if config.layout.trainer_gpus:
        parts |= {
            "trainer_states_gb": _round(memory.states_gb_per_gpu(config)),
            "trainer_activations_gb": _round(memory.activations_gb(config)),
            "trainer_gathered_layers_gb": _round(memory.gathered_gb(config)),
            "trainer_peak_gb": _round(memory.trainer_gb_per_gpu(config)),
        }
    if config.layout.colocated and config.engine.kind == EngineKind.vllm:
        parts["peak_of_both_turns_gb"] = _round(memory.colocated_gb_per_gpu(config))
    if offloaded := memory.offloaded_gb(config):
        parts["offloaded_gb_of_all_nodes"] = _round(offloaded)
    return parts


def _cache(config: Config) -> dict[str, Any]:
    """Keys and values: what an engine can hold against what the trajectories under way hold."""
    tokens = memory.kv_tokens_per_engine(config)
    engine_bytes = memory.CPU_BYTES if sizes.uses_no_gpu(config.layout) else memory.ENGINE_BYTES
    rows: dict[str, Any] = {"kv_bytes_per_token": memory.kv_bytes_per_token(config.model, engine_bytes)}
    if tokens == 0:
        return rows
    return rows | {
        "kv_tokens_per_engine": tokens,
        "full_trajectories_per_engine": tokens // max(1, config.rollout.max_trajectory_tokens),
        "trajectories_at_once_per_engine": -(-sizes.trajectories_at_once(config) // config.layout.engines),
        "typical_trajectory_tokens": config.rollout.typical_trajectory_tokens,
        "oversubscription": round(memory.crowding(config), 2),
    }


def _disk(config: Config) -> dict[str, Any]:
    images = config.env.num_instances * config.env.image_gb if sizes.holds_container(config) else 0.0
    return {
        "checkpoint_gb": _round(memory.checkpoint_gb(config)),
        "checkpoints_kept": config.trainer.keep_checkpoints,
        "checkpoints_gb_at_most": _round(memory.checkpoints_gb(config)),  # the next is written before the oldest goes
        "images_gb_at_most": _round(images),
        "disk_gb": config.hardware.disk_gb or "unknown",
    }


def _slots(config: Config) -> dict[str, Any]:
    slots = config.sandbox.concurrency
    rows: dict[str, Any] = {
        "trajectories_at_once": sizes.trajectories_at_once(config),
        "sandboxes_at_once": slots,
        "sandbox_cpus": slots * config.sandbox.cpus,
        "sandbox_memory_gb": slots * config.sandbox.memory_gb,
        "waves_of_trajectories_per_step": sizes.waves_per_step(config),
    }
    if sizes.holds_container(config):
        rows["places_on_the_nodes"] = sizes.sandbox_slots(config)
    return rows


def _time(config: Config) -> dict[str, Any]:
    assumed = (
        f"a trajectory takes {config.rollout.typical_trajectory_s:g} s and {config.rollout.typical_trajectory_tokens} "
        f"tokens; training reaches {duration.TRAIN_UTILIZATION:.0%} of a GPU's {config.hardware.gpu_bf16_tflops:g} "
        "TFLOPS; "
        f"weights move at {duration.SYNC_GB_PER_S:g} GB/s"
    )
    return {
        "rollouts_s_per_step": _round(duration.rollout_s(config)),
        "training_s_per_step": _round(duration.train_s(config)),
        "weight_sync_s_per_step": _round(duration.sync_s(config)),
        "step": duration.text(duration.step_s(config)),
        "run": duration.text(duration.run_s(config)),
        "time_limit": duration.text(config.hardware.time_limit_min * 60),
        "assuming": assumed if not sizes.uses_no_gpu(config.layout) else "rollouts only: nothing is known of this CPU",
    }


def _round(value: float) -> float:
    return float(f"{value:.3g}")
