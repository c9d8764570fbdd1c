"""`job=plan` shows what the run will use, before it uses it: GPUs, batches, tokens, memory, disk, sandboxes, time.

Invariants:
- Computed from the configuration alone; the same numbers are written to a run's `plan.json`.
- For people: what it comes to, a picture of the GPUs, then sections side by side where the terminal is wide enough.
- An estimate says what it assumes; environment variables are shown with their origin, secrets masked.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swe_rl.check.check import check_config
from swe_rl.check.findings import forbids_start, read_text
from swe_rl.config.choices import CompactionKind, EngineKind, OutputFormat
from swe_rl.config.composition.values import config_hash
from swe_rl.config.environment import describe_variables
from swe_rl.config.parts import Part, started_parts, starts_trainer
from swe_rl.config.provenance import Origins
from swe_rl.config.ranges import replace_out_of_range
from swe_rl.config.schema import Config
from swe_rl.errors import SweRlError
from swe_rl.facts import memory, sizes
from swe_rl.facts.server_arguments import with_command
from swe_rl.facts.warm_start import trainer_config
from swe_rl.facts.weight_sync import way_of
from swe_rl.job.plan_panels import IDLE, NOT_KNOWN, describe_in_short, draw_gpus, make_headline, section_panel
from swe_rl.job.simulate import groups_of, step_rollouts
from swe_rl.layout.placement import PlacementError, place_layout
from swe_rl.plan import concurrency, duration, endpoint, host_cache
from swe_rl.plan.gateway import step_need
from swe_rl.plan.updates import knows_updates, size_of_updates
from swe_rl.router.simulation.balance import can_balance, compare_divisions, name_division

_WIDE = 110
NO_BOUND = "no bound (rollout.max_total_tokens)"
FLOW_TURNS = 3000  # of each simulated training: half a second
_SHOWN_KEYS = ("model.path", "engine.urls", "paths.outputs", "paths.sync_to")
_APART = ("gpus", "environment")


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Prints the plan, also of what the rules refuse: a section that cannot be computed says so."""
    del folder
    wrong = forbids_start(check_config(config, origins), config.job.strict)
    made = make_plan(config if wrong else replace_out_of_range(config), partly=wrong) | {
        "environment": describe_variables()
    }
    if config.job.format == OutputFormat.json:
        print(json.dumps(made, indent=2))
    else:
        _print_plan(made, config, origins)
    return 0


def make_plan(config: Config, *, partly: bool = False) -> dict[str, Any]:
    """Returns sections of flat tables; keys name their units. With `partly` what cannot be computed is left out.

    Raises PlacementError or ArithmeticError for a configuration that the rules refuse, unless `partly`.
    """
    made: dict[str, Any] = {"config_hash": config_hash(config)}
    config = with_command(config, os.environ)
    is_warm_start = Part.warm_start in started_parts(config)
    sections = _OF_A_WARM_START if is_warm_start else _SECTIONS
    about = {} if is_warm_start else _ABOUT
    left_out = tuple(key for part, keys in about.items() if part not in started_parts(config) for key in keys)
    # The time of a step alone takes a second to simulate.
    for name, section in ((name, section) for name, section in sections.items() if name not in left_out):
        try:
            made[name] = section(config)
        except Exception as error:  # a wrong value goes wrong anywhere; what is wrong with it, the rules say
            if not partly:
                raise
            made[name] = {NOT_KNOWN: str(error) if isinstance(error, PlacementError) else "see the errors"}
        if name == "time" and "rollouts_s_per_step" in made[name] and Part.router in started_parts(config):
            of_gateway = step_need(config, made[name]["rollouts_s_per_step"])
            made |= {"gateway": of_gateway.to_record()} if of_gateway else {}
    return made if is_warm_start else _of_this_job(config, made, left_out)


def _of_this_job(config: Config, made: dict[str, Any], away: tuple[str, ...]) -> dict[str, Any]:
    """Returns the plan without the keys that begin as one of `away`, and without empty sections."""
    left = {
        name: {key: value for key, value in rows.items() if not key.startswith(away)}
        if isinstance(rows, dict)
        else rows
        for name, rows in made.items()
    }
    return {name: rows for name, rows in left.items() if (rows or name == "gpus") and endpoint.knows(config, name)}


def _plan_gpus(config: Config) -> dict[str, Any]:
    roles = place_layout(config).roles()
    return {f"node {gpu.node} gpu {gpu.index}": ", ".join(parts) or IDLE for gpu, parts in roles.items()}


