"""The schema is the contract of every override: one frozen dataclass per config group.

Invariants:
- One fact has one key; whatever depends on it interpolates it in conf/.
- Standard library only: `--help`, `check` and `plan` import this module.
"""

from dataclasses import dataclass, field
from typing import Any

from swe_rl.config.choices import (
    AdvantageKind,
    Capture,
    CompactionKind,
    CompareFigures,
    Correction,
    DynamicSampling,
    EndpointDialect,
    EngineKind,
    ExportType,
    GradingKind,
    ImagesAction,
    InstanceChoice,
    Isolation,
    JobName,
    Keep,
    KeepTraces,
    KlEstimator,
    KlPlace,
    LogprobsMode,
    LoraServing,
    LossAggregation,
    LrSchedule,
    MaskLevel,
    MinedTasks,
    NewKind,
    Objective,
    OptimizerState,
    OutcomeReward,
    OutputFormat,
    PolicyLoss,
    PullPolicy,
    RewardKind,
    RolloutMode,
    RoutingReplay,
    RuntimeKind,
    RuntimeProtocol,
    SandboxKind,
    TrickPolicy,
    Unproven,
    Verbosity,
    WandbMode,
    WeightSync,
)
from swe_rl.config.ranges import (
    AtLeastOne,
    BelowOne,
    Count,
    EndSeconds,
    GpuShare,
    Machines,
    MachinesOrNone,
    Minutes,
    NotNegative,
    OfAll,
    OrAboveOne,
    PartOfMachine,
    Penalty,
    Port,
    Positive,
    Reward,
    Seconds,
    SecondsFromOne,
    SecondsOrZero,
    Seed,
    Share,
    ZeroOrMore,
)


@dataclass(frozen=True)
class Extensible:
    """Marks a group whose options may name code of your own: docs/extending.md."""

    name: str = "default"  # default, or the name of an option with code of your own
    _target_: str | None = None  # a class or function of your own: my_pkg.agents.MyAgent; None: what `name` says
    params: dict[str, Any] = field(default_factory=dict)  # its own keys, as its signature has them


@dataclass(frozen=True)
class RewardConfig(Extensible):
    """Decides what pays a graded trajectory: `default` is env.reward, anything else is code of your own."""


@dataclass(frozen=True)
class AdvantageConfig(Extensible):
    """Decides how rewards become advantages: `default` is algo.advantage, anything else is code of your own."""


@dataclass(frozen=True)
class LossConfig(Extensible):
    """Decides the loss of a token: `default` is algo.policy_loss, anything else is code of your own."""


@dataclass(frozen=True)
class GraderConfig(Extensible):
    """Decides who judges a change: `default` is env.grading, anything else is code of your own."""


@dataclass(frozen=True)
class RuleConfig(Extensible):
    """Decides what is refused beside what swe_rl refuses: `default` is nothing, anything else is code of your own."""


@dataclass(frozen=True)
class JobConfig:
    """Says what `python -m swe_rl` does. The other keys belong to one kind of job only."""

    name: JobName = JobName.train  # what is done: train, eval, check, ...
    of: JobName = JobName.train  # check, plan: the job that they answer for
    format: OutputFormat = OutputFormat.table  # how check, plan and compare print: a table for people, or JSON
    strict: bool = False  # warnings count as errors
    preflight: bool = False  # check: also probe this host
    baseline: str | None = None  # compare: a run's folder, its job's number in SLURM, or a log of SkyRL's
    candidate: str | None = None  # compare: the other one
    baseline_label: str | None = None  # compare: its name in the table; None: chosen from what differs
    candidate_label: str | None = None  # compare: the same of the other one
    figures: CompareFigures = CompareFigures.auto  # compare: learning (reward, held-out), throughput, or what runs do
    runs: str | None = None  # compare, status, logs: of a multirun; None: the newest; view: of runs; export: a run's
    port: Port = 0  # view: where the page is on this machine; 0: any free one
    trajectories_per_step: Count = 396  # compare: of a log of SkyRL's, which does not say it
    output: str | None = None  # compare, export, new: where the result goes: a folder, a file; None: a default
    checkpoint: str | None = None  # export: a folder (RUN/checkpoints/step_000010), or a run's, whose newest is taken
    push: str | None = None  # export: ORG/NAME on the Hugging Face hub, for the model; its attempts: NAME-trajectories
    dtype: ExportType = ExportType.model  # export: of the weights: model (as before training), bfloat16 or float32
    images_action: ImagesAction = ImagesAction.list  # images: list, check or pull
    topic: str | None = None  # describe: a key (rollout.n), a group (rollout) or an option (rollout/swe)
    dry_run: bool = False  # write and print the batch scripts, submit nothing; export: write what would be pushed
    detach: bool = False  # return once the jobs are submitted
    number: ZeroOrMore | None = None  # logs: of this job alone, counted from 0
    lines: ZeroOrMore = 20  # logs: the last so many of each job
    follow: bool = False  # status, logs: go on until all jobs have ended, or Ctrl-C
    end_within_s: EndSeconds = 10.0  # after SIGTERM or Ctrl-C the process has ended; what is not saved by then is lost
    objective: Objective | None = None  # the figure of summary.json that the job returns, for sweepers that optimize
    repeat: ZeroOrMore = 0  # --multirun: job.repeat=0,1,2,3 runs each variant four times, in turn forwards and back
    workload_from: str | None = None  # simulate, plan: a run's folder; its last steps instead of rollout.workload
    code: tuple[str, ...] = ()  # folders that your own packages are in: they come along to wherever the job runs
    kind: NewKind = NewKind("agent")  # new: a class of this kind, a package of five, a task, a tiny model
    repository: str = "."  # new, kind=task: a folder with a git repository, or its address; no password in it
    commits: str | None = None  # new, kind=task: BASE..HEAD, or one commit; of a merge all that it brought
    statement: str | None = None  # new, kind=task: a file that says what is wrong; None: the commits' messages
    tests: tuple[str, ...] = ()  # new, kind=task: patterns of test files (checks/*.py), instead of the usual names
    test_command: str = "pytest -rA"  # new, kind=task: how tests are run; the change's test files follow it
    setup: str = ""  # new, kind=task: bash that changes the environment once the repository is installed
    packages: tuple[str, ...] = ()  # new, kind=task: packages that tests need beyond those that the repository names
    python: str | None = None  # new, kind=task: the version that tests run with, as 3.11; None: this one
    think_s: SecondsOrZero = 0.0  # rollout: the engines idle so long between two steps, as if there were training


