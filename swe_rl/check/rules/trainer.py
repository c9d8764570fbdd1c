"""Rules of the trainer beside its batch arithmetic: LoRA, asynchrony, weight update, checkpoints and their disk.

Invariants:
- What a layout makes impossible is an error; what merely wastes time is a warning.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, about, between, error, warning
from swe_rl.config.choices import (
    Advantage,
    Capture,
    Correction,
    DynamicSampling,
    EngineKind,
    ExtensionKind,
    KlEstimator,
    KlPlace,
    LoraServing,
    RolloutMode,
    RoutingReplay,
    WeightSync,
)
from swe_rl.config.parts import Part, reads, starts
from swe_rl.config.schema import Config
from swe_rl.extension.find import declared
from swe_rl.plan import memory
from swe_rl.plan.sizes import (
    SERVED_LORA_RANKS,
    samples_ahead,
    serves_adapter,
    shares_gpus,
    takes_turns,
    total_gpus,
    unshareable,
    uses_no_gpu,
)
from swe_rl.plan.warm_start import trained


@about(Part.trainer, Part.warm_start)
def lora(config: Config, _: Host) -> Iterator[Finding]:
    trainer, model = config.trainer, config.model
    rank, key = trainer.lora_rank, "trainer.lora_rank"
    if rank == 0 and trainer.lora_serving is LoraServing.adapter and reads(config, "trainer.lora_serving"):
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
    if Part.engines in starts(config):
        yield from _served(config)
    if trainer.offload_optimizer:
        yield warning(
            "lora_offload",
            "trainer.offload_optimizer",
            "has no effect with trainer.lora_rank > 0: an adapter's optimizer state is small and stays on the GPU",
            "trainer.offload_optimizer=false",
        )


def _served(config: Config) -> Iterator[Finding]:
    """An adapter beside the base needs a server that keeps the base, and a folder for the way of the adapter."""
    trainer, key, merged = config.trainer, "trainer.lora_serving", "trainer.lora_serving=merged"
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


@about(Part.trainer)
def streaming(config: Config, _: Host) -> Iterator[Finding]:
    """Groups that flow go on under new weights, so engines cannot leave their GPUs to the trainer."""
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


@about(Part.trainer)
def asynchrony(config: Config, _: Host) -> Iterator[Finding]:
    stale, streams = config.trainer.max_staleness_steps, config.rollout.mode is RolloutMode.stream
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
    key = "algo.correction" if config.algo.stale_correction is None else "algo.stale_correction"
    if Correction.none == (config.algo.stale_correction or config.algo.correction) and not _masks(config):
        yield warning(
            "staleness_correction",
            key,
            f"tokens up to {stale} steps old are trained as if the present policy had sampled them",
            f"{key}=token_tis",
        )


@between(Part.trainer, Part.engines)
def routing_replay(config: Config, _: Host) -> Iterator[Finding]:
    """Tokens that are to go where the engine sent them need experts, and have to be the engine's.

    Whether somebody else's server tells, its probe asks. vLLM on a CPU: the experts are chosen inside of the kernel
    (`is_monolithic` of `unquantized_fused_moe_method.py`, 0.26); 0.32 does not start (`config/vllm.py`,
    `_verify_aux_output_compatibility`), and so it is without cached prefixes.
    """
    mode, key, off = config.trainer.routing_replay, "trainer.routing_replay", "trainer.routing_replay=none"
    if mode is RoutingReplay.none:
        return
    if not config.model.num_experts:
        yield error("routing_replay", key, f"model={config.model.name} is dense: it has no experts to choose", off)
    elif config.rollout.capture is Capture.retokenize:
        why = "rows that are rendered anew have other tokens than the engine sent to its experts"
        yield error("routing_replay", "rollout.capture", why, f"rollout.capture=traced, or {off}")
    elif config.engine.kind is EngineKind.vllm and uses_no_gpu(config.layout):
        why = f"layout={config.layout.name} has no GPU, and vLLM tells only on GPUs which experts it chooses"
        yield error("routing_replay", key, why, f"engine=embedded, or {off}")
    elif config.engine.kind is EngineKind.vllm and not config.engine.prefix_caching:
        why = "vLLM 0.32 tells experts only where it caches prefixes, and does not start otherwise (0.26 starts)"
        yield warning("routing_replay", "engine.prefix_caching", why, f"engine.prefix_caching=true, or {off}")


@about(Part.trainer)
def balance(config: Config, _: Host) -> Iterator[Finding]:
    if config.algo.balance_coef > 0 and not config.model.num_experts:
        words = f"model={config.model.name} is dense: it has no experts to spread tokens over"
        yield error("balance", "algo.balance_coef", words, "algo.balance_coef=0")


@between(Part.trainer, Part.engines)
def weight_sync(config: Config, _: Host) -> Iterator[Finding]:
    sync, layout, hardware = config.trainer.weight_sync, config.layout, config.hardware
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


@between(Part.trainer, Part.engines)
def shared_memory(config: Config, host: Host) -> Iterator[Finding]:
    """Memory that the trainer's allocator maps piece by piece, or asks a pool of the driver for, cannot be shared."""
    setting = unshareable(host.environment)
    if config.trainer.weight_sync is WeightSync.ipc and setting:
        yield error(
            "shared_memory",
            "trainer.weight_sync",
            f"{setting} in the environment: no other process can open memory that is allocated so",
            f"without it, or trainer.weight_sync={WeightSync.disk}",
        )


