"""A clock that stands still during weight syncs, so that no hold, lease or deadline runs while nothing can move.

Invariants:
- Never goes back. Syncs nest; an end without a beginning is ignored.
"""


class SyncClock:
    def __init__(self) -> None:
        self.wall_s = 0.0
        self.now_s = 0.0
        self._depth = 0
        self._began_s = 0.0
        self._total_s = 0.0
        self._kv_lost = False

    @property
    def syncing(self) -> bool:
        return self._depth > 0

    def set(self, wall_s: float) -> None:
        self.wall_s = max(self.wall_s, wall_s)
        if not self._depth:
            self.now_s = max(self.now_s, self.wall_s - self._total_s)  # rounding must not turn it back

    def begin(self) -> None:
        if not self._depth:
            self._began_s, self._kv_lost = self.wall_s, False
        self._depth += 1

    def end(self, kv_kept: bool) -> bool:
        """Whether this ended the outermost sync, and what the engines had cached is lost."""
        if not self._depth:
            return False
        self._kv_lost |= not kv_kept
        self._depth -= 1
        if self._depth:
            return False
        self._total_s += self.wall_s - self._began_s
        return self._kv_lost
