"""The reward: what an attempt is worth."""

from swe_rl.api import Attempt


class MyPackageReward:
    """1 for a resolved task, less `price` for each turn, but never less than `floor`."""

    failure = 0.0  # of an attempt that was not graded

    def __init__(self, price: float = 0.05, floor: float = 0.5) -> None:
        self._price = price
        self._floor = floor

    async def reward(self, attempt: Attempt) -> float:
        if not attempt.grade.resolved:
            return 0.0
        return max(self._floor, 1.0 - self._price * len(attempt.turns))