def weighs(config: Config) -> bool:
    """Whether tokens are weighed or masked by the engine's log-probabilities, as algo/correction.py and losses say."""
    return bool({config.algo.correction, config.algo.stale_correction} - {None, Correction.none}) or _masks(config)


def _masks(config: Config) -> bool:
    """Of fresh and stale tokens alike; a loss of somebody's own may."""
    bounded = config.algo.mask_low is not None or config.algo.mask_high is not None
    return bounded or bool(declared(config, ExtensionKind.loss, "needs_rollout_logprobs"))


@about(Part.trainer)
def log_probabilities(config: Config, _: Host) -> Iterator[Finding]:
    """Such weights need the log-probabilities of the distribution that was sampled from."""
    truncated = config.rollout.temperature != 1.0 or config.rollout.top_p != 1.0 or config.rollout.top_k > 0
    if weighs(config) and config.engine.logprobs_mode == "raw" and truncated:
        yield error(
            "logprobs_mode",
            "engine.logprobs_mode",
            "log-probabilities before temperature and truncation are not those of the tokens as they were sampled",
            "engine.logprobs_mode=processed",
        )


@about(Part.trainer)
def masks(config: Config, _: Host) -> Iterator[Finding]:
    low, high = config.algo.mask_low, config.algo.mask_high
    if (low is None) != (high is None):
        key = "algo.mask_high" if high is None else "algo.mask_low"
        other = "algo.mask_low" if high is None else "algo.mask_high"
        yield error("masks", key, f"{other} is set and has no effect alone", f"{key}={2 if high is None else 0.5}")
    elif low is not None and high is not None and not 0 <= low < 1 < high:
        yield error("masks", "algo.mask_low", f"ratios lie around 1; [{low:g}, {high:g}] does not", "algo.mask_low=0.5")
    if (low is not None or high is not None) and config.rollout.capture == Capture.retokenize:
        yield error(
            "masks",
            "rollout.capture",
            "has no sampled log-probabilities, which algo.mask_low and algo.mask_high compare",
            "rollout.capture=traced",
        )


@about(Part.trainer)
def kl_used(config: Config, _: Host) -> Iterator[Finding]:
    if config.algo.kl_coef == 0 and config.algo.kl_in == "reward":
        yield warning(
            "kl_unused",
            "algo.kl_in",
            "has no effect with algo.kl_coef=0; no reference model is loaded",
            "algo.kl_coef=0.001, or leave algo.kl_in out",
        )


@about(Part.trainer)
def kl_gradient(config: Config, _: Host) -> Iterator[Finding]:
    """The gradient of log policy - log reference is that of log policy, whose mean over the policy's samples is 0."""
    algo = config.algo
    if algo.kl_coef > 0 and algo.kl_in == KlPlace.loss and algo.kl_estimator == KlEstimator.k1:
        yield error(
            "kl_gradient",
            "algo.kl_estimator",
            "in the loss, the gradient of k1 is 0 on average: noise that holds the policy near nothing",
            "algo.kl_estimator=k2, or k3, or algo.kl_in=reward",
        )


