"""Rules of schedules check that each value stays within what the run is sized for, and that everybody follows it.

Invariants:
- A scheduled limit is at most the key itself, by which engines, memory and rows are sized. So no other rule has to
  look at it.
"""

import re
from collections.abc import Iterator, Mapping

from swe_rl.check.findings import Finding, Host, error, rule_about, rule_between, warning
from swe_rl.config.choices import CompactionKind, ExtensionKind, KlPlace, RolloutMode
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.extension.find import is_foreign

_KEY = "rollout.schedule"
# `01` would be a second name of step 1, and one of the two values would silently hold.
_STEP = re.compile(r"0|[1-9][0-9]{0,8}")
# vLLM and the protocols of the gateway know no higher one.
_HIGHEST_TEMPERATURE = 2.0


@rule_about(Part.steps)
def schedule_within_bounds(config: Config, _: Host) -> Iterator[Finding]:
    rollout = config.rollout
    schedule = rollout.schedule
    yield from _find_wrong_steps(config)
    least_tokens = rollout.max_prompt_tokens + rollout.max_turn_tokens
    for name, values, least, most in (
        ("max_turns", schedule.max_turns, 1, rollout.max_turns),
        ("max_trajectory_tokens", schedule.max_trajectory_tokens, least_tokens, rollout.max_trajectory_tokens),
    ):
        for step, value in sorted(values.items()):
            key = f"{_KEY}.{name}.{step}"
            if value > most:
                words = f"is above rollout.{name}={most}, by which the run is sized"
                yield error("schedule", key, words, f"rollout.{name}={value}, or a lower value here", value=value)
            elif value < least:
                words = f"must be at least {least}"
                if name == "max_trajectory_tokens":
                    words = f"{words}: one prompt (rollout.max_prompt_tokens) and one turn (rollout.max_turn_tokens)"
                yield error("schedule", key, words, f"{least} or more", value=value)
    for step, temperature in sorted(schedule.temperature.items()):
        if not 0 < temperature <= _HIGHEST_TEMPERATURE:
            words = f"must be above 0, or all trajectories are alike, and at most {_HIGHEST_TEMPERATURE:g}"
            yield error("schedule", f"{_KEY}.temperature.{step}", words, "1.0", value=temperature)


def _find_wrong_steps(config: Config) -> Iterator[Finding]:
    tables: Mapping[str, Mapping[str, float]] = vars(config.rollout.schedule)
    for name, values in tables.items():
        for step, value in sorted(values.items()):
            key = f"{_KEY}.{name}.{step}"
            if not _STEP.fullmatch(step):
                words = "is no step: the names in a schedule are numbers of steps, from which on a value holds"
                yield error("schedule", key, words, f"+{_KEY}.{name}={{1:{value}}}", value=value)
            elif int(step) > config.trainer.steps:
                words = f"the run has {config.trainer.steps} steps (trainer.steps): this value is never used"
                yield warning("schedule", key, words, f"trainer.steps={step}, or leave it out", value=value)


@rule_about(Part.steps)
def schedule_is_followed(config: Config, _: Host) -> Iterator[Finding]:
    """Finds what would not follow a schedule."""
    schedule = config.rollout.schedule
    counts_itself = config.agent.name == "verifiers" or is_foreign(config, ExtensionKind.agent)
    if schedule.max_turns and counts_itself:
        words = f"agent={config.agent.name} counts its turns itself, up to rollout.max_turns"
        yield error("schedule", f"{_KEY}.max_turns", words, "leave it out, or one of our agents: agent=bash")
    if schedule.max_trajectory_tokens and config.rollout.compaction is not CompactionKind.none:
        words = f"rollout.compaction={config.rollout.compaction} compacts by rollout.max_trajectory_tokens"
        yield error("schedule", f"{_KEY}.max_trajectory_tokens", words, "rollout.compaction=none")
    if schedule.max_trajectory_tokens and config.algo.overlong_share and config.rollout.mode is RolloutMode.stream:
        words = "a step of rollout.mode=stream trains groups with several limits, and algo.overlong_share is of one"
        yield error("schedule", f"{_KEY}.max_trajectory_tokens", words, "rollout.mode=step")


@rule_between(Part.steps, Part.trainer)
def schedule_of_temperature(config: Config, _: Host) -> Iterator[Finding]:
    """Finds where the trainer could not compute log-probabilities at the temperature of sampling."""
    temperatures = config.rollout.schedule.temperature
    key = f"{_KEY}.temperature"
    if temperatures and config.rollout.mode is RolloutMode.stream:
        words = "a step of rollout.mode=stream trains groups that began in several steps, at several temperatures"
        yield error("schedule", key, words, "rollout.mode=step")
    if temperatures and config.algo.kl_coef and config.algo.kl_in is KlPlace.reward:
        words = "the KL of algo.kl_in=reward is computed at rollout.temperature"
        yield error("schedule", key, words, "algo.kl_in=loss")
