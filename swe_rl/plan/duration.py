"""This module estimates time: a step's rollouts, training, weight update. What the estimates assume is said with them.

Invariants:
- Pure arithmetic; good for telling minutes from days. What rollouts take is a bound here, for rules, which have no time
  to simulate: nothing is computed twice, batches are as large as they can be, nobody waits. `job=plan` gives the time
  that `job=simulate` finds; tests say how far the bound is below it.
"""

from collections.abc import Iterator
from dataclasses import fields
from math import ceil, erf, exp, inf, log, sqrt

from swe_rl.config.choices import AdvantageKind
from swe_rl.config.parts import starts_trainer
from swe_rl.config.schema import Config, WorkloadConfig
from swe_rl.facts import memory, sizes
from swe_rl.plan.engine_speed import EngineSpeed, SpeedError, speed_of

# A training step reaches this share of the published bfloat16 rate.
TRAIN_UTILIZATION = 0.35
# Activation checkpointing does the forward pass twice.
RECOMPUTE = 4 / 3
# Weights go from the trainer to the engines at this rate, packing and loading included.
SYNC_GB_PER_S = 20.0
# Engines, model and first sandboxes are ready after so long.
START_S = 300.0
# A checkpoint is written at this rate.
DISK_GB_PER_S = 1.0
# torch compiles a model's layers once a run.
COMPILE_S = 60.0
# Compiled layers need this share of a training step's time. It was measured from 0.78 (4B, one GPU) to 0.91 (14B,
# four).
COMPILED = 0.9


def rollout_s(config: Config) -> float:
    """Returns the least time of one step's rollouts: by the engines' speed, and by how long a trajectory is said to
    take."""
    return max(bound_s(config), stated_s(config))


def stated_s(config: Config) -> float:
    """Returns the time of one step's rollouts as full waves of what a trajectory is said to take, or 0 if nothing is
    said."""
    return sizes.waves_per_step(config) * (config.rollout.typical_trajectory_s or 0.0)


def train_s(config: Config) -> float:
    """Returns the time of forward and backward over one step's tokens, or 0 if nothing is known about the GPUs."""
    return _tokens_per_step(config) * train_token_s(config)


def train_token_s(config: Config) -> float:
    """Returns the time of one token on all of the trainer's GPUs together, or 0 if nothing is known about them."""
    return _plain_token_s(config) * (COMPILED if compiles_layers(config) else 1.0)


def compiles_layers(config: Config) -> bool:
    """Tells whether torch compiles the trainer's layers: as `trainer.compile` says, else if the steps save more than it
    takes. It does not by itself if Triton finds no compiler."""
    if config.trainer.compile is not None:
        return config.trainer.compile
    if not config.hardware.compiler:
        return False
    return (1 - COMPILED) * _tokens_per_step(config) * _plain_token_s(config) * config.trainer.steps > COMPILE_S


def _tokens_per_step(config: Config) -> int:
    return sizes.trajectories_per_step(config) * config.rollout.typical_trajectory_tokens


def _plain_token_s(config: Config) -> float:
    rate = config.layout.trainer_gpus * config.hardware.gpu_bf16_tflops * 1e12 * TRAIN_UTILIZATION
    if rate > 0:
        return (_training_flops(config, 1.0) + _credit_flops(config)) / rate
    return 0.0


def _credit_flops(config: Config) -> float:
    """Returns the operations of one token besides the policy's update: a critic's values and epochs, or a teacher's
    pass and the policy's."""
    algo = config.algo
    policy_b = config.model.active_params_b
    if algo.advantage is AdvantageKind.gae:
        return 2e9 * policy_b + algo.critic_epochs * _training_flops(config, 1.0)
    if algo.advantage is AdvantageKind.teacher:
        return 2e9 * (policy_b + (algo.teacher_params_b or policy_b))
    return 0.0


def _training_flops(config: Config, tokens: float) -> float:
    passes = 6 * (RECOMPUTE if config.trainer.activation_checkpointing else 1)
    return passes * config.model.active_params_b * 1e9 * tokens


