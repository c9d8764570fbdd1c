"""This module has an enumeration for each key that allows only a few words.

Invariants:
- Members are named exactly as they are written in YAML.
- Standard library only: `--help`, `check` and `plan` import this module.
"""

from enum import StrEnum

ROUTERS = ("default", "sticky_least_loaded", "cap", "tr")  # router.name is open to others

# The fast paths of the embedded engine and the sharded trainer compute the families of these `model_type`s. Their slow
# paths compute every family of `causal_architectures`.
FAST_ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3_moe")
# The fast family that is a mixture: its routers are steered (replay, balance), as their softmax is known.
ROUTED_ARCHITECTURE = "qwen3_moe"


class KeepTraces(StrEnum):
    all = "all"
    rows = "rows"
    none = "none"


class ExtensionKind(StrEnum):
    """Names what a user's own code may replace. The groups of entry points are `swe_rl.KIND`."""

    env = "env"
    agent = "agent"
    reward = "reward"
    advantage = "advantage"
    loss = "loss"
    router = "router"
    logger = "logger"
    rule = "rule"
    grader = "grader"
    sandbox = "sandbox"


# What `job=new` writes: a package with a class of any ExtensionKind, a package with five of them, a task (a record of a
# change of your own repository), or a tiny model.
NewKind = StrEnum("NewKind", [*ExtensionKind, "package", "task", "tiny_model"])  # type: ignore[misc]  # mypy wants its members literally


class RoutingReplay(StrEnum):
    none = "none"
    measure = "measure"  # engines tell, the trainer compares
    replay = "replay"


# Rows of these environments are a user's own: what they need is known when they are read.
OWN_ROWS = frozenset({"jsonl", "mined"})


class MinedTasks(StrEnum):
    """Says what `job=mine` makes one task of."""

    changes = "changes"
    hunks = "hunks"
    bugs = "bugs"


class JobName(StrEnum):
    train = "train"
    rollout = "rollout"
    eval = "eval"
    sft = "sft"
    rft = "rft"
    check = "check"
    plan = "plan"
    simulate = "simulate"
    compare = "compare"
    mine = "mine"
    prepare = "prepare"
    validate = "validate"
    describe = "describe"
    new = "new"
    images = "images"
    serve = "serve"
    export = "export"
    runtime = "runtime"
    status = "status"
    logs = "logs"
    view = "view"


# These jobs sample attempts, learn from them and evaluate: in one loop, with the same records.
TRAININGS = frozenset({JobName.train, JobName.rft})


class Objective(StrEnum):
    """Names the figures of `summary.json`."""

    steps = "steps"
    resolved_rate_before = "resolved_rate_before"
    resolved_samples_before = "resolved_samples_before"
    resolved_rate_after = "resolved_rate_after"
    resolved_samples_after = "resolved_samples_after"
    tokens_per_s = "tokens_per_s"
    sampled_tokens_per_s = "sampled_tokens_per_s"
    num_trajectories = "num_trajectories"
    wall_s = "wall_s"
    trainer_restarts = "trainer_restarts"
    peak_memory_gb = "peak_memory_gb"


class ImagesAction(StrEnum):
    list = "list"
    check = "check"  # here, or in the registry
    pull = "pull"  # or build, where a row names its source


class OutputFormat(StrEnum):
    table = "table"
    json = "json"


class CompareFigures(StrEnum):
    auto = "auto"  # learning where a run trains, throughput elsewhere
    learning = "learning"  # reward and held-out rate
    throughput = "throughput"  # tokens per second


class ExportType(StrEnum):
    model = "model"  # as the model had them before training
    bfloat16 = "bfloat16"
    float32 = "float32"


class RolloutMode(StrEnum):
    step = "step"  # a step's trajectories begin together, and the step waits for the last of them
    stream = "stream"  # trajectories begin as others end; the oldest complete groups are trained


