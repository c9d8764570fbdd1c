"""Rules of layout, hardware and engine check who sits on which GPU, and whether the model fits there.

Invariants:
- Facts about models and hardware come from conf/; nothing here asks a machine.
"""

from collections.abc import Iterator
from math import gcd
from urllib.parse import urlsplit

from swe_rl.check.findings import Finding, Host, error, is_below, rule_about, rule_between, warning
from swe_rl.check.rules.model import is_as_shipped
from swe_rl.config.choices import EngineKind, WeightSync
from swe_rl.config.known_models import parameters_b
from swe_rl.config.parts import TRAINS, Part, reads_key, started_parts
from swe_rl.config.schema import Config, LayoutConfig
from swe_rl.facts.server_arguments import VLLM_COMMAND
from swe_rl.facts.sizes import (
    divisors_of,
    gpus_needed,
    gpus_there,
    num_replicas,
    read_elsewhere,
    replica_ranks,
    trainer_elsewhere,
    uses_no_gpu,
)
from swe_rl.host.addresses import is_loopback
from swe_rl.layout.placement import PlacementError, place_layout

# One CPU process can sample from and train so many billions of parameters in bearable time.
EMBEDDED_LIMIT_B = 0.5
LOCAL_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # machines never share these


@rule_about(Part.engines)
def engine_within_node(config: Config, _: Host) -> Iterator[Finding]:
    tp = config.layout.engine_tp
    per_node = config.hardware.gpus_per_node
    if per_node > 0 and tp >= 1 and (tp > per_node or per_node % tp):
        yield error(
            "engine_node",
            "layout.engine_tp",
            f"engines of {tp} GPUs do not fit evenly into nodes of {per_node}",
            f"layout.engine_tp={max(size for size in divisors_of(per_node) if size <= tp)}",
        )


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def heads_divide(config: Config, _: Host) -> Iterator[Finding]:
    heads = config.model.num_heads
    kv_heads = config.model.num_kv_heads
    ways = {"layout.engine_tp": config.layout.engine_tp, "layout.sequence_parallel": config.layout.sequence_parallel}
    for key, ways_split in ways.items():
        parts = {Part.engines} if key == "layout.engine_tp" else TRAINS
        if (
            not parts & started_parts(config)
            or min(ways_split, heads, kv_heads) < 1
            or _can_split_heads(heads, kv_heads, ways_split)
        ):
            continue
        allowed = [
            size for size in divisors_of(heads) if _can_split_heads(heads, kv_heads, size) and size <= 2 * ways_split
        ]
        yield error(
            "heads",
            key,
            f"does not divide the {heads} heads and {kv_heads} key-value heads of {config.model.name}",
            f"{key} one of {', '.join(map(str, allowed))}",
        )


def _can_split_heads(heads: int, kv_heads: int, ways: int) -> bool:
    """Tells whether heads can be split. Key-value heads are either shared out or repeated, never cut."""
    return heads % ways == 0 and (kv_heads % ways == 0 or ways % kv_heads == 0)


@rule_about(Part.trainer, Part.warm_start)
def sequence_parallel_world(config: Config, _: Host) -> Iterator[Finding]:
    layout = config.layout
    ways = config.layout.sequence_parallel
    key = _ranks_key(layout)
    ranks = layout.trainer_gpus or layout.trainer_ranks
    if ways >= 1 and ranks >= 0 and max(ranks, 1) % ways:
        model = config.model
        sizes = [size for size in divisors_of(max(ranks, 1)) if size <= ways]
        fitting = [size for size in sizes if _can_split_heads(model.num_heads, model.num_kv_heads, size)]
        yield error(
            "sequence_parallel",
            "layout.sequence_parallel",
            f"{key}={ranks} cannot be split into groups of {ways}",
            f"layout.sequence_parallel={max(fitting or sizes)}",
        )