def micro_batch_s(config: Config) -> float:
    """Returns the time of forward and backward over one micro-batch on one GPU, or 0 if nothing is known about the
    GPUs."""
    rate = config.hardware.gpu_bf16_tflops * 1e12 * TRAIN_UTILIZATION
    if rate <= 0:
        return 0.0
    return _training_flops(config, memory.tokens_per_gpu(config)) / rate


def sync_s(config: Config) -> float:
    if sizes.uses_no_gpu(config.layout):
        return 0.0
    return memory.update_gb(config) / SYNC_GB_PER_S


def step_s(config: Config, rollouts_s: float | None = None) -> float:
    """Returns the time of one synchronous step; an asynchronous one takes as long as its longer half. Without
    `rollouts_s` it is the least time. Evaluations, checkpoints and pauses (`job.think_s`) are not in it."""
    apart = config.trainer.max_staleness_steps > 0 and not sizes.takes_turns(config)
    learning_s = 0.0
    if starts_trainer(config):
        learning_s = train_s(config) + sync_s(config)
    work = (rollout_s(config) if rollouts_s is None else rollouts_s, learning_s)
    if apart:
        return max(work)
    return sum(work)


def start_s(config: Config) -> float:
    """Returns the time until the first rollout begins, and what the first update takes more than others."""
    if sizes.uses_no_gpu(config.layout):
        return 0.0
    return START_S + (COMPILE_S if starts_trainer(config) and compiles_layers(config) else 0.0)


def first_checkpoint_s(config: Config) -> float:
    """Returns the time from the start until something is kept: what a time limit must at least hold."""
    steps = config.trainer.checkpoint_every_steps or config.trainer.steps
    first_s = start_s(config) + min(steps, config.trainer.steps) * step_s(config)
    return first_s + memory.checkpoint_gb(config) / DISK_GB_PER_S


def run_s(config: Config, rollouts_s: float | None = None) -> float:
    if starts_trainer(config):
        pauses_s = 0.0
    else:
        pauses_s = (config.trainer.steps - 1) * config.job.think_s
    return of_steps(config, step_s(config, rollouts_s)) + pauses_s


def of_steps(config: Config, step_s: float) -> float:
    """Returns the time of a run whose steps take so long each."""
    return start_s(config) + config.trainer.steps * step_s


def limit_s(config: Config) -> float:
    """Returns the time that the scheduler gives the job; infinite if hardware.time_limit_min is 0."""
    return config.hardware.time_limit_min * 60 or inf


