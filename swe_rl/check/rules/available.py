"""The rule `available` refuses parts that compose and are planned, but that this version cannot run yet.

Invariants:
- A job that would run is refused by name, and so are `check` and `plan` of it; `plan` prints its table all the same.
- Whoever builds a part removes it here; nothing pretends to be there.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, rule_about
from swe_rl.config.choices import EngineKind
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import Config
from swe_rl.facts.sizes import engine_gpus, gpus_needed, gpus_there, trainer_elsewhere, uses_no_gpu


def _not_available(key: str, instead: str) -> Finding:
    return error("available", key, "not available yet in this version", instead)


@rule_about(Part.data)
def data_available(config: Config, _: Host) -> Iterator[Finding]:
    if config.env.name == "bugs" and config.env.eval_dataset is not None:
        yield _not_available("env.eval_dataset", "env.eval_dataset=null: env=bugs brings its own held-out split")


@rule_about(Part.trainer, Part.warm_start)
def training_available(config: Config, _: Host) -> Iterator[Finding]:
    trainer = config.trainer
    layout = config.layout
    there = gpus_there(config.hardware)
    if not uses_no_gpu(layout) and not 0 < there < gpus_needed(config):  # another rule says which GPUs are missing
        yield from _absent_layouts(config)
    if trainer.offload_optimizer and not layout.trainer_gpus:
        yield _not_available(
            "trainer.offload_optimizer", "trainer.offload_optimizer=false, or a layout with trainer GPUs"
        )


def _absent_layouts(config: Config) -> Iterator[Finding]:
    layout = config.layout
    hardware = config.hardware
    if layout.colocated:
        yield from _absent_turns(config) if Part.engines in started_parts(config) else ()
    elif trainer_elsewhere(config) and hardware.ray_address is None:
        yield _not_available(
            "layout.trainer_gpus",
            "hardware.ray_address=auto, with a Ray cluster of these nodes (docs/engineering/ray.md); or a layout whose "
            f"trainer fits the {hardware.gpus_per_node} GPUs of one node, after the engines",
        )


def _absent_turns(config: Config) -> Iterator[Finding]:
    """Finds what is missing where engines and trainer use the same GPUs.

    That works with servers and ranks that this run starts there.
    """
    layout = config.layout
    gpus = engine_gpus(config.layout)
    if config.hardware.ray_address is not None:
        yield _not_available("hardware.ray_address", "hardware.ray_address=null, or layout=dp4")
    if config.engine.kind is EngineKind.external:
        yield _not_available("engine.kind", "engine=vllm_colocated, or layout=dp4: nobody else's servers sleep")
    if 0 < layout.trainer_gpus < gpus:
        instead = f"layout.trainer_gpus={gpus}: a rank of the trainer on every GPU of an engine"
        yield _not_available("layout.trainer_gpus", instead)