@rule_about(Part.trainer, Part.warm_start)
def expert_parallel(config: Config, _: Host) -> Iterator[Finding]:
    layout = config.layout
    ways = config.layout.expert_parallel
    experts = config.model.num_experts
    key = _ranks_key(layout)
    ranks = layout.trainer_gpus or layout.trainer_ranks
    if ways <= 1 or ranks < 0 or experts < 0:
        return
    problem = None
    if not experts:
        problem = f"model={config.model.name} has no experts that ranks could share"
    elif max(ranks, 1) % ways:
        problem = f"{key}={ranks} cannot be split into groups of {ways}"
    elif experts % ways:
        problem = f"does not divide the {experts} experts of a layer of model={config.model.name}"
    if problem:
        fits = max(size for size in divisors_of(gcd(max(ranks, 1), experts or 1)) if size <= ways)
        yield error("expert_parallel", "layout.expert_parallel", problem, f"layout.expert_parallel={fits}")


@rule_about(Part.trainer, Part.warm_start)
def whole_replicas(config: Config, _: Host) -> Iterator[Finding]:
    layout = config.layout
    share = config.layout.shard_ranks
    experts = config.layout.expert_parallel
    ranks = layout.trainer_gpus or layout.trainer_ranks
    if share is None or share < 1 or ranks < 0 or experts < 1:
        return
    problem = None
    if not ranks:
        problem = "one process trains here, and has all parameters" if share > 1 else None
    elif ranks % share:
        key = "layout.trainer_gpus" if layout.trainer_gpus else "layout.trainer_ranks"
        problem = f"{key}={ranks} cannot be split into replicas of {share} ranks"
    elif share % experts and ranks % experts == 0:
        problem = f"{experts} ranks that share experts (layout.expert_parallel) do not fit into a replica of {share}"
    if problem:
        fits = [size for size in divisors_of(max(ranks, 1)) if size % experts == 0]
        smaller = max((size for size in fits if size <= share), default=min(fits, default=None))
        yield error(
            "shard_ranks",
            "layout.shard_ranks",
            problem,
            f"layout.shard_ranks={'null' if smaller in (None, max(ranks, 1)) else smaller}",
        )


@rule_about(Part.trainer, Part.warm_start)
def trainer_ranks(config: Config, _: Host) -> Iterator[Finding]:
    ranks = config.layout.trainer_ranks
    gpus = config.layout.trainer_gpus
    if ranks and gpus:
        yield error(
            "trainer_ranks",
            "layout.trainer_ranks",
            f"are processes on the CPU, and layout.trainer_gpus={gpus} has one process a GPU",
            "layout.trainer_ranks=0, or layout=local2",
        )
    elif ranks > config.hardware.cpus_per_node:
        yield warning(
            "trainer_ranks",
            "layout.trainer_ranks",
            f"share hardware.cpus_per_node={config.hardware.cpus_per_node} CPUs: more of them are not faster",
            f"layout.trainer_ranks={config.hardware.cpus_per_node}",
        )


@rule_about(Part.engines)
def engine_matches_layout(config: Config, host: Host) -> Iterator[Finding]:
    engine = config.engine
    layout = config.layout
    model = config.model
    if engine.kind == EngineKind.embedded and not uses_no_gpu(layout):
        yield error(
            "engine_kind",
            "engine.kind",
            f"runs in this process; layout={layout.name} places engines on GPUs",
            "engine=vllm, or layout=local",
        )
    if engine.kind == EngineKind.embedded and model.params_b > EMBEDDED_LIMIT_B:
        yield error(
            "engine_model",
            "model.params_b",
            f"{model.name} has {model.params_b:g} billion "
            f"parameters; the embedded engine is for at most {EMBEDDED_LIMIT_B:g}",
            "model=tiny, or layout=colocated1 on a machine with a GPU, or layout=dp4 with eight",
        )
    if (
        engine.kind == EngineKind.vllm
        and uses_no_gpu(layout)
        and not (engine.command or host.environment.get(VLLM_COMMAND, "").strip())
    ):
        fix = (
            f"layout=dp4 hardware=h100x8, engine=embedded, or engine.command ({VLLM_COMMAND}) with the CPU build's "
            "python"
        )
        if config.hardware.gpus_per_node and layout.engines * layout.engine_tp <= gpus_there(config.hardware):
            fix = "layout.colocated=false, which gives engines GPUs of their own"
        yield error(
            "engine_kind",
            "engine.kind",
            f"needs GPUs, and layout={layout.name} has none; or vLLM's CPU build, which has to be named",
            fix,
        )
    if engine.kind == EngineKind.external and not engine.urls:
        yield error(
            "engine_urls",
            "engine.urls",
            "engine=external needs to know where the engines are",
            "engine.urls=[http://HOST:8000/v1]",
        )
    if engine.kind != EngineKind.external and engine.urls:
        yield warning(
            "engine_urls", "engine.urls", f"nothing reads it with engine.kind={engine.kind}", "engine=external"
        )