def format_duration(seconds: float) -> str:
    """Writes a time as `40 s`, `12 min`, `3.5 h` or `2.1 days`."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            if size >= 3600:
                return f"{seconds / size:.1f} {unit}"
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# A pair is a median and a spread.
Pair = tuple[float, ...]
MAY_BE_ZERO = frozenset({"tool_s", "boot_s", "grade_s"})
LARGEST_MEDIAN = 1e7
LARGEST_SPREAD = 5.0


def bound_s(config: Config) -> float:
    """Returns the largest of three times: what engines compute, the longest trajectory, places filled over and over.

    Returns 0 if the engines' speed is not known, or the workload is wrong.
    """
    if list(wrong_pairs(config.rollout.workload)):
        return 0.0
    try:
        speed = speed_of(config.model, config.hardware, config.layout)
    except SpeedError:
        return 0.0
    count = max(1, sizes.trajectories_per_step(config))
    mean_s = _trajectory_s(config, speed, mean_turns(config))
    longest_s = _trajectory_s(config, speed, _longest_turns(config, count))
    waves_s = mean_s * count / sizes.trajectories_at_once(config)
    return max(_engines_s(config, speed, count), longest_s, waves_s)


def wrong_pairs(workload: WorkloadConfig) -> Iterator[str]:
    """Yields the names of values that are no [median, spread]."""
    for item in fields(workload):
        value = getattr(workload, item.name)
        if isinstance(value, tuple):
            least = 1.0
            if item.name in MAY_BE_ZERO:
                least = 0.0
            if len(value) != 2 or not (least <= value[0] <= LARGEST_MEDIAN and 0.0 <= value[1] <= LARGEST_SPREAD):
                yield item.name


def mean_turns(config: Config) -> float:
    return max(1.0, capped_mean(config.rollout.workload.turns, _most_turns(config)))


def mean_context_tokens(config: Config) -> float:
    """Returns what a trajectory under way holds after a turn, averaged over all turns; longer ones have more of
    them."""
    mean_square = capped_mean(config.rollout.workload.turns, _most_turns(config), power=2)
    of_turns = (mean_square + mean_turns(config)) / 2 / mean_turns(config)
    return _prompt_tokens(config) + (of_turns - 1) * _turn_tokens(config) + mean_sampled_tokens(config)


def mean_sampled_tokens(config: Config) -> float:
    """Returns what a turn samples, averaged over all turns."""
    return max(1.0, capped_mean(config.rollout.workload.sampled_tokens, config.rollout.max_turn_tokens))


def lognormal_mean(pair: Pair) -> float:
    """Returns the mean of a lognormal."""
    median, spread = pair
    return median * exp(spread**2 / 2)


def capped_mean(pair: Pair, most: float, power: int = 1) -> float:
    """Returns the mean of min(X, most)^power of a lognormal X."""
    median, spread = pair
    if median <= 0 or most <= 0:
        return 0.0
    if spread <= 0:
        return float(min(median, most) ** power)
    z = (log(most) - log(median)) / spread
    below = exp(power * log(median) + (power * spread) ** 2 / 2) * _normal_cdf(z - power * spread)
    return float(below + most**power * (1 - _normal_cdf(z)))


def _normal_cdf(z: float) -> float:
    return (1 + erf(z / sqrt(2))) / 2


def _engines_s(config: Config, speed: EngineSpeed, count: int) -> float:
    """Returns the time of decoding alone, in batches as large as the cache, the places and the engine's limit allow."""
    engines = max(1, config.layout.engines)
    context = mean_context_tokens(config)
    capacity = memory.kv_tokens_per_engine(config) or inf
    places = sizes.trajectories_at_once(config) / engines
    batch = max(1.0, min(places, config.engine.max_num_seqs, capacity / context))
    sampled = mean_turns(config) * mean_sampled_tokens(config) * count / engines
    return sampled / batch * speed.step_s(ceil(batch), int(batch * context))


def _trajectory_s(config: Config, speed: EngineSpeed, turns: float) -> float:
    """Returns the time from start to end of a trajectory that has an engine to itself."""
    rollout = config.rollout
    workload = config.rollout.workload
    context = _prompt_tokens(config) + turns / 2 * _turn_tokens(config)
    engine_s = mean_sampled_tokens(config) * speed.step_s(1, int(context)) + speed.call_s
    tool_s = capped_mean(workload.tool_s, rollout.command_timeout_s)
    grade_s = capped_mean(workload.grade_s, rollout.grade_timeout_s)
    return lognormal_mean(workload.boot_s) + turns * (engine_s + tool_s) + grade_s


def _longest_turns(config: Config, count: int) -> float:
    """Returns the turns that one of `count` trajectories is expected to exceed, or the limit."""
    median, spread = config.rollout.workload.turns
    low = 0.0
    high = 8.0
    for _ in range(40):
        z = (low + high) / 2
        if _normal_cdf(z) < 1 - 1 / (count + 1):
            low = z
        else:
            high = z
    return max(1.0, min(_most_turns(config), median * exp(spread * low)))


def _most_turns(config: Config) -> float:
    """Returns the limit of turns, or how many turns there is room for if that is less."""
    rollout = config.rollout
    room = rollout.max_trajectory_tokens - _prompt_tokens(config)
    return max(1.0, min(rollout.max_turns, room / max(1.0, _turn_tokens(config))))


def _prompt_tokens(config: Config) -> float:
    workload = config.rollout.workload
    return min(config.rollout.max_prompt_tokens, workload.shared_prompt_tokens + lognormal_mean(workload.issue_tokens))


def _turn_tokens(config: Config) -> float:
    return mean_sampled_tokens(config) + lognormal_mean(config.rollout.workload.observation_tokens)