@dataclass(frozen=True)
class ModelConfig:
    """Describes the policy: where its weights are, its dimensions, and how it speaks."""

    name: str = "tiny"  # of the option; in tables and labels
    path: str = "builtin:tiny"  # builtin:NAME, a folder, or a hub id
    revision: str | None = None  # of a hub id: a commit, for a run that can be repeated
    num_layers: Count = 6  # transformer layers
    hidden_size: Count = 128  # width of the residual stream
    intermediate_size: Count = 384  # width of a dense MLP
    num_heads: Count = 4  # attention heads of queries
    num_kv_heads: Count = 2  # attention heads of keys and values
    head_dim: Count = 32  # width of a head
    vocab_size: Count = 1536  # rows of the embedding, padding included
    params_b: Positive = 0.0013  # billions of parameters
    max_position_embeddings: Count = 2048  # tokens that the model was made for
    tie_word_embeddings: bool = True  # embedding and output head are one matrix
    num_experts: ZeroOrMore = 0  # 0: dense
    active_experts: ZeroOrMore = 0  # experts that one token passes, of num_experts
    expert_intermediate_size: ZeroOrMore = 0  # width of the MLP of one expert
    active_params_b: Positive = 0.0013  # billions of parameters that one token passes
    rope_theta: Positive = 10000.0  # base of the rotary positions
    chat_template: str = "qwen_plain"  # qwen, qwen_plain or qwen_coder: of swe_rl/templates; own: the model's own
    system_prompt: str = "short"  # the agent's words that the model was made for
    tool_parser: str = "hermes"  # hermes (JSON), qwen3_coder (tags), own (as chat_template writes them) or none
    thinking: bool = False  # the chat template opens a thinking block for each reply
    keep_sampled: bool = False  # own: earlier turns stay as sampled where the template rewrites them; else they break
    gated: bool = False  # the hub wants HF_TOKEN for it
    float32_head: bool = True  # GPUs: engines and trainer sum logits in float32; false: in bfloat16, as the layers


@dataclass(frozen=True)
class LayoutConfig:
    """Says how many engines and trainer ranks there are, and which GPUs each of them has."""

    name: str = "local"  # of the option; in tables and labels
    engines: Machines = 1  # copies of the model that sample
    engine_tp: Machines = 1  # GPUs of one engine (tensor parallel)
    trainer_gpus: MachinesOrNone = 0  # GPUs that train; with colocated these are those of the engines
    trainer_ranks: MachinesOrNone = 0  # without trainer GPUs: processes of this host's CPU that train; 0: this process
    sequence_parallel: Machines = 1  # trainer GPUs that share one sequence
    expert_parallel: Machines = 1  # trainer ranks that share the experts of a mixture; tokens go to their experts
    shard_ranks: Machines | None = None  # neighbouring trainer ranks that have all parameters once; None: all ranks
    colocated: bool = True  # engines and trainer take turns on the same devices


@dataclass(frozen=True)
class RouterConfig(Extensible):
    """Decides which engine serves the next turn of a program, and which programs wait."""

    name: str = "default"  # the policy: default, cap, sticky_least_loaded, tr, or code of your own
    acting_token_weight: Share = 1.0  # tr: of the tokens of a program whose tool runs
    tick_s: Seconds = 5.0  # tr: between two looks at the engines' load
    acting_half_life_s: SecondsOrZero = 0.0  # tr: an acting program's weight halves in this time; 0: it stays
    pause_at: OfAll = 0.95  # tr: share of an engine's tokens above which programs are paused
    resume_at: OfAll = 0.85  # tr: ... up to which paused and new programs are admitted
    lease_s: SecondsOrZero = 8.0  # tr: idle for longer, a program makes room for one that waits
    ageing_turns_per_s: NotNegative = 0.05  # tr: so much further behind a waiting program counts; fewest turns go first
    max_hold_s: Seconds = 600.0  # cap, tr: no request waits longer
    max_programs_per_engine: ZeroOrMore = 0  # cap: programs that one engine serves at once; 0: engine.max_num_seqs


