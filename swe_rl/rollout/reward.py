"""Rewards of somebody's own: what pays a graded trajectory in place of `env.reward`.

Invariants:
- A reward that raises, hangs or is no finite number is a RewardError: the attempt ends as grade_error, is tried again,
  then masked. It is never a reward of 0.
- Only a trajectory whose outcome says `graded` and whose tests ran is put to it; one that failed has `failure`, as has
  one whose change could have tricked its tests.
"""

import asyncio
import inspect
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from swe_rl.agent.protocol import Turn
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import RewardConfig
from swe_rl.env.instance import Instance
from swe_rl.env.protocol import Grade, GradeError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import failure, make


class RewardError(GradeError):
    """There is no reward: whoever gives it failed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a reward is told of a trajectory: `status` is resolved or unresolved.

    `messages`: the whole conversation in OpenAI's shape; of a program that keeps its own, the task alone.
    """

    trajectory_id: str
    instance: Instance
    status: str
    patch: str
    grade: Grade
    turns: Sequence[Turn]
    messages: Sequence[Mapping[str, Any]]


class Reward(Protocol):
    """`failure`: what a trajectory gets that was not graded, dimensionless as the reward is."""

    failure: float = 0.0

    @abstractmethod
    async def reward(self, attempt: Attempt) -> float:
        """Finite. Whatever it raises is a failure of infrastructure: the attempt is repeated, then masked."""
        ...


class ForeignReward:
    def __init__(self, reward: Reward, maker: Foreign, *, timeout_s: float) -> None:
        self.failure = float(getattr(reward, "failure", 0.0))
        self._reward = reward
        self._maker = maker
        self._timeout_s = timeout_s

    async def reward(self, attempt: Attempt) -> float:
        """Raises RewardError."""
        try:
            answer = self._reward.reward(attempt)
            value = await asyncio.wait_for(answer, self._timeout_s) if inspect.isawaitable(answer) else answer
        except TimeoutError as error:
            said = f"{self._maker}: its method reward did not end within rollout.grade_timeout_s={self._timeout_s:g}"
            raise RewardError(said) from error
        except Exception as error:
            raise RewardError(failure(self._maker, "reward", error)) from error
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
        raise RewardError(f"{self._maker}: its method reward must return a finite number, not {value!r:.80}")


def make_reward(config: RewardConfig, timeout_s: float) -> ForeignReward | None:
    """None: `env.reward` pays. Raises UserError."""
    reward, maker = make(ExtensionKind.reward, config, {}, {"default": "swe_rl.rollout.reward.no_reward"})
    return None if maker is None else ForeignReward(reward, maker, timeout_s=timeout_s)


def no_reward() -> None:
    """Of reward=default: `env.reward` pays."""
