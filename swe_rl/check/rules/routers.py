"""Rules of a mixture's routers: whether the trainer knows them, and whether the engine tells what they chose.

Invariants:
- Routers are steered in one family alone; what would steer those of another one is refused, as the start does.
- Experts that an update of weights would miss are refused.
"""

import re
from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, rule_about, rule_between, warning
from swe_rl.check.rules.model import model_type
from swe_rl.config.choices import ROUTED_ARCHITECTURE, Capture, EngineKind, RoutingReplay, WeightSync
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config, ModelConfig
from swe_rl.facts.sizes import serves_adapter, uses_no_gpu, wanted_sync

# vLLM's loaders of these copy experts or sinks themselves, where a reload has no memory yet (`load_weights` of
# models/gpt_oss.py and models/mimo_v2.py, 0.26 to 0.32). engine/transfer/staged_layers.py mends our own transfers.
COPIED_BY_HAND = ("gpt_oss", "mimo_v2")


@rule_between(Part.trainer, Part.engines)
def routing_replay(config: Config, host: Host) -> Iterator[Finding]:
    """Finds experts that cannot be replayed: tokens go where the engine sent them, so they have to be the engine's.

    The probe of somebody else's server asks whether it tells. In vLLM on a CPU the experts are chosen inside of the
    kernel (`is_monolithic` of `unquantized_fused_moe_method.py`, 0.26). 0.32 does not start (`config/vllm.py`,
    `_verify_aux_output_compatibility`), and so it is without cached prefixes.
    """
    mode = config.trainer.routing_replay
    key = "trainer.routing_replay"
    off = "trainer.routing_replay=none"
    if mode is RoutingReplay.none:
        return
    if not config.model.num_experts:
        yield error("routing_replay", key, f"model={config.model.name} is dense: it has no experts to choose", off)
    elif (kind := foreign_routers(config, host)) is not None:
        why = f"model.path says model_type={kind}, whose routers are unknown: only {ROUTED_ARCHITECTURE} replays"
        yield error("routing_replay", key, why, off)
    elif config.rollout.capture is Capture.retokenize:
        why = "rows that are rendered anew have other tokens than the engine sent to its experts"
        yield error("routing_replay", "rollout.capture", why, f"rollout.capture=traced, or {off}")
    elif config.engine.kind is EngineKind.vllm and uses_no_gpu(config.layout):
        why = f"layout={config.layout.name} has no GPU, and vLLM tells only on GPUs which experts it chooses"
        yield error("routing_replay", key, why, f"engine=embedded, or {off}")
    elif config.engine.kind is EngineKind.vllm and not config.engine.prefix_caching:
        why = "vLLM 0.32 tells experts only where it caches prefixes, and does not start otherwise (0.26 starts)"
        yield warning("routing_replay", "engine.prefix_caching", why, f"engine.prefix_caching=true, or {off}")


def foreign_routers(config: Config, host: Host) -> str | None:
    """Returns the model_type of a mixture whose routers the trainer cannot steer; None of all others."""
    kind = model_type(config.model, host)
    if config.model.num_experts and kind is not None and kind != ROUTED_ARCHITECTURE:
        return kind
    return None


@rule_about(Part.trainer)
def balance(config: Config, host: Host) -> Iterator[Finding]:
    if config.algo.balance_coef == 0:
        return
    if (kind := foreign_routers(config, host)) is not None:
        words = f"model.path says model_type={kind}, whose routers are unknown: only {ROUTED_ARCHITECTURE} is balanced"
        yield error("balance", "algo.balance_coef", words, "algo.balance_coef=0")
    elif not config.model.num_experts:
        words = f"model={config.model.name} is dense: it has no experts to spread tokens over"
        yield error("balance", "algo.balance_coef", words, "algo.balance_coef=0")


@rule_between(Part.trainer, Part.engines)
def copied_experts(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses ways of weights on which vLLM would keep old experts, and sample from them without a word."""
    if config.engine.kind is EngineKind.embedded or serves_adapter(config):
        return
    kind = _model_copied_by_hand(config.model, host)
    sync = wanted_sync(config, host.environment)
    if uses_no_gpu(config.layout):
        own_transfer = WeightSync.nccl
        way_out = "trainer.weight_sync=nccl, which is swe_rl's own transfer without GPUs"
    else:
        own_transfer = WeightSync.ipc
        way_out = "trainer.weight_sync=ipc with a layout that shares its GPUs: layout=colocated1, layout=colocated8"
    if kind is not None and sync is not own_transfer:
        why = f"vLLM copies weights of {kind} models past its own reload, so over {sync} its experts would stay old"
        yield error("copied_experts", "trainer.weight_sync", why, way_out)


def _model_copied_by_hand(model: ModelConfig, host: Host) -> str | None:
    """Returns the family by a folder's config.json, else by the hub's name of the model; None for all others."""
    kind = model_type(model, host) or re.sub(r"\W", "_", model.path.rsplit("/", 1)[-1].lower())
    return next((family for family in COPIED_BY_HAND if kind.startswith(family)), None)