@dataclass(frozen=True)
class InstancesConfig(Extensible):
    """Describes instances: where they come from, how they are split, and how they are graded."""

    name: str = "bugs"  # of the option; decides how rows become instances
    dataset: str = "builtin:bugs"  # builtin:NAME, a .jsonl or .parquet file, or a hub id
    split: str = "train"  # of hub data sets also a slice, train[1000:]
    eval_split: str = "heldout"  # the split that evaluations measure
    eval_dataset: str | None = None  # None: env.dataset
    columns: dict[str, str] = field(default_factory=dict)  # of rows with other names: {problem_statement: issue}
    eval_columns: dict[str, str] = field(default_factory=dict)  # the same of env.eval_dataset, if that is another one
    scripts: str | None = None  # of SWE-bench Pro: the folder run_scripts of its repository
    issues: str | None = None  # a file of written issues, for rows without one; job=prepare with an endpoint adds some
    issue_words: ZeroOrMore = 0  # issues: a row's own text of fewer words is replaced; 0: only an empty one
    num_instances: ZeroOrMore = 0  # of the split that is trained on; 0: known only when it is read
    instances: str | None = None  # a file with one instance id a line, or a pattern (django__django-*)
    instance_ids: tuple[str, ...] = ()  # the instances themselves, [a, b]; none: all that env.instances leaves
    revision: str | None = None  # the hub's commit or branch of env.dataset; None: the newest, or the cached one
    max_tests: ZeroOrMore = 0  # instances with more tests than this are left out; 0: no limit
    probe: str | None = None  # a former run's folder: instances are chosen by how it solved them
    keep: tuple[Keep, ...] = (Keep.mixed,)  # probe: solved always, in a mixed way, or never
    num_trajectories: Count = 8  # rollout.n by the name that other systems use; it follows rollout.n
    reward: RewardKind = RewardKind.zero_one  # how a verdict becomes a number; zero_one: 1 where resolved, else 0
    image_template: str | None = None  # {instance_id}, {instance_id_s}, {instance_id_1776}; None: each row's own
    eval_image_template: str | None = None  # None: image_template
    image_gb: NotNegative = 0.0  # typical size of an image on disk
    grading: GradingKind = GradingKind.pytest  # who reads what the tests say
    unproven: Unproven = Unproven.skip  # instances whose gold patch fails here: left out, refused, or kept
    proofs: str | None = None  # the file of proofs that jobs read and job=prepare adds to; None: in the cache
    proof_runs: Count = 1  # how often a proof runs the gold patch; with several, flaky tests are named
    min_strength: Share = 0.0  # instances whose tests reject a smaller share of wrong patches are left out; 0: none
    mutants: ZeroOrMore = 10  # job=validate: how many mutants of a gold patch are graded; 0: nothing is measured
    mutants_cpu_s: Seconds = 60.0  # job=validate: after so much CPU no further wrong patch of an instance is graded
    siblings: str | None = None  # job=validate: a folder of earlier runs; patches that failed there are graded as well
    cache_verdicts: bool = False  # same instance and same patch: same verdict; for deterministic suites only


@dataclass(frozen=True)
class MixPartConfig(InstancesConfig):
    """Describes one part of a mix: an environment, and how often groups are of its instances."""

    weight: NotNegative = 1.0  # of the groups, as a share of all weights; 0: the part is evaluated and never trained


@dataclass(frozen=True)
class EnvConfig(InstancesConfig):
    """Describes the environment of a run: one, or a mix of several."""

    mix: dict[str, MixPartConfig] = field(default_factory=dict)  # env=mix: its environments, by names that you give


@dataclass(frozen=True)
class HardwareConfig:
    """Describes the machine or the cluster's nodes that the run has."""

    name: str = "cpu"  # of the option; in tables and labels
    nodes: Machines = 1  # hosts of the run
    gpus_per_node: MachinesOrNone = 0  # GPUs of each node; 0: the run uses no GPU
    gpu_memory_gb: NotNegative = 0.0  # of one GPU
    gpu_kind: str = "none"  # as people and SLURM name it: h100, a100, ...
    gpu_bf16_tflops: NotNegative = 0.0  # dense, as published; estimates take a share of it
    gpu_bandwidth_gb_per_s: NotNegative = 0.0  # of its memory
    mig: bool = False  # the GPUs are MIG slices: a process sees one, and there is no NCCL between them
    cpus_per_node: Machines = 2  # cores that the run may use on each node
    memory_gb: PartOfMachine = 4.0  # host memory that the run may use on each node
    reserved_cpus: ZeroOrMore = 0  # not for sandboxes
    disk_gb: NotNegative = 0.0  # free for a run's files and images, on each node; 0: unknown
    compiler: bool = True  # the nodes have a C compiler and headers, which compiled kernels need
    internet: bool = True  # the nodes reach the internet
    shared_paths: tuple[str, ...] = ()  # prefixes of paths that every node sees; none: unknown
    ray_address: str | None = None  # your Ray cluster, for the trainer's ranks: auto, or host:port of its head
    partition: str | None = None  # of SLURM: the partition
    account: str | None = None  # of SLURM: who pays
    qos: str | None = None  # of SLURM: the quality of service
    exclude: str | None = None  # of SLURM: nodes that are not wanted
    constraint: str | None = None  # of SLURM: features that a node must have
    gres: str | None = None  # instead of gpus_per_node, where a kind has to be named: gpu:nvidia_a100_1g.5gb:2
    time_limit_min: Minutes = 60  # 0: no limit
    max_requeues: ZeroOrMore = 4  # a job that is told to end early asks for so many further starts
    modules: tuple[str, ...] = ()  # loaded by a batch job before anything else
    setup: tuple[str, ...] = ()  # shell commands of a batch job, after the modules
    env_vars: dict[str, str] = field(default_factory=dict)  # for the job's processes: +hardware.env_vars.NAME=value


