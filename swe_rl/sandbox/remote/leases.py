"""This module knows what each run holds on a sandbox server.

Invariants:
- A run that neither asked for anything nor renewed for `lease_s` loses all of its own.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Held = TypeVar("Held")


@dataclass(slots=True)
class _RemoteRun(Generic[Held]):
    seen_s: float
    held: dict[str, Held] = field(default_factory=dict)


class Leases(Generic[Held]):
    """This knows what each run holds, and when it was last heard of."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._runs: dict[str, _RemoteRun[Held]] = {}

    def renew(self, run: str, now_s: float) -> int:
        """Notes that the run lives. Returns how many sandboxes it holds."""
        entry = self._runs.setdefault(run, _RemoteRun(now_s))
        entry.seen_s = now_s
        return len(entry.held)

    def hold(self, run: str, sandbox_id: str, held: Held, now_s: float) -> None:
        """Gives the run a sandbox, and notes that it lives."""
        self.renew(run, now_s)
        self._runs[run].held[sandbox_id] = held

    def get(self, run: str, sandbox_id: str, now_s: float) -> Held | None:
        self.renew(run, now_s)
        return self._runs[run].held.get(sandbox_id)

    def drop(self, run: str, sandbox_id: str) -> Held | None:
        """Takes a sandbox from the run. Returns it, or None where the run does not have it."""
        entry = self._runs.get(run)
        return entry.held.pop(sandbox_id, None) if entry else None

    def end(self, run: str) -> list[Held]:
        """Forgets the run, and returns what it held."""
        entry = self._runs.pop(run, None)
        return list(entry.held.values()) if entry else []

    def lapse(self, now_s: float) -> list[Held]:
        """Ends the runs that were not heard of for too long, and returns what they held."""
        gone = [run for run, entry in self._runs.items() if now_s - entry.seen_s > self._lease_s]
        return [held for run in gone for held in self.end(run)]

    def heard_s(self) -> float | None:
        """Returns when any run that has not ended was last heard of, or None where there is none."""
        return max((entry.seen_s for entry in self._runs.values()), default=None)

    def everyone(self) -> list[tuple[str, str, Held]]:
        """Returns the run, the sandbox's id and what is held, for each sandbox."""
        return [(run, name, held) for run, entry in self._runs.items() for name, held in entry.held.items()]