class RewardKind(StrEnum):
    zero_one = "zero_one"
    plus_minus_one = "plus_minus_one"
    fail_to_pass_fraction = "fail_to_pass_fraction"
    score = "score"  # the environment's own number where it gives one, else as zero_one
    fail_to_pass_only = "fail_to_pass_only"  # 1 where all FAIL_TO_PASS pass, whatever breaks, else -1


class GradingKind(StrEnum):
    pytest = "pytest"
    swebench = "swebench"
    eval_script = "eval_script"
    tests = "tests"  # the row's own test file, run by pytest


class Keep(StrEnum):
    """Says what a probe found of an instance: solved in every attempt, in some, in none."""

    solved = "solved"
    mixed = "mixed"
    unsolved = "unsolved"


class Unproven(StrEnum):
    """Says what becomes of instances whose gold patch does not pass here, or was never tried."""

    skip = "skip"  # they are left out by name
    refuse = "refuse"  # the job is refused
    keep = "keep"  # they are used all the same


class RuntimeKind(StrEnum):
    none = "none"  # sandboxes run where the training runs
    job = "job"  # a SLURM job of its own, beside the training's
    external = "external"  # somebody else's server: sandbox.runtime_url


class SandboxKind(StrEnum):
    process = "process"
    docker = "docker"
    podman = "podman"
    apptainer = "apptainer"
    remote = "remote"
    custom = "custom"  # sandbox._target_, or the option of an installed package


class Isolation(StrEnum):
    auto = "auto"  # bubblewrap where it works, else none with one warning
    bubblewrap = "bubblewrap"
    none = "none"


class PullPolicy(StrEnum):
    missing = "missing"
    always = "always"
    never = "never"


class RuntimeProtocol(StrEnum):
    swe_rl = "swe_rl"  # job=runtime
    openhands = "openhands"  # remote runtimes of OpenHands


class EngineKind(StrEnum):
    embedded = "embedded"
    vllm = "vllm"
    external = "external"
    endpoint = "endpoint"


class EndpointDialect(StrEnum):
    auto = "auto"  # the first of the others that the endpoint answers
    chat = "chat"
    responses = "responses"
    messages = "messages"


class LogprobsMode(StrEnum):
    """Says over which tokens, and at which temperature, an engine's log-probabilities are."""

    whole = "whole"  # the whole vocabulary, at the temperature of sampling: what the trainer computes
    processed = "processed"  # the tokens that truncation kept, at the temperature of sampling
    raw = "raw"  # the whole vocabulary, at temperature 1


class Capture(StrEnum):
    traced = "traced"
    retokenize = "retokenize"


class CompactionKind(StrEnum):
    """Says what becomes of a conversation that nearly fills its context."""

    none = "none"  # it goes on until it is full, and ends as context_overflow
    summary = "summary"  # the policy writes a summary, which takes the place of the older messages
    drop_observations = "drop_observations"  # a line with their length takes the place of older observations
    window = "window"  # the newest messages alone stay


class InstanceChoice(StrEnum):
    uniform = "uniform"  # each once an epoch
    informative = "informative"  # those that are solved about half the time more often


# Statuses of what infrastructure broke: such a trajectory says nothing of the policy, and is never paid or trained.
INFRA_STATUSES = frozenset({"infra_error", "grade_error", "engine_error"})


class OutcomeReward(StrEnum):
    """Says what pays an outcome. `graded`: what env.reward makes of the verdict; `failure`: the reward of a failed test
    run; `none`: no reward."""

    graded = "graded"
    failure = "failure"
    none = "none"


class TrickPolicy(StrEnum):
    """Says what a trick brings. `zero`: the reward of a failed test run; `mask`: no reward, not trained."""

    zero = "zero"
    mask = "mask"


class AdvantageKind(StrEnum):
    grpo = "grpo"
    dr_grpo = "dr_grpo"
    rloo = "rloo"
    reinforce_pp = "reinforce_pp"  # REINFORCE++: reward, normalized over the whole batch
    reinforce_pp_baseline = "reinforce_pp_baseline"  # ... less the group's mean first
    gae = "gae"  # PPO: of each token, by a critic
    teacher = "teacher"  # distillation: of each token, by another model
    kept = "kept"  # rejection sampling: 1 for attempts that are kept, all others are not trained