@dataclass(frozen=True)
class DelegateConfig:
    """Lets the policy hand parts of its task to sub-agents: docs/long_horizons.md."""

    depth: ZeroOrMore = 0  # bash: 1: the agent has sub-agents, 2: these have sub-agents, too; 0: there is none
    max_calls: Count = 4  # sub-agents of one attempt
    max_turns: ZeroOrMore = 0  # of one sub-agent, at most rollout.max_turns; 0: as many
    trained: bool = True  # false: what sub-agents sampled is not trained


@dataclass(frozen=True)
class AgentConfig(Extensible):
    """Chooses the program that turns the policy's replies into commands."""

    name: str = "bash"  # who acts: a class of swe_rl/agent, a program, or code of your own
    tools: str = "bash"  # pdb: full, rewrite_only or debug_after_5; mini_swe: bash or bash_calls
    command: str | None = None  # programs: the program, as bash starts it in the sandbox
    program_path: str | None = None  # programs: folders of the sandbox that its PATH begins with
    env_vars: dict[str, str] = field(default_factory=dict)  # programs: the program's own
    exit_codes: dict[str, str] = field(default_factory=dict)  # programs: exit status to submitted, step_limit, ...
    predictions: str | None = None  # agent=predictions: the file of patches that job=eval grades
    system_prompt: str = "standard"  # of SYSTEM_PROMPTS in swe_rl/agent/prompts.py, or the agent's own
    max_observation_chars: Count = 8000  # head and tail are kept
    max_format_errors: Count = 3  # in a row
    debug_entrypoint: str = "python -m pdb -m pytest -q"  # pdb: what is debugged where the model names nothing
    delegate: DelegateConfig = field(default_factory=DelegateConfig)


@dataclass(frozen=True)
class RuntimeConfig:
    """Says where sandboxes run if not beside the trainer: the CPU half of the two-job set-up."""

    kind: RuntimeKind = RuntimeKind.none  # none: here; job: a SLURM job of its own; external: a running server
    containers: str = "docker"  # of the server: docker, podman, apptainer or process
    nodes: Machines = 1  # each is a job of its own
    node: MachinesOrNone = 0  # job=runtime: which of them this server is
    cpus_per_node: Machines = 32  # cores of one node for sandboxes
    memory_gb: PartOfMachine = 64.0  # of one node
    reserved_cpus: ZeroOrMore = 4  # not for sandboxes
    partition: str | None = None  # of SLURM, for the servers' jobs
    qos: str | None = None  # of SLURM, for the servers' jobs
    setup: tuple[str, ...] = ()  # shell commands of its batch job, after those of hardware: starting podman's service
    time_limit_min: Minutes = 0  # 0: hardware.time_limit_min
    ready_timeout_s: Seconds = 600.0  # from the start of a server's job until it serves; the queue's time is not in it
    shared_dir: str | None = None  # the folder where the jobs meet; None: one beside the run's folder
    host: str | None = None  # address that the server listens on; None: its node's in a SLURM job, else loopback
    port: Port = 0  # 0: any free one
    heartbeat_s: Seconds = 5.0  # between two signs of life of either side
    lease_s: Seconds = 40.0  # without a sign of life for so long, the other side is gone
    max_restarts: ZeroOrMore = 3  # of a server that is gone, in a row


@dataclass(frozen=True)
class SandboxConfig(Extensible):
    """Says where an agent's commands run, and what bounds them. `default` is what `kind` says."""

    kind: SandboxKind = SandboxKind.process  # process, docker, podman, apptainer, remote, or custom: code of your own
    isolation: Isolation = Isolation.auto  # kind=process only: auto, bubblewrap or none
    cpus: PartOfMachine = 1.0  # of one sandbox
    memory_gb: PartOfMachine = 1.0  # limit of one sandbox
    max_processes: Count = 64  # limit of one sandbox
    max_file_mb: Count = 64  # limit of one file that a command writes
    max_output_bytes: Count = 65536  # of one command; the middle is left out
    network: bool = False  # commands reach the network; false: they reach nothing but the gateway
    concurrency: Count = 4  # commands running at once
    runtime_url: str | None = None  # kind=remote: the sandbox server
    runtime_protocol: RuntimeProtocol = RuntimeProtocol.swe_rl  # kind=remote: what the server speaks, or openhands
    runtime_key_env: str = "SWE_RL_RUNTIME_KEY"  # kind=remote: the variable that holds the server's key
    host: str | None = None  # docker, podman: the engine's address; None: DOCKER_HOST, then the usual sockets
    image: str | None = None  # containers: the base image that a prepared folder is copied into
    mounts: tuple[str, ...] = ()  # FOLDER:PATH of the machine that runs commands, read-only; FOLDER:PATH:rw writable
    disk_gb: NotNegative = 0.0  # what one may write; 0: no limit
    warm_pool: ZeroOrMore = 0  # containers kept ready of each image in use
    start_concurrency: Count = 8  # sandboxes being started at once
    start_timeout_s: Seconds = 120.0  # of one container, without its image's pull; of one sandbox of your own
    lease_s: Seconds = 600.0  # a container that hears nothing from its run for so long ends by itself
    pull: PullPolicy = PullPolicy.missing  # images: missing, always or never
    pull_concurrency: Count = 2  # images at once from one registry
    pull_retries: ZeroOrMore = 4  # of one image, with growing pauses


