"""Advantages of somebody's own, in place of `algo.advantage`.

Invariants:
- A method sees all groups of a step at once; rewards have the penalties of `algo` taken off already.
- A member outside of the baseline has advantage 0, whatever the method says.
- What is no finite number, or of another length than was asked for, ends the run with the class's name.
"""

from collections.abc import Sequence

from swe_rl.algo.protocol import Advantage, RewardGroup
from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import AdvantageConfig, AlgoConfig
from swe_rl.errors import SweRlError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import LONGEST_S, ExtensionFailure, failure, make, require_numbers, within


class ForeignAdvantage:
    def __init__(self, advantage: Advantage, maker: Foreign, *, limit_s: float = LONGEST_S) -> None:
        self.needs_group = bool(getattr(advantage, "needs_group", True))
        self._advantage = advantage
        self._maker = maker
        self._limit_s = limit_s

    def advantages(self, groups: Sequence[RewardGroup]) -> list[list[float]]:
        """Raises ExtensionFailure."""
        try:
            with within(self._limit_s):
                answer = list(self._advantage.advantages(groups))
        except SweRlError:
            raise
        except Exception as error:
            raise ExtensionFailure(failure(self._maker, "advantages", error)) from error
        if len(answer) != len(groups):
            raise ExtensionFailure(
                f"{self._maker}: its method advantages must return a list for each of {len(groups)} groups, not "
                f"{len(answer)}"
            )
        return [self._of_group(list(values), group) for values, group in zip(answer, groups, strict=True)]

    def _of_group(self, values: list[float], group: RewardGroup) -> list[float]:
        numbers = require_numbers(self._maker, "advantages", values, len(group.rewards))
        return [number if place in group.members else 0.0 for place, number in enumerate(numbers)]


def make_advantage(config: AdvantageConfig, algo: AlgoConfig) -> ForeignAdvantage | None:
    """None: `algo.advantage` decides. Raises UserError."""
    ours = {"default": "swe_rl.algo.foreign.advantage.no_advantage"}
    advantage, maker = make(ExtensionKind.advantage, config, {"config": algo}, ours)
    return None if maker is None else ForeignAdvantage(advantage, maker)


def no_advantage() -> None:
    """Of advantage=default: `algo.advantage` decides."""