@about(Part.trainer, Part.warm_start)
def checkpoint_disk(config: Config, _: Host) -> Iterator[Finding]:
    config = trained(config)
    there, needed = config.hardware.disk_gb, memory.checkpoints_gb(config)
    if 0 < there < needed:
        size_gb = memory.checkpoint_gb(config)
        keep = int(there // size_gb) - 1
        yield error(
            "checkpoint_disk",
            "trainer.keep_checkpoints",
            f"checkpoints of {size_gb:.0f} GB, {memory.checkpoints(config)} at once, need {needed:.0f} GB; "
            f"hardware.disk_gb={there:g}",
            (
                f"trainer.keep_checkpoints={keep}"
                if keep >= 1
                else "a larger disk (hardware.disk_gb), or trainer.lora_rank=32"
            ),
        )


@about(Part.trainer, Part.warm_start)
def restarts(config: Config, _: Host) -> Iterator[Finding]:
    allowed, trainer = config.trainer.max_restarts, trained(config).trainer
    if allowed > 0 and trainer.checkpoint_every_steps == 0 and trainer.steps > 1:
        key, often = ("trainer", 1) if reads(config, "trainer.checkpoint_every_steps") else ("sft", 500)
        yield warning(
            "restarts",
            "trainer.max_restarts",
            f"every restart begins at the first step: {key}.checkpoint_every_steps=0 saves after the last one only",
            f"{key}.checkpoint_every_steps={often}",
        )


@about(Part.engines)
def external_weights(config: Config, _: Host) -> Iterator[Finding]:
    served = config.engine.served_model
    if config.engine.kind != EngineKind.external and served:
        yield warning(
            "served_model",
            "engine.served_model",
            f"nothing reads it with engine.kind={config.engine.kind}",
            "engine=external",
        )
    shares = config.trainer.weight_sync == WeightSync.ipc and reads(config, "trainer")
    if config.engine.kind == EngineKind.external and shares:
        yield error(
            "external_sync",
            "trainer.weight_sync",
            "engines that somebody else started share no memory with this trainer",
            "trainer.weight_sync=nccl, or disk",
        )


@about(Part.trainer)
def warmup(config: Config, _: Host) -> Iterator[Finding]:
    critic_alone = config.algo.critic_warmup_steps if config.algo.advantage is Advantage.gae else 0
    steps = config.trainer.steps - critic_alone  # what the warm-up counts, however many updates a step has
    if config.trainer.warmup_steps >= steps > 0:
        yield warning(
            "warmup",
            "trainer.warmup_steps",
            f"the policy learns in {steps} steps: the learning rate never reaches trainer.lr",
            f"trainer.warmup_steps={steps // 10}",
        )


@about(Part.trainer, Part.warm_start)
def parallel_only(config: Config, _: Host) -> Iterator[Finding]:
    """Keys that the trainer of one process does not read."""
    trainer, layout = config.trainer, config.layout
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


@about(Part.trainer, Part.warm_start)
def compiled(config: Config, _: Host) -> Iterator[Finding]:
    if config.trainer.compile and config.layout.trainer_gpus and not config.hardware.compiler:
        yield error(
            "compiled",
            "trainer.compile",
            f"torch compiles a trainer's layers with a C compiler, and the nodes of hardware={config.hardware.name} "
            "have none",
            "trainer.compile=null",
        )


@about(Part.warm_start)
def device(config: Config, _: Host) -> Iterator[Finding]:
    """Ranks have devices of their own."""
    sft, layout = config.sft, config.layout
    if sft.device != "cpu" and layout.trainer_ranks and not layout.trainer_gpus:
        words = f"layout={layout.name} has {layout.trainer_ranks} ranks, which train on the CPU"
        yield error("sft_device", "sft.device", words, "sft.device=cpu, or a layout with trainer GPUs (layout=dp4)")
    elif sft.device != "cpu" and layout.trainer_gpus:
        words = f"layout={layout.name} has {layout.trainer_gpus} ranks, each on a GPU of its own: nothing reads it"
        yield warning("sft_device", "sft.device", words, "sft.device=cpu")


@about(Part.trainer)
def idle_trainer(config: Config, _: Host) -> Iterator[Finding]:
    layout = config.layout
    trains_somewhere = layout.trainer_gpus or layout.trainer_ranks
    if not trains_somewhere and total_gpus(layout) > 0:
        yield error(
            "no_trainer", "layout.trainer_gpus", "nothing is left to train on", "layout.trainer_gpus=4, or job=rollout"
        )
