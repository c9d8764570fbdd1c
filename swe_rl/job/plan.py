"""`job=plan`: what the run will use, before it uses it: GPUs, batches, tokens, memory, disk.

Invariants:
- Computed from the configuration alone; the same numbers are written to a run's `plan.json`.
- Estimates of memory are lower bounds and say so.
"""

import json
from pathlib import Path
from typing import Any

from swe_rl.config import memory, sizes
from swe_rl.config.compose import config_hash
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config, OutputFormat
from swe_rl.layout.placement import place


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    del folder, origins
    made = plan(config)
    if config.job.format == OutputFormat.json:
        print(json.dumps(made, indent=2))
    else:
        _print_table(made)
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
        "memory_at_least": _memory(config),
        "disk": _disk(config),
        "slots": _slots(config),
    }


def _batch(config: Config) -> dict[str, Any]:
    updates = sizes.optimizer_steps_per_step(config)
    return {
        "prompts_per_step": config.rollout.prompts_per_step,
        "trajectories_per_prompt": config.rollout.n,
        "trajectories_per_step": sizes.trajectories_per_step(config),
        "optimizer_steps_per_step": updates,
        "trajectories_per_optimizer_step": sizes.trajectories_per_mini_batch(config),
        "data_parallel_ranks": sizes.data_parallel(config.layout),
        "steps": config.trainer.steps,
        "optimizer_steps": updates * config.trainer.steps,
        "trajectories": sizes.trajectories_per_step(config) * config.trainer.steps,
    }


def _tokens(config: Config) -> dict[str, Any]:
    rollout = config.rollout
    sampled = min(rollout.max_turns * rollout.max_turn_tokens, rollout.max_trajectory_tokens)
    return {
        "max_trajectory_tokens": rollout.max_trajectory_tokens,
        "max_sampled_tokens_per_trajectory": sampled,
        "max_tokens_per_step": sizes.max_tokens_per_step(config),
        "max_tokens_of_the_run": sizes.max_tokens_per_step(config) * config.trainer.steps,
        "kv_bytes_per_token": memory.kv_bytes_per_token(config.model, _engine_bytes(config)),
    }


def _memory(config: Config) -> dict[str, Any]:
    """GB of GPU memory, or of this process's where no GPU is used."""
    if sizes.uses_no_gpu(config.layout):
        kv_tokens = config.engine.max_num_seqs * config.engine.max_model_len
        return {
            "weights_gb": _round(memory.weights_gb(config.model, memory.CPU_BYTES)),
            "trainer_gb": _round(memory.trainer_gb(config)),
            "kv_cache_gb": _round(memory.kv_gb(config.model, kv_tokens, memory.CPU_BYTES)),
        }
    full = memory.kv_tokens_per_engine(config)
    return {
        "weights_gb_per_engine_gpu": _round(memory.weights_gb(config.model) / config.layout.engine_tp),
        "kv_tokens_per_engine": full,
        "full_trajectories_per_engine": full // max(1, config.rollout.max_trajectory_tokens),
        "trainer_gb_per_gpu": _round(memory.trainer_gb_per_gpu(config)),
        "gpu_memory_gb": config.hardware.gpu_memory_gb,
    }


def _disk(config: Config) -> dict[str, Any]:
    one = memory.checkpoint_gb(config)
    kept = config.trainer.keep_checkpoints
    return {
        "checkpoint_gb": _round(one),
        "checkpoints_kept": kept,
        "checkpoints_gb_at_most": _round(one * (kept + 1)),  # the next is written before the oldest goes
    }


def _slots(config: Config) -> dict[str, Any]:
    slots, trajectories = config.sandbox.concurrency, sizes.trajectories_per_step(config)
    return {
        "trajectories_at_once": config.rollout.concurrency,
        "sandboxes_at_once": slots,
        "sandbox_cpus": slots * config.sandbox.cpus,
        "sandbox_memory_gb": slots * config.sandbox.memory_gb,
        "waves_of_trajectories_per_step": -(-trajectories // max(1, min(slots, config.rollout.concurrency))),
    }


def _engine_bytes(config: Config) -> int:
    return memory.CPU_BYTES if sizes.uses_no_gpu(config.layout) else memory.ENGINE_BYTES


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def _print_table(made: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for section, rows in made.items():
        if not isinstance(rows, dict):
            continue
        table.add_row(f"[bold]{section}[/]", "")
        for key, value in (rows or {"no GPU": "everything in this process"}).items():
            text = f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value)
            table.add_row(f"  {key}", text)
    Console(highlight=False).print(table)
