"""Rules of the trainer check LoRA, asynchrony, weight update, checkpoints and their disk, not its batch arithmetic.

Invariants:
- What a layout makes impossible is an error; what merely wastes time is a warning.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, rule_about, rule_between, warning
from swe_rl.config.choices import (
    AdvantageKind,
    Capture,
    Correction,
    DynamicSampling,
    EngineKind,
    KlEstimator,
    KlPlace,
    LoraServing,
    RolloutMode,
    WeightSync,
)
from swe_rl.config.parts import Part, reads_key, started_parts
from swe_rl.config.schema import Config
from swe_rl.facts import memory
from swe_rl.facts.logprobs import masks_tokens
from swe_rl.facts.sizes import (
    SERVED_LORA_RANKS,
    samples_ahead,
    serves_adapter,
    shares_gpus,
    takes_turns,
    total_gpus,
    unshareable_allocator,
    uses_no_gpu,
)
from swe_rl.facts.warm_start import trainer_config


@rule_about(Part.trainer, Part.warm_start)
def check_lora(config: Config, _: Host) -> Iterator[Finding]:
    trainer = config.trainer
    model = config.model
    rank = trainer.lora_rank
    key = "trainer.lora_rank"
    if rank == 0 and trainer.lora_serving is LoraServing.adapter and reads_key(config, "trainer.lora_serving"):
        words = "there is no adapter to serve with trainer.lora_rank=0"
        yield error("lora_serving", "trainer.lora_serving", words, "trainer.lora_serving=merged, or a rank")
    if rank == 0:
        return
    if rank > model.hidden_size:
        yield error(
            "lora",
            key,
            f"an adapter of more than model.hidden_size={model.hidden_size} is larger than what it stands for",
            "trainer.lora_rank=0, which trains all weights",
        )
    if Part.engines in started_parts(config):
        yield from _check_served_adapter(config)
    # A teacher rests in the host's memory with LoRA, too.
    if trainer.offload_optimizer and config.algo.advantage is not AdvantageKind.teacher:
        yield warning(
            "lora_offload",
            "trainer.offload_optimizer",
            "has no effect with trainer.lora_rank > 0: an adapter's optimizer state is small and stays on the GPU",
            "trainer.offload_optimizer=false",
        )


def _check_served_adapter(config: Config) -> Iterator[Finding]:
    """Finds what an adapter beside the base lacks: a server that keeps the base, and a folder to bring the adapter."""
    trainer = config.trainer
    key = "trainer.lora_serving"
    merged = "trainer.lora_serving=merged"
    if not serves_adapter(config):
        return
    if config.engine.kind is EngineKind.embedded:
        words = "the embedded engine computes in float32, so it has no use for an adapter beside the merged model"
        yield error("lora_serving", key, words, f"{merged}, or engine=vllm")
    if trainer.lora_rank > SERVED_LORA_RANKS[-1]:
        words = f"vLLM serves adapters up to rank {SERVED_LORA_RANKS[-1]}, and trainer.lora_rank={trainer.lora_rank}"
        yield error("lora_serving", key, words, f"trainer.lora_rank={SERVED_LORA_RANKS[-1]}, or {merged}")
    if trainer.weight_sync not in (WeightSync.auto, WeightSync.disk):
        words = f"an adapter goes through a folder, and trainer.weight_sync={trainer.weight_sync} sends whole models"
        yield error("lora_serving", key, words, f"trainer.weight_sync=auto, or {merged}")
    if shares_gpus(config):
        words = (
            f"layout={config.layout.name} puts engines to sleep while it trains, which drops the base that they keep"
        )
        yield error("lora_serving", key, words, f"a layout with GPUs for engines alone, or {merged}")


@rule_about(Part.trainer)
def check_streaming(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses what streaming cannot do: groups go on under new weights, so engines cannot leave their GPUs."""
    key = "rollout.mode"
    if config.rollout.mode is not RolloutMode.stream:
        return
    if config.trainer.max_staleness_steps == 0:
        yield error(
            "streaming",
            "trainer.max_staleness_steps",
            f"{key}=stream samples while the trainer works, so what it trains is of older weights",
            f"trainer.max_staleness_steps=1, or {key}=step",
        )
    if takes_turns(config) and not uses_no_gpu(config.layout):
        yield error(
            "streaming",
            key,
            f"layout={config.layout.name} lets engines and trainer take turns: engines would sleep in mid-trajectory",
            f"{key}=step, or a layout that gives each its own (layout=dp4)",
        )
    if config.rollout.capture is Capture.retokenize:
        yield error(
            "streaming",
            "rollout.capture",
            f"with {key}=stream weights change within a trajectory, and only a trace knows which ones sampled a token",
            f"rollout.capture=traced, or {key}=step",
        )
    if config.algo.max_staleness_steps is not None:
        yield warning(
            "streaming",
            "algo.max_staleness_steps",
            "leaves out trajectories that took long, so what is learned leans towards short ones",
            "algo.max_staleness_steps=null: pacing bounds staleness, and all that is sampled is trained",
        )