@rule_between(Part.trainer, Part.engines)
def weights_elsewhere(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses a folder for new weights that other nodes or external servers do not see under the same path."""
    if not read_elsewhere(config) or gpus_needed(config) > gpus_there(config.hardware):
        return
    external = config.engine.kind is EngineKind.external
    key = "paths.outputs"
    if config.paths.scratch:
        key = "paths.scratch"
    path = host.absolute(config.paths.scratch or config.paths.outputs)
    by_whom = "engines and ranks on other nodes"
    if external:
        by_whom = "servers on other machines"
    if external and config.paths.scratch is None and not all(is_loopback(_host_of(url)) for url in config.engine.urls):
        unseen = True  # nobody said that they share a folder with this machine
    else:
        unseen = not external and _of_one_node(path, config)
    if unseen:
        yield error(
            "weights_elsewhere",
            key,
            f"{by_whom} read new weights below this folder, and must see it under the same path",
            f"paths.scratch={_shared_folder(config)}",
        )


@rule_about(Part.trainer, Part.warm_start)
def ranks_elsewhere(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses a run's folder that other nodes do not see: their ranks write parts of checkpoints into it.

    Another rule is about Ray's ranks.
    """
    here = config.hardware.ray_address is not None or not trainer_elsewhere(config)
    weights_too = read_elsewhere(config) and config.paths.scratch is None  # `weights_elsewhere` says it
    if here or weights_too or not _of_one_node(host.absolute(config.paths.outputs), config):
        return
    yield error(
        "ranks_elsewhere",
        "paths.outputs",
        "ranks on other nodes write their part of a checkpoint below this folder, and must see it under the same path",
        f"paths.outputs={_shared_folder(config)}",
    )


@rule_about(Part.trainer, Part.warm_start)
def groups_within_node(config: Config, _: Host) -> Iterator[Finding]:
    layout = config.layout
    per_node = config.hardware.gpus_per_node
    if config.hardware.ray_address is not None or not trainer_elsewhere(config):
        return
    groups = {"sequence": ("a sequence", layout.sequence_parallel), "expert": ("experts", layout.expert_parallel)}
    for name, (shared, ways) in groups.items():
        if ways > 1 and per_node % ways and layout.trainer_gpus % ways == 0:
            yield warning(
                f"{name}_node",
                f"layout.{name}_parallel",
                f"ranks that share {shared} are on two nodes, as {ways} does not divide the {per_node} GPUs of one: "
                "what they exchange in every layer goes over the network",
                f"layout.{name}_parallel={max(size for size in divisors_of(per_node) if size <= ways)}",
            )
    yield from _replicas_within_node(config)


def _replicas_within_node(config: Config) -> Iterator[Finding]:
    layout = config.layout
    share = replica_ranks(config.layout)
    if num_replicas(layout) < 2 or layout.trainer_gpus % share:
        return
    try:
        nodes = [gpu.node for gpu in place_layout(config).trainer]
    except PlacementError:  # another rule says so
        return

    def most(size: int) -> int:
        return max(len(set(nodes[first : first + size])) for first in range(0, len(nodes), size))

    if most(share) > 1:
        sizes = (size for size in divisors_of(layout.trainer_gpus) if size % layout.expert_parallel == 0)
        fits = max((size for size in sizes if size <= share and most(size) == 1), default=layout.expert_parallel)
        yield warning(
            "replica_node",
            "layout.shard_ranks",
            f"the {share} ranks of a replica are on {most(share)} nodes: each layer's parameters are gathered over the "
            "network, which replicas are meant to spare",
            f"layout.shard_ranks={fits}, if a rank has memory for 1/{fits} of all states",
        )


def _of_one_node(path: str, config: Config) -> bool:
    """Tells whether the other nodes do not see `path`, as far as anybody said."""
    shared = config.hardware.shared_paths
    if shared:
        return not is_below(path, shared)
    return is_below(path, LOCAL_FOLDERS)


def _ranks_key(layout: LayoutConfig) -> str:
    """Returns the key that says how many ranks train."""
    if layout.trainer_ranks and not layout.trainer_gpus:
        return "layout.trainer_ranks"
    return "layout.trainer_gpus"


def _shared_folder(config: Config) -> str:
    shared = config.hardware.shared_paths
    if shared:
        return shared[0]
    return "FOLDER that they all see"


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # another rule names it
        return ""


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def check_mig(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses what MIG slices cannot do: a process sees one of them, and only files cross from one to another."""
    hardware = config.hardware
    layout = config.layout
    sync = config.trainer.weight_sync
    named = "MIG-" in host.environment.get("CUDA_VISIBLE_DEVICES", "")
    if not hardware.mig and not (named and hardware.partition is None and not uses_no_gpu(layout)):
        return
    if hardware.mig and hardware.gpus_per_node == 0:
        yield error(
            "mig",
            "hardware.gpus_per_node",
            "with hardware.mig=true it is the number of slices, and there is none",
            "hardware.gpus_per_node=2 layout=mig2, or hardware.mig=false",
        )
    if (layout.engine_tp > 1 and Part.engines in started_parts(config)) or layout.trainer_gpus > 1:
        yield error(
            "mig",
            "hardware.mig",
            (
                "MIG slices cannot talk to each other over NCCL, and a process sees one"
                + ("" if hardware.mig else "; CUDA_VISIBLE_DEVICES names slices")
            ),
            "layout.engine_tp=1 layout.trainer_gpus=1 layout.sequence_parallel=1",
        )
    if sync is WeightSync.nccl and reads_key(config, "trainer.weight_sync"):
        yield error(
            "mig", "trainer.weight_sync", "MIG slices cannot talk to each other over NCCL", "trainer.weight_sync=disk"
        )


@rule_about(Part.engines)
def check_compiler(config: Config, _: Host) -> Iterator[Finding]:
    if config.engine.kind == EngineKind.vllm and not config.hardware.compiler and not config.engine.enforce_eager:
        yield error(
            "compiler",
            "engine.enforce_eager",
            f"vLLM compiles kernels at its start, and the nodes of hardware={config.hardware.name} have no compiler",
            "engine.enforce_eager=true",
        )


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def check_model_facts(config: Config, _: Host) -> Iterator[Finding]:
    """Warns of a number of parameters that does not follow from the architecture, as in a copied file with one change.

    The parameters of a folder are counted in its files, and its architecture may have another formula.
    """
    model = config.model
    if model.name == "folder" or is_as_shipped(model):
        return
    if min(model.num_heads, model.num_kv_heads, model.num_layers, model.hidden_size) < 1:
        return
    counted = parameters_b(model)
    if not 0.9 < model.params_b / counted < 1.1:
        yield warning(
            "model_facts",
            "model.params_b",
            f"layers, widths and vocabulary of model={model.name} make {counted:.3g} billion; estimates of memory and "
            "time are off",
            f"model.params_b={counted:.3g}",
        )