@dataclass(frozen=True)
class EngineConfig:
    """Describes the inference engines."""

    # embedded: in this process; vllm: servers of the run; external: running servers; endpoint: an API of text
    kind: EngineKind = EngineKind.embedded  # embedded, vllm, external or endpoint
    max_model_len: Count = 1024  # tokens of a prompt and its reply
    gpu_memory_utilization: GpuShare = 0.85  # share of each GPU's memory
    max_num_seqs: Count = 64  # sequences decoded together
    enforce_eager: bool = True  # vLLM without CUDA graphs: starts sooner, samples slower
    num_threads: Count = 1  # embedded: torch's threads while generating
    max_num_batched_tokens: Count = 8192  # vllm: of one engine step
    prefix_caching: bool = True  # vllm: a program's earlier turns stay in its engine
    # Over which tokens servers report log-probabilities. whole: all of them, at the temperature, as the trainer does;
    # processed: those that top_p, top_k and min_p kept; raw: all of them at temperature 1.
    logprobs_mode: LogprobsMode = LogprobsMode.whole  # whole, processed (after truncation) or raw (temperature 1)
    served_model: str | None = None  # external: the name that the servers know; None: model.path
    urls: tuple[str, ...] = ()  # external: the servers' addresses
    command: str | None = None  # vllm: interpreter or whole command; None: SWE_RL_VLLM_COMMAND, or what is installed
    kv_cache_tokens: ZeroOrMore = 0  # vllm: of one engine; 0: what fits
    # vllm: the tier of one engine's cache in its node's memory; auto takes what the node can spare. external: what each
    # server has, if its metrics do not say so.
    host_cache_gb: str = "0"  # GB of a node's memory for one engine's cache: auto, 0 or a number
    extra_arguments: tuple[str, ...] = ()  # vllm: of its command line, after all others: [--block-size,"32"]
    start_timeout_s: Seconds = 1800.0  # vllm: until a server is healthy; external: until it answers a first request
    max_restarts: ZeroOrMore = 3  # vllm: of one engine that died, in a run
    max_away_s: Seconds = 600.0  # external: without any engine for so long, the run ends
    url: str = ""  # endpoint: its address, https://HOST/v1
    model: str = ""  # endpoint: the name of the model there
    key: str | None = None  # endpoint: its key, as a reference: ${oc.env:NAME}; no file holds it
    dialect: EndpointDialect = EndpointDialect.auto  # endpoint: chat, responses or messages; auto: what it answers
    price_in: NotNegative = 0.0  # endpoint: money for a million tokens that it reads
    price_out: NotNegative = 0.0  # endpoint: money for a million tokens that it samples
    price_cached: NotNegative | None = None  # endpoint: for a million read tokens that it had cached; None: price_in
    budget: NotNegative = 0.0  # endpoint: money that the run may spend, with all its resumed starts; 0: no limit
    budget_tokens: ZeroOrMore = 0  # endpoint: tokens, read and sampled, that it may spend so; 0: no limit
    call_timeout_s: Seconds = 600.0  # endpoint: until a call is answered; then it is sent again


@dataclass(frozen=True)
class GatewayConfig:
    """Describes the HTTP server between agents and engines."""

    host: str = "127.0.0.1"  # address that it listens on
    port: Port = 0  # 0: any free port; each of several processes takes the next one
    processes: Count = 1  # that hold the conversations; 1: the driver itself
    max_body_mb: Count = 16  # of one request
    max_calls: Count = 4096  # in flight; one more is answered 503 with Retry-After
    max_idle_sessions: Count = 1024  # of those that clients began by using them; the one used least lately goes first
    session_idle_s: Seconds = 3600.0  # after so long without a call a session that a client began is forgotten
    # Of what is trained and evaluated: all completions; of each step the rows that were trained; none. What is not kept
    # goes when two checkpoints cover its step.
    keep_traces: KeepTraces = KeepTraces.all  # all completions, the trained rows alone, or none


@dataclass(frozen=True)
class OutcomeConfig:
    """Says what becomes of a trajectory with this outcome."""

    reward: OutcomeReward = OutcomeReward.graded
    trained: bool = True
    in_baseline: bool = True
    retries: ZeroOrMore = 0


@dataclass(frozen=True)
class WorkloadConfig:
    """Describes what trajectories ask of engines and sandboxes, for estimates only (`simulate`, `plan`, rules of time).

    Pairs are [median, spread], the spread that of the logarithm: about two thirds lie between median / e^spread and
    median * e^spread. The defaults are mini-SWE-agent's as measured with Qwen3-8B: turns of a task p50 9, mean 19, p90
    49; sampled tokens of a turn p50 628, mean 1.38k; tool p50 0.11 s, p99 2.6 s. Under the step limit of 20 that the
    Qwen3-14B run with four engines had, they give its mean context of about 15k tokens. Not published and assumed: the
    first prompt (about 2k tokens), observations, booting and grading.
    """

    turns: tuple[float, ...] = (9.0, 1.22)  # [median, spread] of a trajectory's turns, before rollout.max_turns
    shared_prompt_tokens: ZeroOrMore = 1500  # what all first prompts begin with: the agent's words and its tools
    issue_tokens: tuple[float, ...] = (500.0, 0.8)  # [median, spread] of the first prompt's rest
    observation_tokens: tuple[float, ...] = (250.0, 1.1)  # [median, spread] of what a tool says
    sampled_tokens: tuple[float, ...] = (628.0, 1.25)  # [median, spread] of one turn
    tool_s: tuple[float, ...] = (0.11, 1.36)  # [median, spread] of one turn's tool
    boot_s: tuple[float, ...] = (3.0, 0.5)  # [median, spread] from a trajectory's start to its first turn
    grade_s: tuple[float, ...] = (15.0, 0.8)  # [median, spread] from its last turn to its end


