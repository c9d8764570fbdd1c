"""Reads from a run's configuration what the findings on its training depend on.

Invariants:
- The configuration is that of `config.yaml`: of any version, incomplete or empty. A key that is missing or strange has
  its default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from swe_rl.config.choices import AdvantageKind, DynamicSampling, PolicyLoss
from swe_rl.config.schema import AlgoConfig, RolloutConfig

Record = Mapping[str, Any]
Choice = TypeVar("Choice", bound=StrEnum)
# With these, groups of equal rewards have an advantage all the same: it is not made by comparing within the group.
_LEARN_FROM_EQUAL_GROUPS = frozenset({AdvantageKind.reinforce_pp, AdvantageKind.gae, AdvantageKind.teacher})
# Extensions are named so where nothing of the user's own is used.
_BUILT_IN = "default"


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """How a training learns, as far as findings depend on it; the defaults are those of the schema."""

    advantage: AdvantageKind = AlgoConfig.advantage
    policy_loss: PolicyLoss = AlgoConfig.policy_loss
    dynamic_sampling: DynamicSampling = AlgoConfig.dynamic_sampling
    trajectories_per_group: int = RolloutConfig.n
    has_own_advantage: bool = False

    @property
    def has_teacher(self) -> bool:
        """Tells whether a teacher's probabilities pull the policy, and rewards do not."""
        return self.advantage is AdvantageKind.teacher and not self.has_own_advantage

    @property
    def compares_within_groups(self) -> bool:
        """Tells whether a group teaches only if the rewards of its trajectories differ."""
        if self.trajectories_per_group < 2:
            return False
        # Groups of equal rewards are left out then, whatever the advantage would make of them.
        if self.dynamic_sampling is not DynamicSampling.none:
            return True
        return not self.has_own_advantage and self.advantage not in _LEARN_FROM_EQUAL_GROUPS


def facts_of(config: Record) -> TrainingFacts:
    """Returns the facts of a run's configuration; `config` is the mapping of its `config.yaml`."""
    algo = _part(config, "algo")
    number = _part(config, "rollout").get("n")
    if not isinstance(number, int):
        number = RolloutConfig.n
    return TrainingFacts(
        advantage=_choice(algo.get("advantage"), AlgoConfig.advantage),
        policy_loss=_choice(algo.get("policy_loss"), AlgoConfig.policy_loss),
        dynamic_sampling=_choice(algo.get("dynamic_sampling"), AlgoConfig.dynamic_sampling),
        trajectories_per_group=number,
        has_own_advantage=_part(config, "advantage").get("name", _BUILT_IN) != _BUILT_IN,
    )


def _part(config: Record, key: str) -> Record:
    value = config.get(key)
    if isinstance(value, Mapping):
        return value
    return {}


def _choice(value: Any, default: Choice) -> Choice:
    try:
        return type(default)(value)
    except ValueError:
        return default