FOUND_BY_TRAINER = frozenset({AdvantageKind.gae, AdvantageKind.teacher})
# With these an attempt teaches whatever the others of its group did.
COMPARES_NOTHING = FOUND_BY_TRAINER | {AdvantageKind.reinforce_pp, AdvantageKind.kept}


class PolicyLoss(StrEnum):
    clip = "clip"  # PPO's clipped ratio of each token
    gspo = "gspo"  # the clipped ratio of the whole trajectory, by the token
    gspo_token = "gspo_token"  # ... with each token's own correction
    cispo = "cispo"  # the clipped ratio as a constant weight of the log-probability
    nll = "nll"  # the log-probability alone, which imitates


class KlPlace(StrEnum):
    loss = "loss"
    reward = "reward"


class KlEstimator(StrEnum):
    """Estimates KL(policy || reference) by the token that was sampled.

    docs/engineering/loss.md says what each descends.
    """

    k1 = "k1"
    k2 = "k2"
    k3 = "k3"
    k3_grad_k2 = "k3_grad_k2"  # the value of k3 with the gradient of k2


class LossAggregation(StrEnum):
    token_mean = "token_mean"  # all tokens weigh the same
    sequence_mean = "sequence_mean"  # each trajectory weighs the same
    prompt_mean = "prompt_mean"  # each prompt's group weighs the same
    sequence_sum_norm = "sequence_sum_norm"  # Dr. GRPO: token sum over algo.loss_norm_tokens
    token_sum = "token_sum"  # nothing is divided


class LrSchedule(StrEnum):
    """Shapes the learning rate after the warm-up."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class DynamicSampling(StrEnum):
    none = "none"
    filter = "filter"  # groups of equal rewards are left out
    resample = "resample"  # ... and others sampled in their place


class Correction(StrEnum):
    none = "none"
    token_tis = "token_tis"
    sequence_tis = "sequence_tis"


class MaskLevel(StrEnum):
    """Says what algo.mask_low and algo.mask_high bound."""

    token = "token"  # each token's own ratio
    geometric = "geometric"  # the geometric mean of the trajectory's ratios: all its tokens or none
    sequence = "sequence"  # the product of the trajectory's ratios: all its tokens or none


class OptimizerState(StrEnum):
    """Names the type in which AdamW's two moments rest. They are computed with in float32."""

    float32 = "float32"  # 8 bytes a parameter
    bfloat16 = "bfloat16"  # 4, rounded stochastically
    int8 = "int8"  # 2, and a scale for each 256 values


class LoraServing(StrEnum):
    """Says what engines sample with while an adapter is trained."""

    merged = "merged"  # base and adapter as one, rounded to the engine's type: updates below its grid are lost
    adapter = "adapter"  # the base as it is, and the adapter beside it, by vLLM


class WeightSync(StrEnum):
    auto = "auto"  # the fastest way that this layout and engine allow: docs/engineering/weights.md
    nccl = "nccl"  # vLLM's own weight transfer; without GPUs over gloo
    ipc = "ipc"  # through memory of a GPU that engine and trainer share
    disk = "disk"


class Verbosity(StrEnum):
    """Says what a run prints on the console; `run.log` has the lines of `verbose` in any case."""

    quiet = "quiet"  # how it begins and ends, and warnings
    normal = "normal"  # and a line for each step and evaluation, and what is under way
    verbose = "verbose"  # and all figures of a step; what check and plan say of themselves, too
    debug = "debug"  # and a line for each trajectory

    @property
    def has_details(self) -> bool:
        return self in (Verbosity.verbose, Verbosity.debug)


class WandbMode(StrEnum):
    online = "online"
    offline = "offline"
    disabled = "disabled"