def _plan_batch(config: Config) -> dict[str, Any]:
    if Part.steps not in started_parts(config):
        return {"attempts_per_instance": config.rollout.eval_n}
    updates = sizes.optimizer_steps_per_step(config)
    return {
        "prompts_per_step": config.rollout.prompts_per_step,
        "trajectories_per_prompt": config.rollout.n,
        "trajectories_per_step": sizes.trajectories_per_step(config),
        "rows_per_step_at_least": sizes.trajectories_per_step(config),  # one each, more with segments
        "optimizer_steps_per_step": updates,
        "trajectories_per_optimizer_step": sizes.trajectories_per_mini_batch(config),
        "data_parallel_ranks": sizes.data_parallel(config.layout),
        "tokens_per_micro_batch_and_gpu": memory.tokens_per_gpu(config),
        "steps": config.trainer.steps,
        "optimizer_steps": updates * config.trainer.steps,
        "trajectories": sizes.trajectories_per_step(config) * config.trainer.steps,
    }


def _plan_tokens(config: Config) -> dict[str, Any]:
    rollout = config.rollout
    sampled = rollout.max_turns * rollout.max_turn_tokens
    # Summaries come on top, and a compacted conversation does not end the attempt.
    if rollout.compaction is CompactionKind.none:
        sampled = min(sampled, rollout.max_trajectory_tokens)
    sampled *= sizes.most_conversations(config)
    per_step = sizes.max_tokens_per_step(config)
    of_run = None if per_step is None else per_step * config.trainer.steps
    return {
        "max_prompt_tokens": rollout.max_prompt_tokens,
        "max_trajectory_tokens": rollout.max_trajectory_tokens,
        "engine_max_model_len": config.engine.max_model_len,
        "model_positions": config.model.max_position_embeddings,
        "max_sampled_tokens_per_trajectory": sampled,
        "max_tokens_per_step": NO_BOUND if per_step is None else per_step,
        "max_tokens_of_the_run": NO_BOUND if of_run is None else of_run,
    }


def _plan_memory(config: Config) -> dict[str, Any]:
    """Returns GB of GPU memory, or of this process's where no GPU is used."""
    if sizes.uses_no_gpu(config.layout):
        kv_tokens = config.engine.max_num_seqs * config.engine.max_model_len
        return {
            "weights_gb": _three_digits(memory.weights_gb(config.model, memory.CPU_BYTES)),
            "trainer_states_gb": _three_digits(memory.trainer_gb(config) * sizes.num_replicas(config.layout)),
            "activations_gb": _three_digits(memory.activations_gb(config)),
            "kv_cache_gb_at_most": _three_digits(memory.kv_gb(config.model, kv_tokens, memory.CPU_BYTES)),
        }
    parts: dict[str, Any] = {"gpu_memory_gb": config.hardware.gpu_memory_gb}
    if config.engine.kind == EngineKind.vllm:
        parts |= {
            "engine_share_gb": _three_digits(config.hardware.gpu_memory_gb * config.engine.gpu_memory_utilization),
            "engine_weights_gb": _three_digits(memory.engine_weights_gb(config)),
        }
    if config.layout.trainer_gpus:
        if (replicas := sizes.num_replicas(config.layout)) > 1:
            parts["trainer_replicas"] = replicas
        parts |= {
            "trainer_states_gb": _three_digits(memory.states_gb_per_gpu(config)),
            "trainer_activations_gb": _three_digits(memory.activations_gb(config)),
            "trainer_gathered_layers_gb": _three_digits(memory.gathered_gb(config)),
            "trainer_peak_gb": _three_digits(memory.trainer_gb_per_gpu(config)),
        }
    if config.layout.colocated and config.engine.kind == EngineKind.vllm:
        parts["peak_of_both_turns_gb"] = _three_digits(memory.colocated_gb_per_gpu(config))
    if offloaded := memory.offloaded_gb(config):
        parts["offloaded_gb_of_all_nodes"] = _three_digits(offloaded)
    return parts


