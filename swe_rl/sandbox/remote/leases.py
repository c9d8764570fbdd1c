"""Which run holds which sandbox of the server, and until when; no clock of its own.

Invariants:
- A sandbox belongs to one run. A run that neither asked for anything nor renewed for `lease_s` loses all of its own.
- A request id stands for one sandbox: a start that is asked for twice, because its answer was lost, is one start.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Held = TypeVar("Held")


@dataclass(slots=True)
class _Run(Generic[Held]):
    seen_s: float
    held: dict[str, Held] = field(default_factory=dict)


class Leases(Generic[Held]):
    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._runs: dict[str, _Run[Held]] = {}

    def renew(self, run: str, now_s: float) -> int:
        """How many sandboxes the run holds."""
        entry = self._runs.setdefault(run, _Run(now_s))
        entry.seen_s = now_s
        return len(entry.held)

    def hold(self, run: str, sandbox_id: str, held: Held, now_s: float) -> None:
        self.renew(run, now_s)
        self._runs[run].held[sandbox_id] = held

    def get(self, run: str, sandbox_id: str, now_s: float) -> Held | None:
        self.renew(run, now_s)
        return self._runs[run].held.get(sandbox_id)

    def drop(self, run: str, sandbox_id: str) -> Held | None:
        entry = self._runs.get(run)
        return entry.held.pop(sandbox_id, None) if entry else None

    def end(self, run: str) -> list[Held]:
        entry = self._runs.pop(run, None)
        return list(entry.held.values()) if entry else []

    def lapse(self, now_s: float) -> list[Held]:
        """Ends the runs that were not heard of for too long; returns what they held."""
        gone = [run for run, entry in self._runs.items() if now_s - entry.seen_s > self._lease_s]
        return [held for run in gone for held in self.end(run)]

    def heard_s(self) -> float | None:
        """When any run that has not ended was last heard of; None where there is none."""
        return max((entry.seen_s for entry in self._runs.values()), default=None)

    def everyone(self) -> list[tuple[str, str, Held]]:
        """Run, sandbox id, what is held."""
        return [(run, name, held) for run, entry in self._runs.items() for name, held in entry.held.items()]
