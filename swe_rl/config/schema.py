"""The schema: one frozen dataclass per config group, the contract of every override.

Invariants:
- One fact has one key; whatever depends on it interpolates it in conf/.
- Enum members are named exactly as they are written in YAML.
- Standard library only: `--help`, `check` and `plan` import this module.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class JobName(StrEnum):
    train = "train"
    rollout = "rollout"
    eval = "eval"
    sft = "sft"
    check = "check"
    plan = "plan"
    simulate = "simulate"
    compare = "compare"
    prepare = "prepare"
    describe = "describe"


class OutputFormat(StrEnum):
    table = "table"
    json = "json"


@dataclass(frozen=True)
class JobConfig:
    name: JobName = JobName.train
    format: OutputFormat = OutputFormat.table
    strict: bool = False  # warnings count as errors
    preflight: bool = False  # check: also probe this host
    imports: tuple[str, ...] = ()  # check: YAML files of other systems, compared with this configuration
    baseline: str | None = None  # compare: a run's folder, or a log of SkyRL's
    candidate: str | None = None  # compare: the other one
    baseline_label: str | None = None
    candidate_label: str | None = None
    runs: str | None = None  # compare: the folder of a multirun, instead of the two
    trajectories_per_step: int = 396  # compare: of a log of SkyRL's, which does not say it
    output: str | None = None  # compare: folder for its files; None: below paths.outputs
    topic: str | None = None  # describe: a key (rollout.n), a group (rollout) or an option (rollout/swe)


@dataclass(frozen=True)
class ModelConfig:
    name: str = "tiny"
    path: str = "builtin:tiny"  # builtin:NAME, a folder, or a hub id
    revision: str | None = None
    num_layers: int = 6
    hidden_size: int = 128
    intermediate_size: int = 384
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    vocab_size: int = 1536
    params_b: float = 0.0013
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = True
    num_experts: int = 0  # 0: dense
    active_experts: int = 0
    expert_intermediate_size: int = 0
    active_params_b: float = 0.0013  # billions of parameters that one token passes
    rope_theta: float = 10000.0
    chat_template: str = "qwen_plain"
    system_prompt: str = "short"  # the agent's words that the model was made for
    tool_parser: str = "hermes"
    thinking: bool = False
    gated: bool = False  # the hub wants HF_TOKEN for it


@dataclass(frozen=True)
class LayoutConfig:
    name: str = "local"
    engines: int = 1
    engine_tp: int = 1
    trainer_gpus: int = 0
    sequence_parallel: int = 1
    colocated: bool = True


@dataclass(frozen=True)
class RouterConfig:
    name: str = "default"
    acting_token_weight: float = 1.0  # tr: of the tokens of a program whose tool runs
    tick_s: float = 5.0  # tr: between two looks at the engines' load
    acting_half_life_s: float = 0.0  # tr: an acting program's weight halves in this time; 0: it stays
    pause_at: float = 0.95  # tr: share of an engine's tokens above which programs are paused
    resume_at: float = 0.85  # tr: ... up to which paused and new programs are admitted
    max_hold_s: float = 600.0  # cap, tr: no request waits longer
    max_programs_per_engine: int = 0  # cap: programs that one engine serves at once; 0: engine.max_num_seqs


class RewardKind(StrEnum):
    zero_one = "zero_one"
    plus_minus_one = "plus_minus_one"
    fail_to_pass_fraction = "fail_to_pass_fraction"


class GradingKind(StrEnum):
    pytest = "pytest"
    swebench = "swebench"
    eval_script = "eval_script"
    tests = "tests"  # the row's own test file, run by pytest


@dataclass(frozen=True)
class EnvConfig:
    name: str = "bugs"
    dataset: str = "builtin:bugs"  # builtin:NAME, a file, or a hub id
    split: str = "train"
    eval_split: str = "heldout"
    eval_dataset: str | None = None  # None: env.dataset
    num_instances: int = 0  # of the split that is trained on; 0: known only when it is read
    instances: str | None = None  # a file with one instance id a line, or a pattern (django__django-*)
    num_trajectories: int = 8
    reward: RewardKind = RewardKind.zero_one
    image_template: str | None = None  # {instance_id}, {instance_id_s}, {instance_id_1776}; None: each row's own
    eval_image_template: str | None = None  # None: image_template
    image_gb: float = 0.0  # typical size of an image on disk
    grading: GradingKind = GradingKind.pytest
    cache_verdicts: bool = False  # same instance and same patch: same verdict; for deterministic suites only


@dataclass(frozen=True)
class HardwareConfig:
    name: str = "cpu"
    nodes: int = 1
    gpus_per_node: int = 0
    gpu_memory_gb: float = 0.0
    gpu_kind: str = "none"
    gpu_bf16_tflops: float = 0.0  # dense, as published; estimates take a share of it
    gpu_bandwidth_gb_per_s: float = 0.0  # of its memory
    mig: bool = False
    cpus_per_node: int = 2
    memory_gb: float = 4.0
    reserved_cpus: int = 0
    disk_gb: float = 0.0  # free for a run's files and images, on each node; 0: unknown
    compiler: bool = True  # the nodes have a C compiler and headers, which compiled kernels need
    internet: bool = True  # the nodes reach the internet
    shared_paths: tuple[str, ...] = ()  # prefixes of paths that every node sees; none: unknown
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    exclude: str | None = None
    constraint: str | None = None
    time_limit_min: int = 60
    modules: tuple[str, ...] = ()
    env_vars: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AgentConfig:
    name: str = "bash"
    tools: str = "bash"  # pdb: full, rewrite_only or debug_after_5
    command: str | None = None  # qwen_code: how the program is started
    system_prompt: str = "standard"  # a template beside the agent's code
    max_observation_chars: int = 8000  # head and tail are kept
    max_format_errors: int = 3  # in a row


class RuntimeKind(StrEnum):
    none = "none"  # sandboxes run where the training runs
    job = "job"  # a SLURM job of its own, beside the training's
    external = "external"  # somebody else's server: sandbox.runtime_url


@dataclass(frozen=True)
class RuntimeConfig:
    """Where sandboxes run when not beside the trainer: the CPU half of the two-job set-up."""

    kind: RuntimeKind = RuntimeKind.none
    containers: str = "docker"  # of the server: docker or podman
    nodes: int = 1
    cpus_per_node: int = 32
    memory_gb: float = 64.0  # of one node
    reserved_cpus: int = 4  # not for sandboxes
    partition: str | None = None
    time_limit_min: int = 0  # 0: hardware.time_limit_min
    ready_timeout_s: float = 600.0
    shared_dir: str | None = None  # where the two jobs meet; None: paths.outputs


class SandboxKind(StrEnum):
    process = "process"
    docker = "docker"
    podman = "podman"
    apptainer = "apptainer"
    remote = "remote"


class Isolation(StrEnum):
    auto = "auto"  # bubblewrap where it works, else none with one warning
    bubblewrap = "bubblewrap"
    none = "none"


class PullPolicy(StrEnum):
    missing = "missing"
    always = "always"
    never = "never"


@dataclass(frozen=True)
class SandboxConfig:
    kind: SandboxKind = SandboxKind.process
    isolation: Isolation = Isolation.auto  # kind=process only
    cpus: float = 1.0
    memory_gb: float = 1.0
    max_processes: int = 64
    max_file_mb: int = 64
    max_output_bytes: int = 65536
    network: bool = False
    concurrency: int = 4
    runtime_url: str | None = None
    pull: PullPolicy = PullPolicy.missing


class EngineKind(StrEnum):
    embedded = "embedded"
    vllm = "vllm"
    external = "external"


class LogprobsMode(StrEnum):
    processed = "processed"  # of the distribution that was sampled from
    raw = "raw"  # before temperature and truncation


@dataclass(frozen=True)
class EngineConfig:
    kind: EngineKind = EngineKind.embedded
    max_model_len: int = 1024
    gpu_memory_utilization: float = 0.85
    max_num_seqs: int = 64
    enforce_eager: bool = True
    num_threads: int = 1  # embedded: torch's threads while generating
    max_num_batched_tokens: int = 8192  # vllm: of one engine step
    prefix_caching: bool = True  # vllm: a program's earlier turns stay in its engine
    logprobs_mode: LogprobsMode = LogprobsMode.processed
    max_lora_rank: int = 64  # vllm: with trainer.lora_rank
    served_model: str | None = None  # external: the name that the servers know; None: model.path
    urls: tuple[str, ...] = ()
    command: str | None = None  # vllm: how a server is started; None: SWE_RL_VLLM_COMMAND, or what is installed
    kv_cache_tokens: int = 0  # vllm: of one engine; 0: what fits
    extra_arguments: tuple[str, ...] = ()  # vllm: of its command line, after all others
    start_timeout_s: float = 1800.0  # vllm: until a server is healthy
    max_restarts: int = 3  # vllm: of one engine that died, in a run


@dataclass(frozen=True)
class GatewayConfig:
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free port
    max_body_mb: int = 16


class Capture(StrEnum):
    traced = "traced"
    retokenize = "retokenize"


class OutcomeReward(StrEnum):
    """`graded`: what env.reward makes of the verdict; `failure`: the reward of a failed test run; `none`: no reward."""

    graded = "graded"
    failure = "failure"
    none = "none"


@dataclass(frozen=True)
class OutcomeConfig:
    reward: OutcomeReward = OutcomeReward.graded
    trained: bool = True
    in_baseline: bool = True
    retries: int = 0


@dataclass(frozen=True)
class RolloutConfig:
    prompts_per_step: int = 8
    n: int = 8
    max_turns: int = 6
    max_prompt_tokens: int = 512
    max_trajectory_tokens: int = 1024
    max_turn_tokens: int = 96
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    concurrency: int = 64
    capture: Capture = Capture.traced
    agent_timeout_s: float = 120.0
    command_timeout_s: float = 10.0
    grade_timeout_s: float = 60.0
    infra_retries: int = 2
    max_infra_failure_rate: float = 0.2
    eval_n: int = 4
    eval_temperature: float = 1.0
    typical_trajectory_tokens: int = 512  # estimates only: mean length of a trajectory under way
    typical_trajectory_s: float = 5.0  # estimates only: mean time of one trajectory, tools included
    outcomes: dict[str, OutcomeConfig] = field(default_factory=dict)


class Advantage(StrEnum):
    grpo = "grpo"
    dr_grpo = "dr_grpo"
    rloo = "rloo"


class KlPlace(StrEnum):
    loss = "loss"
    reward = "reward"


class KlEstimator(StrEnum):
    k1 = "k1"
    k2 = "k2"
    k3 = "k3"


class LossAggregation(StrEnum):
    token_mean = "token_mean"
    sequence_mean = "sequence_mean"
    sequence_sum_norm = "sequence_sum_norm"  # Dr. GRPO: token sum over algo.loss_norm_tokens


class DynamicSampling(StrEnum):
    none = "none"
    filter = "filter"  # groups of equal rewards are left out
    resample = "resample"  # ... and others sampled in their place


class Correction(StrEnum):
    none = "none"
    token_tis = "token_tis"
    sequence_tis = "sequence_tis"


@dataclass(frozen=True)
class AlgoConfig:
    name: str = "grpo"
    advantage: Advantage = Advantage.grpo
    normalize_std: bool = True
    clip_low: float = 0.2
    clip_high: float = 0.28
    clip_c: float = 0.0  # dual clip for negative advantages; 0: off
    kl_coef: float = 0.0
    kl_in: KlPlace = KlPlace.loss
    kl_estimator: KlEstimator = KlEstimator.k3
    entropy_coef: float = 0.0
    loss_aggregation: LossAggregation = LossAggregation.token_mean
    loss_norm_tokens: int = 1024
    correction: Correction = Correction.none
    correction_cap: float = 2.0
    mask_low: float | None = None  # tokens whose trainer-to-engine ratio lies outside [mask_low, mask_high] are masked
    mask_high: float | None = None
    dynamic_sampling: DynamicSampling = DynamicSampling.none
    overlong_share: float = 0.0  # DAPO: this last share of rollout.max_trajectory_tokens costs reward; 0: off
    overlong_penalty: float = 1.0  # DAPO: at the very end of the budget


class WeightSync(StrEnum):
    auto = "auto"  # disk on the CPU, ipc where colocated, else nccl
    nccl = "nccl"
    ipc = "ipc"
    disk = "disk"


@dataclass(frozen=True)
class TrainerConfig:
    steps: int = 24
    lr: float = 3e-4
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    warmup_steps: int = 0
    prompts_per_mini_batch: int = 8
    max_tokens_per_micro_batch: int = 2048
    grad_clip: float = 1.0
    activation_checkpointing: bool = False
    offload_optimizer: bool = False  # Adam's moments and master weights in the nodes' memory
    lora_rank: int = 0  # 0: all weights are trained
    lora_sync_dir: str | None = None  # where engines find the adapter
    weight_sync: WeightSync = WeightSync.auto
    max_staleness_steps: int = 0  # 0: synchronous
    collective_timeout_s: float = 1800.0  # how long a rank waits for the others
    num_threads: int = 1
    checkpoint_every_steps: int = 5
    keep_checkpoints: int = 2
    eval_every_steps: int = 0  # 0: before the first and after the last step only
    resume: str = "none"  # auto, none, or a run folder
    seed: int = 0


@dataclass(frozen=True)
class SftConfig:
    """Warm start on scripted demonstrations (`job=sft`): first the skill, then a beginner's careless habits."""

    steps: int = 5000
    lr: float = 2e-3
    warmup_steps: int = 50
    tokens_per_batch: int = 4096
    beginner_steps: int = 150
    beginner_lr: float = 3e-4
    right_fraction: float = 0.5  # of the beginner's demonstrations
    device: str = "cpu"  # where torch trains: cpu, cuda
    seed: int = 0
    output: str = "${paths.outputs}/sft/${model.name}"


class WandbMode(StrEnum):
    online = "online"
    offline = "offline"
    disabled = "disabled"


@dataclass(frozen=True)
class LoggerConfig:
    wandb: WandbMode = WandbMode.disabled
    project: str = "swe_rl"


@dataclass(frozen=True)
class PathsConfig:
    outputs: str = "outputs"
    scratch: str | None = None  # None: a temporary folder
    cache: str | None = None  # None: the user's cache folder
    sync_to: str | None = None


@dataclass(frozen=True)
class Config:
    """The whole run. `name` is the experiment's or else the job's; it names the folder under `paths.outputs`."""

    name: str = "train"
    job: JobConfig = field(default_factory=JobConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    layout: LayoutConfig = field(default_factory=LayoutConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