def _plan_cache(config: Config) -> dict[str, Any]:
    """Returns what an engine's cache can hold against what the trajectories under way hold."""
    tokens = memory.kv_tokens_per_engine(config)
    value_bytes = memory.CPU_BYTES if sizes.uses_no_gpu(config.layout) else memory.bytes_per_cached_value(config)
    rows: dict[str, Any] = {"kv_bytes_per_token": memory.kv_bytes_per_token(config.model, value_bytes)}
    if tokens == 0:
        return rows
    return rows | {
        "kv_tokens_per_engine": tokens,
        **host_cache.figures(config),
        "full_trajectories_per_engine": tokens // max(1, config.rollout.max_trajectory_tokens),
        "trajectories_at_once_per_engine": -(-sizes.trajectories_at_once(config) // config.layout.engines),
        "typical_trajectory_tokens": config.rollout.typical_trajectory_tokens,
        "oversubscription": round(host_cache.crowding(config), 2),
    }


def _plan_disk(config: Config) -> dict[str, Any]:
    # Nobody counted the instances of an evaluation.
    evaluates = Part.evaluation in started_parts(config) and Part.steps not in started_parts(config)
    images = 0.0 if evaluates else sizes.trained_images_gb(config.env, read_text)
    return {
        "checkpoint_gb": _three_digits(memory.checkpoint_gb(config)),
        "checkpoints_kept": config.trainer.keep_checkpoints,
        "checkpoints_gb_at_most": _three_digits(
            memory.checkpoints_gb(config)
        ),  # the next is written before the oldest goes
        "images_gb_at_most": (_three_digits(images) or "unknown") if sizes.holds_container(config) else 0.0,
        "disk_gb": config.hardware.disk_gb or "unknown",
    }


def _plan_slots(config: Config) -> dict[str, Any]:
    slots = config.sandbox.concurrency
    rows: dict[str, Any] = {
        "trajectories_at_once": sizes.trajectories_at_once(config),
        **concurrency.figures(config),
        "sandboxes_at_once": slots,
        "sandbox_cpus": slots * config.sandbox.cpus,
        "sandbox_memory_gb": slots * config.sandbox.memory_gb,
        "waves_of_trajectories_per_step": sizes.waves_per_step(config),
    }
    if sizes.holds_container(config):
        rows["places_on_the_nodes"] = sizes.sandbox_slots(config)
    return rows


def _plan_time(config: Config) -> dict[str, Any]:
    rollouts = step_rollouts(config)
    training = (
        f"training reaches {duration.TRAIN_UTILIZATION:.0%} of a GPU's {config.hardware.gpu_bf16_tflops:g} TFLOPS; "
        f"weights move at {duration.SYNC_GB_PER_S:g} GB/s; "
    )
    assumed = (
        f"trajectories of {config.rollout.typical_trajectory_tokens} tokens; "
        f"{training if starts_trainer(config) else ''}"
        "nothing is lost to slow sandboxes"
    )
    if sizes.uses_no_gpu(config.layout) and starts_trainer(config):
        assumed = "no time for training: a CPU's is not estimated"
    if starts_trainer(config):
        assumed += "; evaluations and checkpoints are not counted"
    elif config.job.think_s:
        assumed += f"; {duration.format_duration(config.job.think_s)} of waiting between two steps"
    return {
        "rollouts_s_per_step": _three_digits(rollouts.seconds),
        "rollouts_from": rollouts.source,
        "training_s_per_step": _three_digits(duration.train_s(config)) or NOT_KNOWN,
        "layers_compiled": "yes" if duration.compiles_layers(config) else "no",
        **_plan_weights(config),
        "step": duration.format_duration(duration.step_s(config, rollouts.seconds)),
        "run": duration.format_duration(duration.run_s(config, rollouts.seconds)),
        **_gpu_hours(config, duration.run_s(config, rollouts.seconds)),
        "time_limit": duration.format_duration(duration.limit_s(config)) if config.hardware.time_limit_min else "none",
        "assuming": assumed,
    }


def _plan_weights(config: Config) -> dict[str, Any]:
    """Returns how new weights reach the engines, after each update."""
    rows: dict[str, Any] = {"weight_sync_s_per_step": _three_digits(duration.sync_s(config))}
    if Part.trainer in started_parts(config):
        way = "this process" if config.engine.kind is EngineKind.embedded else way_of(config).value
        rows |= {"weights_by": way, "weights_gb_per_update": _three_digits(memory.update_gb(config))}
    return rows


def _gpu_hours(config: Config, run_s: float) -> dict[str, float]:
    gpus = sizes.gpus_needed(config)
    return {"gpu_hours": _three_digits(gpus * run_s / 3600)} if gpus else {}


def _plan_flow(config: Config) -> dict[str, Any]:
    """Returns which side waits where groups flow, and what another division of the GPUs would give."""
    if not can_balance(config):
        return {}
    try:
        made = compare_divisions(config, groups_of, turns=FLOW_TURNS, loads=1)
    except (SweRlError, ValueError) as error:
        if config.job.workload_from is not None:
            raise
        return {"not simulated": str(error)}
    flowing = made.flowing
    step, ahead = (way.tokens_per_h for way in made.ways[:2])
    return {
        "step": duration.format_duration(flowing.step_s),
        "run": duration.format_duration(duration.of_steps(config, flowing.step_s)),
        "trained_tokens_per_h": int(flowing.tokens_per_h),
        "to_step": _three_digits(flowing.tokens_per_h / step),
        "to_one_step_ahead": _three_digits(flowing.tokens_per_h / ahead),
        "engine_idle_share": _three_digits(flowing.engine_idle_share),
        "trainer_idle_share": _three_digits(flowing.trainer_idle_share),
        "slower_side": flowing.slower_side,
        "staleness_mean": _three_digits(flowing.staleness_mean),
        "staleness": ", ".join(f"{age}: {share:.0%}" for age, share in flowing.staleness.items()),
        **{f"tokens_per_h, {name_division(layout)}": int(outcome.tokens_per_h) for layout, outcome in made.divisions},
        "best": name_division(made.best),
    }


_SECTIONS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "gpus": _plan_gpus,
    "memory": _plan_memory,
    "cache": _plan_cache,
    "endpoint": endpoint.attempt_figures,
    "batch": _plan_batch,
    "tokens": _plan_tokens,
    "slots": _plan_slots,
    "time": _plan_time,
    "flow": _plan_flow,
    "disk": _plan_disk,
}