@rule_about(Part.trainer)
def check_asynchrony(config: Config, _: Host) -> Iterator[Finding]:
    stale = config.trainer.max_staleness_steps
    streams = config.rollout.mode is RolloutMode.stream
    if stale == 0:
        return
    if takes_turns(config) and not streams:
        yield error(
            "staleness",
            "trainer.max_staleness_steps",
            f"layout={config.layout.name} lets engines and trainer take turns: nothing can overlap",
            "trainer.max_staleness_steps=0, or a layout that gives each its own (layout=dp4, layout=local2)",
        )
    if config.algo.dynamic_sampling == DynamicSampling.resample and not streams:
        yield error(
            "staleness_sampling",
            "algo.dynamic_sampling",
            "needs to know a whole step's rewards, which an asynchronous step does not have in time",
            "algo.dynamic_sampling=filter, or trainer.max_staleness_steps=0",
        )
    key = "algo.stale_correction"
    if config.algo.stale_correction is None:
        key = "algo.correction"
    if Correction.none == (config.algo.stale_correction or config.algo.correction) and not masks_tokens(config):
        yield warning(
            "staleness_correction",
            key,
            f"tokens up to {stale} steps old are trained as if the present policy had sampled them",
            f"{key}=token_tis",
        )


@rule_between(Part.trainer, Part.engines)
def weight_sync(config: Config, _: Host) -> Iterator[Finding]:
    sync = config.trainer.weight_sync
    layout = config.layout
    hardware = config.hardware
    key = "trainer.weight_sync"
    if sync in (WeightSync.nccl, WeightSync.ipc) and config.engine.kind is EngineKind.embedded:
        why = "engine=embedded has the trainer's weights in its own process"
        yield error("weight_sync", key, why, "trainer.weight_sync=auto")
    elif sync == WeightSync.ipc and uses_no_gpu(layout):
        yield error("weight_sync", key, f"layout={layout.name} has no GPU", "trainer.weight_sync=auto")
    elif sync == WeightSync.ipc and not layout.colocated:
        yield error(
            "weight_sync", key, "shares memory of one GPU; engines have others here", "trainer.weight_sync=nccl"
        )
    elif sync == WeightSync.nccl and layout.colocated and not uses_no_gpu(layout):
        yield error(
            "weight_sync", key, "NCCL refuses two ranks on one GPU, as colocated ones are", "trainer.weight_sync=ipc"
        )
    elif hardware.mig and not layout.colocated and sync == WeightSync.nccl:
        yield error("weight_sync", key, "there is no NCCL between MIG slices", "trainer.weight_sync=disk")
    elif sync == WeightSync.nccl and samples_ahead(config):
        words = "a server that is restarted a step ahead has no weights before the next update: no folder has them"
        yield warning("weight_sync", key, words, "trainer.weight_sync=auto")


