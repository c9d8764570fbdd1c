"""Remembers that a patch was convicted: from then on, patches that would be paid are looked at more often."""

from dataclasses import dataclass, field

from swe_rl.env.grading.cleared import ClearedPatches

_GRADINGS = 200  # an alert ends when so many gradings convicted nobody


@dataclass(slots=True)
class Alert:
    """Says whether somebody seems to look for ways to be paid without a fix, which holds for all instances."""

    gradings_left: int = 0
    cleared: ClearedPatches = field(default_factory=ClearedPatches)  # by sessions after the last conviction

    def sound(self) -> None:
        """Notes that a patch was convicted. Whoever was cleared before may have been lucky."""
        self.gradings_left = _GRADINGS
        self.cleared.forget_all()

    def ask(self) -> bool:
        """Tells whether a patch has to be looked at more often."""
        self.gradings_left = max(0, self.gradings_left - 1)
        return self.gradings_left > 0

    @property
    def is_on(self) -> bool:
        """Tells whether patches are looked at more often now."""
        return self.gradings_left > 0


ALERT = Alert()