# These sections, and keys that begin so, are there for one part alone.
_ABOUT: dict[Part, tuple[str, ...]] = {
    Part.trainer: (
        "flow", "trainer_", "activations_gb", "peak_of_both", "offloaded", "rows_per_step", "optimizer_steps",
        "trajectories_per_optimizer", "data_parallel", "tokens_per_micro", "training_s", "layers_compiled",
        "weight_sync_s", "checkpoint",
    ),
    Part.steps: (
        "prompts_per_step", "trajectories_per_prompt", "trajectories_per_step", "steps", "max_tokens_",
        "waves_of", "rollouts_", "step", "run", "gpu_hours", "assuming",
    ),
    Part.engines: ("engine", "kv_", "cache", "endpoint"),
    Part.sandboxes: ("images_",),
    Part.rollouts: (
        "batch", "tokens", "slots", "time", "gateway", "full_traj", "trajectories", "typical", "oversubscription",
    ),
}  # fmt: skip


def _trainer_memory(config: Config) -> dict[str, Any]:
    of_engines = ("engine", "kv", "peak_of_both")
    return {
        name: value for name, value in _plan_memory(trainer_config(config)).items() if not name.startswith(of_engines)
    }


def _plan_updates(config: Config) -> dict[str, Any]:
    return {
        **size_of_updates(config),
        "data_parallel_ranks": sizes.data_parallel(config.layout),
        "tokens_per_micro_batch_and_gpu": memory.tokens_per_gpu(trainer_config(config)),
    }


def _update_time(config: Config) -> dict[str, Any]:
    of_trainer = trainer_config(config)
    if not (update_s := duration.train_s(of_trainer)):
        return {"update": "not estimated: no GPU, or its speed is not known"}
    run_s = duration.of_steps(of_trainer, update_s)
    run = {"run": duration.format_duration(run_s), **_gpu_hours(config, run_s)} if knows_updates(config) else {}
    return {
        "training_s_per_update": _three_digits(update_s),
        **run,
        "assuming": f"{duration.TRAIN_UTILIZATION:.0%} of a GPU's {config.hardware.gpu_bf16_tflops:g} TFLOPS",
    }


_OF_A_WARM_START: dict[str, Callable[[Config], dict[str, Any]]] = {
    "gpus": _plan_gpus,
    "memory": _trainer_memory,
    "batch": _plan_updates,
    "time": _update_time,
    "disk": lambda config: _plan_disk(trainer_config(config)) | {"images_gb_at_most": 0.0},
}


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def _print_plan(made: dict[str, Any], config: Config, origins: Origins | None) -> None:
    from rich.columns import Columns
    from rich.console import Console

    console = Console(highlight=False)
    console.print(make_headline(config, made))
    console.print(describe_in_short(made))
    console.print(draw_gpus(made["gpus"], config))
    sections = [
        section_panel(name, rows)
        for name, rows in made.items()
        if isinstance(rows, dict) and name not in _APART and rows
    ]
    if console.width >= _WIDE:
        console.print(Columns(sections, equal=False, expand=False))
    else:
        console.print(*sections, sep="\n")
    known = {name: text for name, text in made["environment"].items() if not text.startswith("not set")}
    if known:
        console.print(section_panel("environment", known, wide=True))
    if (unset := len(made["environment"]) - len(known)) and config.logger.verbosity.has_details:
        console.print(f"{unset} environment variables are not set; job.format=json names them.", style="dim")
    if origins is not None and (given := _from_environment(config, origins)):
        console.print(section_panel("set by the environment", given, wide=True))


def _from_environment(config: Config, origins: Origins) -> dict[str, str]:
    values = {}
    for key in _SHOWN_KEYS:
        origin = origins.of(key)
        if origin.startswith(("environment:", ".env:")):
            group, _, name = key.partition(".")
            values[key] = f"{getattr(getattr(config, group), name)}  (from: {origin})"
    return values
