"""Remembers that a patch was convicted: from then on, patches that would be paid are looked at more often."""

from dataclasses import dataclass

_GRADINGS = 200  # an alert ends when so many gradings convicted nobody


@dataclass(slots=True)
class Alert:
    """Says whether somebody seems to look for ways to be paid without a fix, which holds for all instances."""

    gradings_left: int = 0

    def sound(self) -> None:
        """Notes that a patch was convicted."""
        self.gradings_left = _GRADINGS

    def ask(self) -> bool:
        """Tells whether a patch has to be looked at more often."""
        self.gradings_left = max(0, self.gradings_left - 1)
        return self.gradings_left > 0


ALERT = Alert()