@dataclass(frozen=True)
class TurnRewardsConfig:
    """Says what a turn brings by itself, in units of the trajectory's reward. If all are 0, turns are not looked at."""

    format_error: Reward = 0.0  # an answer in which nothing can be run
    command_failed: Reward = 0.0  # a command that ended with another status than 0
    command_done: Reward = 0.0  # one that ended with status 0


@dataclass(frozen=True)
class ScheduleConfig:
    """Changes keys of `rollout` over the steps of a training: {"1": 4, "50": 8} is 4, and from step 50 on 8."""

    max_turns: dict[str, int] = field(default_factory=dict)  # each at most rollout.max_turns
    max_trajectory_tokens: dict[str, int] = field(default_factory=dict)  # each at most rollout.max_trajectory_tokens
    temperature: dict[str, float] = field(default_factory=dict)  # of sampling for training


@dataclass(frozen=True)
class RolloutConfig:
    """Says how trajectories are sampled, limited, repeated and graded."""

    mode: RolloutMode = RolloutMode.step  # step: a step waits for its slowest trajectory; stream: groups flow
    prompts_per_step: Count = 8  # instances of one step
    instances: InstanceChoice = InstanceChoice.uniform  # informative: more often those solved about half the time
    pass_rate_half_life_steps: Positive = 8.0  # by which what is known of an instance has lost half of its precision
    n: Count = 8  # trajectories of one instance: a group
    max_turns: Count = 6  # replies of the model in one trajectory
    max_prompt_tokens: Count = 512  # the first prompt
    max_trajectory_tokens: Count = 1024  # the first prompt and everything after it
    max_turn_tokens: Count = 96  # sampled in one turn
    max_total_tokens: ZeroOrMore = 0  # of one attempt over all its segments, docs/long_horizons.md; 0: no limit
    compaction: CompactionKind = CompactionKind.none  # of a full conversation: summary, drop_observations, window
    compaction_trigger: BelowOne = 0.75  # share of max_trajectory_tokens from which on a conversation is compacted
    compaction_keep_messages: Count = 4  # so many of the newest messages stay as they are
    compaction_request: str = (  # of compaction=summary: these words ask the policy for the summary
        "The context is nearly full. Sum up for yourself what you found out, what you changed and what is left to do. "
        "Your summary takes the place of the messages above."
    )
    continue_attempts: bool = True  # after a kill, at their last turn, where the agent can: docs/long_horizons.md
    temperature: NotNegative = 1.0  # of sampling for training
    top_p: OfAll = 1.0  # share of the probability that tokens are sampled from; 1: no truncation
    top_k: ZeroOrMore = 0  # 0: off
    min_p: Share = 0.0  # least probability of a token, as a share of the likeliest one's; 0: off
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    # auto: feels for the number that the engines carry best, while the run lasts.
    concurrency: Count | str = 64  # trajectories under way at once, or auto
    capture: Capture = Capture.traced  # traced: ids as sampled; retokenize: the old way, to be measured against
    filter_token_mismatch: bool = False  # retokenize: a trajectory that differs from what was sampled is not trained
    agent_timeout_s: Seconds = 120.0  # the agent's own time; booting and waiting do not eat it
    max_wait_s: Seconds = 7200.0  # for which a trajectory's calls may wait in all; then it is an engine_error
    command_timeout_s: Seconds = 10.0  # of one command of the agent; a program in the sandbox has its own limits
    grade_timeout_s: Seconds = 60.0  # of the tests of one trajectory
    infra_retries: ZeroOrMore = 2  # of the infrastructure failures in rollout.outcomes
    max_infra_failure_rate: Share = 0.2  # of a step; beyond it the run stops and names the instances
    eval_n: Count = 4  # trajectories of one instance in an evaluation
    eval_temperature: NotNegative = 1.0  # of sampling in evaluations
    typical_trajectory_tokens: Count = 512  # estimates only: mean length of a trajectory under way
    typical_trajectory_s: Seconds | None = None  # estimates only: a trajectory's mean time; None: from workload
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    tricks: TrickPolicy = TrickPolicy.zero  # what a test brings that passed whose twin passed too: zero or mask
    turn_rewards: TurnRewardsConfig = field(default_factory=TurnRewardsConfig)
    outcomes: dict[str, OutcomeConfig] = field(default_factory=dict)  # what becomes of each status


