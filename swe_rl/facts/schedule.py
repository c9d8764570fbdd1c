"""Says which limits and which temperature the rollouts of a step have, where `rollout.schedule` changes them.

Invariants:
- A step's values depend on the configuration and the step's number alone, so that a resumed run has the same ones.
- `rollout` itself is the bound that everything is sized by: a scheduled limit is never larger. Evaluations have the
  bound at every step, so that they can be compared.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from swe_rl.config.schema import RolloutConfig, ScheduleConfig

Number = TypeVar("Number", int, float)
NO_CHANGES: Mapping[int, float] = MappingProxyType({})


def by_step(schedule: Mapping[str, Number]) -> dict[int, Number]:
    """Returns a table of the configuration, whose names are text, by the numbers of its steps."""
    return {int(step): value for step, value in schedule.items()}


def value_at(schedule: Mapping[int, Number], step: int, otherwise: Number) -> Number:
    """Returns the value of the latest change up to a step; before the first one `otherwise`."""
    past = [first for first in schedule if first <= step]
    if past:
        return schedule[max(past)]
    return otherwise


def rollout_at(rollout: RolloutConfig, step: int) -> RolloutConfig:
    """Returns what the rollouts that a step trains on are sampled with."""
    schedule = rollout.schedule
    if schedule == ScheduleConfig():
        return rollout
    return replace(
        rollout,
        max_turns=value_at(by_step(schedule.max_turns), step, rollout.max_turns),
        max_trajectory_tokens=value_at(by_step(schedule.max_trajectory_tokens), step, rollout.max_trajectory_tokens),
        temperature=value_at(by_step(schedule.temperature), step, rollout.temperature),
    )


def scaled_temperature(rollout: RolloutConfig) -> float:
    """Returns a temperature of sampling for training that is not 1; 1 where all of them are."""
    temperatures = [rollout.temperature, *rollout.schedule.temperature.values()]
    return next((value for value in temperatures if value != 1.0), 1.0)


def scheduled_numbers(rollout: RolloutConfig, step: int) -> dict[str, float]:
    """Returns what a step's record has of the schedule: the values of the keys that it changes."""
    schedule = rollout.schedule
    now = rollout_at(rollout, step)
    values: dict[str, float] = {}
    if schedule.max_turns:
        values["max_turns"] = now.max_turns
    if schedule.max_trajectory_tokens:
        values["max_trajectory_tokens"] = now.max_trajectory_tokens
    if schedule.temperature:
        values["temperature"] = now.temperature
    return values
