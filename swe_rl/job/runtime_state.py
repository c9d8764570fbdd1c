"""The live line of `job=runtime`: how many places are taken.

Invariants:
- No clock of its own; the bar fills with the share of places in use.
"""

from swe_rl.logger.progress_state import ProgressState
from swe_rl.logger.progress_text import duration

_BAR = 100


class RuntimeState(ProgressState):
    def __init__(self) -> None:
        super().__init__(total_steps=_BAR)
        self._line = ""
        self._since_s: float | None = None

    def look(self, used: int, slots: int) -> bool:
        """Whether there is something new to show."""
        line = f"{used}/{slots} sandboxes"
        changed, self._line = line != self._line, line
        self.done_steps = round(_BAR * used / max(1, slots))
        return changed

    def headline(self, now_s: float) -> str:
        if not self._line:
            return "starting"
        self._since_s = now_s if self._since_s is None else self._since_s
        return f"serving {duration(now_s - self._since_s)}  {self._line}"

    def collection(self, now_s: float) -> str | None:
        return None
