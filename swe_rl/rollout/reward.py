"""Takes rewards of somebody's own, which pay a graded trajectory in place of `env.reward`.

Invariants:
- A reward that raises, hangs or is no finite number is a RewardError: the attempt ends as grade_error, is tried again,
  then masked. It is never a reward of 0.
- Only a trajectory whose outcome says `graded` and whose tests ran is put to it; one that failed has
  `failure`, as has one whose change could have tricked its tests. What turns bring (`pays_turns`) is asked of each that
  has a reward.
"""

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from swe_rl.agent.agent import Turn
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.ranges import LARGEST_REWARD
from swe_rl.config.schema import RewardConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, GradeError
from swe_rl.errors import UserError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import (
    NOBODY,
    ExtensionFailure,
    describe_failure,
    describe_value,
    is_usable_reward,
    make_extension,
    require_numbers,
)


class RewardError(GradeError):
    """There is no reward: whoever gives it failed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trajectory as a reward is told of it. `reward` hears of those that are resolved or unresolved alone.

    `status` is as docs/engineering/failure_policy.md has it. `grade` is one without any, where nothing was put to
    tests. `messages` are the whole conversation in OpenAI's shape; a program that keeps its own has the task alone.
    """

    trajectory_id: str  # The name of the attempt's file in the run's folder.
    instance: Instance  # What was to be solved.
    status: str
    patch: str  # What the agent changed, as git writes it; empty if nothing.
    grade: Grade
    turns: Sequence[Turn]  # The turns of the agent, the first one first.
    messages: Sequence[Mapping[str, Any]]


class Reward(Protocol):
    """Somebody's own reward. `failure` is what a trajectory gets that was not graded, dimensionless as the reward is.

    `pays_turns` says that `turn_rewards` is asked as well.
    """

    failure: float = 0.0
    pays_turns: bool = False

    @abstractmethod
    async def reward(self, attempt: Attempt) -> float:
        """Returns a finite number. Whatever it raises is a failure of infrastructure: the attempt is repeated, then
        masked.
        """
        ...

    async def turn_rewards(self, attempt: Attempt) -> Sequence[float]:
        """Returns for each of `attempt.turns` what it brought by itself, finite, added to `rollout.turn_rewards`."""
        return [0.0 for _ in attempt.turns]


class ForeignReward:
    def __init__(self, reward: Reward, maker: Foreign, *, timeout_s: float) -> None:
        self.failure = float(getattr(reward, "failure", 0.0))
        self.pays_turns = bool(getattr(reward, "pays_turns", False))
        self._reward = reward
        self._maker = maker
        self._timeout_s = timeout_s

    async def reward(self, attempt: Attempt) -> float:
        """Returns the reward. Raises RewardError."""
        value = await self._answer("reward", attempt)
        if is_usable_reward(value):
            return float(value)
        raise RewardError(
            f"{self._maker}: its method reward must return a finite number, not {describe_value(value)} "
            f"(the largest size is {LARGEST_REWARD:g})"
        )

    async def turn_rewards(self, attempt: Attempt) -> list[float]:
        """Returns what turns brought; [] where it does not pay turns. Raises RewardError."""
        if not self.pays_turns:
            return []
        try:
            values = list(await self._answer("turn_rewards", attempt))
            return require_numbers(self._maker, "turn_rewards", values, len(attempt.turns))
        # TypeError says that it was no list at all.
        except (TypeError, ExtensionFailure) as error:
            raise RewardError(f"{self._maker}: its method turn_rewards: {error}") from error

    async def _answer(self, method: str, attempt: Attempt) -> Any:
        try:
            answer = getattr(self._reward, method)(attempt)
            if inspect.isawaitable(answer):
                return await asyncio.wait_for(answer, self._timeout_s)
            return answer
        except TimeoutError as error:
            said = f"{self._maker}: its method {method} did not end within rollout.grade_timeout_s={self._timeout_s:g}"
            raise RewardError(said) from error
        except Exception as error:
            raise RewardError(describe_failure(self._maker, method, error)) from error


def make_reward(config: RewardConfig, timeout_s: float) -> ForeignReward | None:
    """Returns the user's reward, or None if `env.reward` pays. Raises UserError."""
    reward, maker = make_extension(ExtensionKind.reward, config, {}, NOBODY)
    if maker is None:
        return None
    failure = getattr(reward, "failure", 0.0)
    if not is_usable_reward(failure):
        raise UserError(
            f"{maker}: its failure must be a finite number, not {describe_value(failure)} "
            f"(the largest size is {LARGEST_REWARD:g})"
        )
    return ForeignReward(reward, maker, timeout_s=timeout_s)