@rule_between(Part.trainer, Part.engines)
def shared_memory(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses memory that cannot be shared.

    That is memory which the allocator maps piece by piece, or asks a pool of the driver for.
    """
    setting = unshareable_allocator(host.environment)
    if config.trainer.weight_sync is WeightSync.ipc and setting:
        yield error(
            "shared_memory",
            "trainer.weight_sync",
            f"{setting} in the environment: no other process can open memory that is allocated so",
            f"without it, or trainer.weight_sync={WeightSync.disk}",
        )


@rule_about(Part.trainer)
def check_masks(config: Config, _: Host) -> Iterator[Finding]:
    low = config.algo.mask_low
    high = config.algo.mask_high
    if (low is None) != (high is None):
        key = "algo.mask_low"
        other = "algo.mask_high"
        bound = 0.5
        if high is None:
            key = "algo.mask_high"
            other = "algo.mask_low"
            bound = 2
        yield error("masks", key, f"{other} is set and has no effect alone", f"{key}={bound:g}")
    elif low is not None and high is not None and not 0 <= low < 1 < high:
        yield error("masks", "algo.mask_low", f"ratios lie around 1; [{low:g}, {high:g}] does not", "algo.mask_low=0.5")
    if (low is not None or high is not None) and config.rollout.capture == Capture.retokenize:
        yield error(
            "masks",
            "rollout.capture",
            "has no sampled log-probabilities, which algo.mask_low and algo.mask_high compare",
            "rollout.capture=traced",
        )


@rule_about(Part.trainer)
def kl_used(config: Config, _: Host) -> Iterator[Finding]:
    if config.algo.kl_coef == 0 and config.algo.kl_in == "reward":
        yield warning(
            "kl_unused",
            "algo.kl_in",
            "has no effect with algo.kl_coef=0; no reference model is loaded",
            "algo.kl_coef=0.001, or leave algo.kl_in out",
        )


@rule_about(Part.trainer)
def kl_gradient(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses k1 in the loss.

    The gradient of log policy - log reference is that of log policy, whose mean over the policy's samples is 0.
    """
    algo = config.algo
    if algo.kl_coef > 0 and algo.kl_in == KlPlace.loss and algo.kl_estimator == KlEstimator.k1:
        yield error(
            "kl_gradient",
            "algo.kl_estimator",
            "in the loss, the gradient of k1 is 0 on average: noise that holds the policy near nothing",
            "algo.kl_estimator=k2, k3 (of the KL the other way round), k3_grad_k2, or algo.kl_in=reward",
        )


@rule_about(Part.trainer, Part.warm_start)
def checkpoint_disk(config: Config, _: Host) -> Iterator[Finding]:
    config = trainer_config(config)
    there = config.hardware.disk_gb
    needed = memory.checkpoints_gb(config)
    if 0 < there < needed:
        size_gb = memory.checkpoint_gb(config)
        keep = int(there // size_gb) - 1
        yield error(
            "checkpoint_disk",
            "trainer.keep_checkpoints",
            f"checkpoints of {size_gb:.0f} GB, {memory.checkpoints_on_disk(config)} at once, need {needed:.0f} GB; "
            f"hardware.disk_gb={there:g}",
            (
                f"trainer.keep_checkpoints={keep}"
                if keep >= 1
                else "a larger disk (hardware.disk_gb), or trainer.lora_rank=32"
            ),
        )


@rule_about(Part.trainer, Part.warm_start)
def check_restarts(config: Config, _: Host) -> Iterator[Finding]:
    allowed = config.trainer.max_restarts
    trainer = trainer_config(config).trainer
    if allowed > 0 and trainer.checkpoint_every_steps == 0 and trainer.steps > 1:
        key, often = ("trainer", 1) if reads_key(config, "trainer.checkpoint_every_steps") else ("sft", 500)
        yield warning(
            "restarts",
            "trainer.max_restarts",
            f"every restart begins at the first step: {key}.checkpoint_every_steps=0 saves after the last one only",
            f"{key}.checkpoint_every_steps={often}",
        )


@rule_about(Part.engines)
def external_weights(config: Config, _: Host) -> Iterator[Finding]:
    served = config.engine.served_model
    if config.engine.kind != EngineKind.external and served:
        yield warning(
            "served_model",
            "engine.served_model",
            f"nothing reads it with engine.kind={config.engine.kind}",
            "leave engine.served_model out, or engine=external",
        )
    shares = config.trainer.weight_sync == WeightSync.ipc and reads_key(config, "trainer")
    if config.engine.kind == EngineKind.external and shares:
        yield error(
            "external_sync",
            "trainer.weight_sync",
            "engines that somebody else started share no memory with this trainer",
            "trainer.weight_sync=disk, or nccl where engines have GPUs of their own",
        )


@rule_about(Part.trainer)
def check_warmup(config: Config, _: Host) -> Iterator[Finding]:
    critic_alone = 0
    if config.algo.advantage is AdvantageKind.gae:
        critic_alone = config.algo.critic_warmup_steps
    steps = config.trainer.steps - critic_alone  # the warm-up counts these, however many updates a step has
    if config.trainer.warmup_steps >= steps > 0:
        yield warning(
            "warmup",
            "trainer.warmup_steps",
            f"the policy learns in {steps} steps: the learning rate never reaches trainer.lr",
            f"trainer.warmup_steps={steps // 10}",
        )


@rule_about(Part.trainer, Part.warm_start)
def parallel_only(config: Config, _: Host) -> Iterator[Finding]:
    """Warns of keys that the trainer of one process does not read."""
    trainer = config.trainer
    layout = config.layout
    if layout.trainer_gpus or layout.trainer_ranks:
        return
    for key, value, default in (
        ("trainer.attention", trainer.attention, "auto"),
        ("trainer.compile", bool(trainer.compile), False),
        ("trainer.max_restarts", trainer.max_restarts, 0),
    ):
        if value != default:
            yield warning(
                "parallel_only",
                key,
                f"only a trainer with ranks of its own reads it; layout={layout.name} trains in this process",
                f"{key}={str(default).lower()}, or layout=local2",
            )


@rule_about(Part.trainer, Part.warm_start)
def check_compiled(config: Config, _: Host) -> Iterator[Finding]:
    if config.trainer.compile and config.layout.trainer_gpus and not config.hardware.compiler:
        yield error(
            "compiled",
            "trainer.compile",
            f"torch compiles a trainer's layers with a C compiler, and the nodes of hardware={config.hardware.name} "
            "have none",
            "trainer.compile=null",
        )


@rule_about(Part.warm_start)
def check_device(config: Config, _: Host) -> Iterator[Finding]:
    """Finds a device that ranks do not use, because they have devices of their own."""
    sft = config.sft
    layout = config.layout
    if sft.device != "cpu" and layout.trainer_ranks and not layout.trainer_gpus:
        words = f"layout={layout.name} has {layout.trainer_ranks} ranks, which train on the CPU"
        yield error("sft_device", "sft.device", words, "sft.device=cpu, or a layout with trainer GPUs (layout=dp4)")
    elif sft.device != "cpu" and layout.trainer_gpus:
        words = f"layout={layout.name} has {layout.trainer_gpus} ranks, each on a GPU of its own: nothing reads it"
        yield warning("sft_device", "sft.device", words, "sft.device=cpu")


@rule_about(Part.trainer)
def idle_trainer(config: Config, _: Host) -> Iterator[Finding]:
    layout = config.layout
    trains_somewhere = layout.trainer_gpus or layout.trainer_ranks
    if not trains_somewhere and total_gpus(layout) > 0:
        yield error(
            "no_trainer", "layout.trainer_gpus", "nothing is left to train on", "layout.trainer_gpus=4, or job=rollout"
        )
