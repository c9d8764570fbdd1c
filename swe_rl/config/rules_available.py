"""The rule `available`: parts that compose, are checked and planned, but that this version cannot run yet.

Invariants:
- A job that would run is refused by name; `check` and `plan` only warn, so that a set-up can be prepared.
- Whoever builds a part removes it here; nothing pretends to be there.
"""

from collections.abc import Iterator

from swe_rl.config.choices import EngineKind, JobName
from swe_rl.config.findings import Finding, Host, error, warning
from swe_rl.config.schema import Config
from swe_rl.config.sizes import WITHOUT_TRAINER, engine_gpus, total_gpus, trainer_leaves_node, uses_no_gpu

RUNNING = frozenset({JobName.train, JobName.rollout, JobName.eval, JobName.sft, JobName.serve})
GPUS_OF_A_NODE = 8  # where the hardware has none, so that a layout is looked at alone


def available(config: Config, _: Host) -> Iterator[Finding]:
    make = error if config.job.name in RUNNING else warning
    for key, value, instead in (*_absent_parts(config), *_absent_training(config)):
        yield make("available", key, value, "not available yet in this version", instead)


def _absent_parts(config: Config) -> Iterator[tuple[str, object, str]]:
    """Key, value, what to use instead."""
    if config.env.name == "bugs" and config.env.eval_dataset is not None:
        yield (
            "env.eval_dataset",
            config.env.eval_dataset,
            "env.eval_dataset=null: env=bugs brings its own held-out split",
        )


def _absent_training(config: Config) -> Iterator[tuple[str, object, str]]:
    trainer, layout = config.trainer, config.layout
    if not uses_no_gpu(layout) and config.job.name not in WITHOUT_TRAINER:
        yield from _absent_layouts(config)
    if trainer.offload_optimizer and not layout.trainer_gpus:
        yield "trainer.offload_optimizer", True, "trainer.offload_optimizer=false, or a layout with trainer GPUs"
    if config.model.num_experts and (layout.trainer_gpus or layout.trainer_ranks):
        yield "model.num_experts", config.model.num_experts, "a dense model for training: model=qwen3_14b"


def _absent_layouts(config: Config) -> Iterator[tuple[str, object, str]]:
    layout, hardware = config.layout, config.hardware
    if config.job.name is JobName.sft:
        yield "layout.name", layout.name, "layout=local"
    elif layout.colocated:
        yield from _absent_turns(config)
    elif hardware.gpus_per_node > 0 and trainer_leaves_node(layout, hardware.gpus_per_node):
        if hardware.ray_address is not None:
            return
        other = (
            "hardware.ray_address=auto, with a Ray cluster of these nodes (docs/ray.md); or a layout whose trainer "
            f"fits the {hardware.gpus_per_node} GPUs of one node, after the engines"
        )
        yield "layout.trainer_gpus", layout.trainer_gpus, other


def _absent_turns(config: Config) -> Iterator[tuple[str, object, str]]:
    """Engines and trainer on the same GPUs: on one host, with servers and ranks that this run starts there."""
    layout, hardware = config.layout, config.hardware
    if total_gpus(layout) > (hardware.gpus_per_node or GPUS_OF_A_NODE):
        other = "layout=colocated8, or another one of at most the GPUs of one node; or job=rollout or job=eval"
        yield "layout.colocated", True, other
    if hardware.ray_address is not None:
        yield "hardware.ray_address", hardware.ray_address, "hardware.ray_address=null, or layout=dp4"
    if config.engine.kind is EngineKind.external:
        yield "engine.kind", config.engine.kind, "engine=vllm_colocated, or layout=dp4: nobody else's servers sleep"
    if 0 < layout.trainer_gpus < engine_gpus(layout):
        other = f"layout.trainer_gpus={engine_gpus(layout)}: a rank of the trainer on every GPU of an engine"
        yield "layout.trainer_gpus", layout.trainer_gpus, other


RULES = (available,)
