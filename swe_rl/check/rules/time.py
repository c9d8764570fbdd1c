"""Rules of time check nested limits, waves of trajectories, and the scheduler's time limit.

Invariants:
- Inner limits are shorter than outer ones: command < agent < job; ranks are waited for longer than a micro-batch takes.
- Estimates come from plan/duration.py; a rule that rests on one names it.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, rule_about, warning
from swe_rl.config.choices import CompactionKind, JobName
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config, WorkloadConfig
from swe_rl.facts.sizes import uses_no_gpu, waves_per_step
from swe_rl.facts.warm_start import trainer_config
from swe_rl.plan import duration
from swe_rl.plan.duration import LARGEST_SPREAD, MAY_BE_ZERO, wrong_pairs

FEWEST_S = 60.0  # ranks that load a large model on GPUs are apart by more than that


@rule_about(Part.rollouts)
def nested_timeouts(config: Config, _: Host) -> Iterator[Finding]:
    rollout = config.rollout
    if rollout.command_timeout_s >= rollout.agent_timeout_s:
        yield warning(
            "nested_timeouts",
            "rollout.command_timeout_s",
            f"one hanging command uses up the agent's whole time (rollout.agent_timeout_s={rollout.agent_timeout_s:g})",
            f"rollout.command_timeout_s={rollout.agent_timeout_s / 10:g}",
        )
    if rollout.agent_timeout_s > duration.limit_s(config):
        yield warning(
            "time_limit",
            "rollout.agent_timeout_s",
            f"longer than the job may run (hardware.time_limit_min={config.hardware.time_limit_min})",
            f"hardware.time_limit_min={int(rollout.agent_timeout_s // 60) + 60}",
        )


@rule_about(Part.rollouts)
def typical_within_limit(config: Config, _: Host) -> Iterator[Finding]:
    rollout = config.rollout
    if rollout.typical_trajectory_s is not None and rollout.typical_trajectory_s > rollout.agent_timeout_s:
        yield warning(
            "typical_time",
            "rollout.agent_timeout_s",
            f"a typical trajectory is said to take {rollout.typical_trajectory_s:g} s "
            "(rollout.typical_trajectory_s): most would be cut short",
            f"rollout.agent_timeout_s={rollout.typical_trajectory_s * 3:g}",
        )


@rule_about(Part.engines)
def check_workload(config: Config, _: Host) -> Iterator[Finding]:
    for name in wrong_pairs(config.rollout.workload):
        least = 0 if name in MAY_BE_ZERO else 1
        yield error(
            "workload",
            f"rollout.workload.{name}",
            f"must be [median, spread]: two numbers, the median at least {least}, the spread of its logarithm from 0 "
            f"to {LARGEST_SPREAD:g}",
            f"rollout.workload.{name}={list(getattr(WorkloadConfig(), name))}".replace(" ", ""),
        )


@rule_about(Part.trainer)
def first_checkpoint(config: Config, _: Host) -> Iterator[Finding]:
    limit_s = duration.limit_s(config)
    needed_s = duration.first_checkpoint_s(config)
    if needed_s <= limit_s:
        return
    step = duration.format_duration(duration.step_s(config))
    yield error(
        "time_first_checkpoint",
        "hardware.time_limit_min",
        f"the job would end before its first checkpoint: at least {duration.format_duration(needed_s)} to it (a "
        "step takes at "
        f"least {step}, its trajectories {waves_per_step(config)} waves; job=plan says more)",
        f"hardware.time_limit_min={int(needed_s / 60 * 1.5)}, trainer.checkpoint_every_steps=1, or fewer trajectories",
    )


@rule_about(Part.trainer)
def whole_run(config: Config, _: Host) -> Iterator[Finding]:
    limit_s = duration.limit_s(config)
    needed_s = duration.run_s(config)
    resumes = config.trainer.resume == "auto" and config.trainer.checkpoint_every_steps > 0
    if needed_s <= limit_s or resumes:
        return
    if duration.first_checkpoint_s(config) <= limit_s:
        yield warning(
            "time_whole_run",
            "hardware.time_limit_min",
            f"{config.trainer.steps} steps take at least {duration.format_duration(needed_s)}, and the job will "
            "not be continued",
            "trainer.resume=auto with trainer.checkpoint_every_steps=1 or more, or fewer trainer.steps",
        )


@rule_about(Part.trainer, Part.warm_start)
def check_collective_timeout(config: Config, _: Host) -> Iterator[Finding]:
    """Warns of a time limit for ranks that is too short. Ranks that train in this process wait for nobody."""
    layout = config.layout
    timeout_s = config.trainer.collective_timeout_s
    work_s = duration.micro_batch_s(trainer_config(config))  # a rank gives a sign of life for each (trainer/pulse.py)
    if max(layout.trainer_gpus, layout.trainer_ranks) < 2:
        return
    if layout.trainer_gpus and timeout_s < FEWEST_S:
        yield warning(
            "collective_timeout",
            "trainer.collective_timeout_s",
            f"ranks that load a large model on GPUs are apart by more than that; at least {FEWEST_S:g}",
            "trainer.collective_timeout_s=1800",
        )
    elif layout.trainer_gpus and work_s > timeout_s:
        yield warning(
            "collective_timeout",
            "trainer.collective_timeout_s",
            "ranks that give no sign of life for so long count as lost, and a micro-batch takes about "
            f"{duration.format_duration(work_s)}",
            f"trainer.collective_timeout_s={int(2 * work_s)}, or a lower trainer.max_tokens_per_micro_batch",
        )


@rule_about(Part.rollouts)
def turns_fit(config: Config, _: Host) -> Iterator[Finding]:
    """Warns of more turns than a trajectory has room for. With compaction it makes room for itself.

    Typical turns use about an eighth of what one may sample and of what it may be shown (4 characters a token).
    """
    rollout = config.rollout
    if rollout.compaction is not CompactionKind.none:
        return
    turn = rollout.max_turn_tokens / 8 + config.agent.max_observation_chars / 4 / 8
    needed = int(rollout.max_prompt_tokens / 2 + rollout.max_turns * turn)
    if needed > 2 * rollout.max_trajectory_tokens and not uses_no_gpu(config.layout):
        yield warning(
            "turns",
            "rollout.max_turns",
            f"so many turns need about {needed} tokens even if each uses an eighth of its limits; "
            f"rollout.max_trajectory_tokens={rollout.max_trajectory_tokens} will end most trajectories first",
            f"rollout.max_turns={max(1, int(rollout.max_trajectory_tokens / max(turn, 1)))}",
        )


@rule_about()
def think_time(config: Config, _: Host) -> Iterator[Finding]:
    think_s = config.job.think_s
    if think_s > 0 and config.job.name is not JobName.rollout:
        yield error("think_s", "job.think_s", "stands for training and is read by job=rollout only", "job=rollout")
