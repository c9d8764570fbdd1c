"""An agent's own time: what its completions and commands took, without waiting for a place to run a command."""


class Budget:
    """Seconds to spend; `spend` never goes back."""

    def __init__(self, total_s: float) -> None:
        self._left_s = total_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._left_s)

    @property
    def is_spent(self) -> bool:
        return self._left_s <= 0.0

    def spend(self, seconds_s: float) -> None:
        self._left_s -= max(0.0, seconds_s)