@dataclass(frozen=True)
class AlgoConfig:
    """Describes advantages and the loss."""

    name: str = "grpo"  # of the option; in tables and labels
    advantage: AdvantageKind = AdvantageKind.grpo  # how rewards become advantages
    normalize_std: bool = True  # advantages are divided by the standard deviation of their group or batch
    keep_reward: Reward = 1.0  # of advantage=kept: attempts with this reward or more are imitated
    keep_shortest: Count | None = None  # of advantage=kept: so many of them for each instance, the shortest; null: all
    discount: OfAll = 1.0  # of a later turn's reward (rollout.turn_rewards), of a later token's with advantage=gae
    gae_lambda: Share = 1.0  # of advantage=gae, as the four below; 1: returns less values
    critic_lr: Positive = 1e-3  # the critic warms up and decays as the policy does
    critic_epochs: Count = 1  # over a step's rows, for the critic alone
    critic_warmup_steps: ZeroOrMore = 0  # the first steps teach the critic alone; the policy warms up after them
    value_clip: NotNegative = 0.2  # how far a value moves in a step before the loss stops pulling; 0: off
    teacher: str | None = None  # of advantage=teacher: a model folder, or a name as model.path has them
    teacher_params_b: Positive | None = None  # estimates only; null: as the policy's
    policy_loss: PolicyLoss = PolicyLoss.clip  # clip, gspo, gspo_token, cispo or nll
    clip_low: Share = 0.2  # the ratio stays in [1 - clip_low, 1 + clip_high]
    clip_high: NotNegative = 0.28  # the ratio is clipped at 1 plus this
    clip_c: OrAboveOne = 0.0  # dual clip for negative advantages; 0: off
    kl_coef: Share = 0.0  # weight of the KL divergence from the reference model; 0: no reference model
    kl_in: KlPlace = KlPlace.loss  # where the KL to the reference counts: in the loss, or in the reward
    kl_estimator: KlEstimator = KlEstimator.k3  # k1, k2, k3 (Schulman 2020), or k3_grad_k2
    kl_cap: NotNegative | None = 10.0  # nats: largest k3 of one token, which has no gradient there; 0 or null: none
    entropy_coef: Share = 0.0  # weight of the entropy in the loss; 0: none
    balance_coef: Share = 0.0  # of a mixture: weight of a loss that spreads tokens evenly over experts; 0: none
    loss_aggregation: LossAggregation = LossAggregation.token_mean  # how the losses of tokens become one number
    loss_norm_tokens: Count = 1024  # sequence_sum_norm: the fixed length that a sum is divided by
    correction: Correction = Correction.none  # between engine and trainer: none, token_tis or sequence_tis
    correction_cap: AtLeastOne = 2.0  # largest weight of a token or trajectory
    stale_correction: Correction | None = None  # for rows that older weights sampled; null: as algo.correction
    max_staleness_steps: ZeroOrMore | None = None  # rows of weights older than so many steps are not trained
    mask_level: MaskLevel = MaskLevel.token  # token, geometric (mean over the trajectory) or sequence (product)
    mask_low: NotNegative | None = None  # trainer-to-engine ratios outside [mask_low, mask_high] are not trained
    mask_high: NotNegative | None = None  # tokens whose ratio of trainer to engine is above this are not trained
    dynamic_sampling: DynamicSampling = DynamicSampling.none  # filter: leaves out equal groups; resample: replaces
    max_resample_rounds: ZeroOrMore = 3  # of dynamic_sampling=resample, in one step; what is missing then stays missing
    overlong_filter: bool = False  # DAPO: trajectories that a limit cut short are not trained
    overlong_share: BelowOne = 0.0  # DAPO: this last share of rollout.max_trajectory_tokens costs reward; 0: off
    overlong_penalty: Penalty = 1.0  # DAPO: at the very end of the budget


@dataclass(frozen=True)
class TrainerConfig:
    """Describes the training loop, its optimizer, its checkpoints and its memory."""

    steps: Count = 24  # of the whole run; each is one batch of rollouts and its updates
    lr: Positive = 3e-4  # peak learning rate of AdamW
    weight_decay: NotNegative = 0.0  # of AdamW
    beta1: BelowOne = 0.9  # of AdamW
    beta2: BelowOne = 0.95  # of AdamW
    warmup_steps: ZeroOrMore = 0  # steps in which the learning rate rises linearly
    lr_schedule: LrSchedule = LrSchedule.constant  # after the warm-up until trainer.steps: constant, linear or cosine
    lr_final_fraction: Share = 0.0  # linear, cosine: where the learning rate ends, as a share of its peak
    prompts_per_mini_batch: Count = 8  # groups of one optimizer update
    max_tokens_per_micro_batch: Count = 2048  # of one forward and backward pass, on each GPU
    grad_clip: Positive = 1.0  # largest norm of a gradient
    activation_checkpointing: bool = False  # layers are computed again in the backward pass: less memory, more time
    attention: str = "auto"  # auto: by the rows' length; by_row, varlen or flash_attn (that package)
    compile: bool | None = None  # torch compiles what surrounds attention; null: on GPUs, where the run saves by it
    offload_optimizer: bool = False  # Adam's moments and master weights in the nodes' memory
    optimizer_state: OptimizerState = OptimizerState.float32  # of AdamW's moments: 8, 4 or 2 bytes a parameter
    lora_rank: ZeroOrMore = 0  # of an adapter on the linear layers of attention and MLP, which alone learns; 0: none
    lora_alpha: Count | None = None  # the adapter's product counts lora_alpha / lora_rank times; null: twice lora_rank
    lora_serving: LoraServing = LoraServing.merged  # what engines get: the merged model, or the adapter beside the base
    weight_sync: WeightSync = WeightSync.auto  # auto: memory, ipc or nccl on one host, else disk: a folder
    check_weights: bool = True  # after each update: engines and trainer give sampled tokens the same log-probabilities
    routing_replay: RoutingReplay = RoutingReplay.none  # of a mixture: tokens go to the experts that the engine chose
    max_staleness_steps: ZeroOrMore = 0  # 0: synchronous
    collective_timeout_s: Seconds = 1800.0  # a rank without a sign of life for so long is lost
    num_threads: Count = 1  # torch's threads while training
    checkpoint_every_steps: ZeroOrMore = 5  # the last step is saved in any case
    keep_checkpoints: Count = 2  # so many of the newest
    max_restarts: ZeroOrMore = 0  # of ranks after one was lost, from the newest checkpoint; 0: that ends the run
    eval_every_steps: ZeroOrMore = 0  # 0: before the first and after the last step only
    eval_from_step: ZeroOrMore = 0  # weights of earlier steps are not evaluated; 0: also those before the first step
    resume: str = "none"  # auto, none, or a run folder
    seed: Seed = 0  # of the order of instances, of sampling and of the trainer


@dataclass(frozen=True)
class SftConfig:
    """Describes imitation (`job=sft`): of recorded conversations, or of scripted demonstrations (the warm start)."""

    data: tuple[str, ...] = ()  # files, folders and runs that are imitated; []: scripted demonstrations
    epochs: Count = 3  # data: passes over it, unless sft.steps is given
    examples_per_batch: Count = 8  # data: conversations of one update
    max_tokens: Count = 32768  # data: longer conversations are left out, and those that the model cannot read
    min_reward: Reward | None = 1.0  # data: what tells a lower reward is left out; null: nothing is
    max_per_instance: Count | None = None  # data: so many conversations of each instance, the shortest; null: all
    mask_errors: bool = False  # data: replies whose command failed are read and not learned
    heldout_share: BelowOne = 0.05  # data: of the conversations, by instance; their loss is measured after each pass
    tools: str | None = None  # data: a JSON file of tools, for conversations that call tools and list none
    steps: Count | None = None  # updates; null: 5000 on right demonstrations, or sft.epochs passes over data
    lr: Positive | None = None  # peak learning rate; null: 2e-3, of data 1e-5, and 2e-4 of an adapter (LoRA)
    warmup_steps: ZeroOrMore | None = None  # updates in which it rises linearly; null: a tenth of all, at most 50
    lr_schedule: LrSchedule = LrSchedule.cosine  # of each of the two parts: constant, linear or cosine
    lr_final_fraction: Share = 0.0  # linear, cosine: where the learning rate ends, as a share of its peak
    tokens_per_batch: Count = 4096  # demonstrations: of one update
    beginner_steps: ZeroOrMore = 150  # demonstrations: updates on a beginner that makes mistakes and mends them
    beginner_lr: Positive = 3e-4  # learning rate of these
    right_fraction: Share = 0.5  # of the beginner's demonstrations
    start: str | None = None  # a model to begin with, as model.path; null: model.path for data, else random weights
    device: str = "cpu"  # cpu: half an hour on two cores; cuda: two minutes on one GPU; of a layout without ranks
    checkpoint_every_steps: ZeroOrMore | None = None  # updates; the last is saved; null: 500, or each pass over data
    seed: Seed = 0  # of weights, demonstrations and the order of data
    output: str = "${paths.outputs}/sft/${model.name}"  # the folder that the model is written to


@dataclass(frozen=True)
class MineConfig:
    """Says where `job=mine` looks for tasks, and which it wants. What is proven goes to the file env.dataset."""

    projects: tuple[str, ...] = ()  # names of distributions: [xmltodict]; with mine.lock: of the list only these
    repository: str | None = None  # in their place a folder with a git repository, or its address; no password in it
    lock: str | None = None  # a list that job=mine wrote, made again: its file, or the name of a shipped one (small)
    tasks: MinedTasks = MinedTasks.changes  # one of each change; hunks: split by tests; bugs: put into newest releases
    newest: Count = 5  # pairs of neighbouring releases of each project, or commits, the newest first; or bugs of each
    licences: tuple[str, ...] = ("MIT", "BSD", "Apache", "ISC", "PSF")  # of releases, words of their names; []: any
    since: str | None = None  # older ones are left out, as 2025-06-30: what a model may have read in its training
    max_changed_lines: Count = 200  # of the fix; what changes more is left out
    max_runs: Count = 100  # hunks and bugs: runs of the tests for each release or commit, before anything is proven
    max_run_s: Seconds = 600.0  # hunks and bugs: seconds of these runs, for each release or commit
    python: str | None = None  # the version that tests run with, as 3.11; None: this one
    test_command: str = "pytest -rA"  # how tests are run; the test files that changed follow it
    heldout_share: Share = 0.25  # of the projects: their instances are in the split heldout, all others in train


@dataclass(frozen=True)
class LoggerConfig(Extensible):
    """Says where figures go beside the run's folder. `_target_` names a logger of your own, as well."""

    wandb: WandbMode = WandbMode.disabled  # online, offline or disabled
    tensorboard: bool = False  # event files in tensorboard/ of the run's folder
    mlflow: bool = False  # mlflow.db in the run's folder, or what MLFLOW_TRACKING_URI names
    trackio: bool = False  # below TRACKIO_DIR, or in the Hugging Face cache as Trackio has it
    otel: str | None = None  # spans: `file` (in the run's folder), or the address of an OTLP receiver; None: none
    mllog: bool = False  # MLPerf's lines, in mllog.txt of the run's folder
    mllog_target: Share = 0.69  # mllog: the share of solved tasks above which the log ends
    verbosity: Verbosity = Verbosity.normal  # of the console: quiet, normal, verbose (figures), debug (trajectories)
    project: str = "swe_rl"  # of Weights & Biases and Trackio; the experiment of MLflow


@dataclass(frozen=True)
class PathsConfig:
    """Names the folders that a run reads and writes."""

    outputs: str = "outputs"  # below it each run has a folder
    scratch: str | None = None  # a node's fast disk; None: a temporary folder
    cache: str | None = None  # None: the user's cache folder
    sync_to: str | None = None  # a copy of the run's folder is kept here; None: none
    sync_every_s: SecondsFromOne = 600.0  # between two copies; the last one is made at the run's end


@dataclass(frozen=True)
class Config:
    """Describes the whole run. `name` is the experiment's or else the job's; it names the folder under
    `paths.outputs`."""

    name: str = "train"  # of the run, for its folder and its tables
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
    reward: RewardConfig = field(default_factory=RewardConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    grader: GraderConfig = field(default_factory=GraderConfig)
    rule: RuleConfig = field(default_factory=RuleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    mine: MineConfig = field(default_factory=MineConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
