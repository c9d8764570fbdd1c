"""Counts what mining costs: seconds and CPU seconds of each phase, so that building is not taken for testing.

Invariants:
- CPU seconds are those of this process and of all programs that it started and that have ended.
- The phases follow each other: what runs side by side belongs to one phase.
"""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """Names what a job does one after the other. Some jobs enter a phase twice."""

    compare = "compare"  # Archives are fetched, unpacked and compared.
    build = "build"  # Environments and trees are made.
    search = "search"  # Tests run to find the tasks of a change or a release.
    prove = "prove"  # Tests run to prove the tasks.


@dataclass(slots=True)
class PhaseCost:
    """Holds what a phase cost so far."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MiningCost:
    """Holds the cost of each phase that was entered."""

    phases: dict[Phase, PhaseCost] = field(default_factory=dict)

    @contextmanager
    def counting(self, phase: Phase) -> Iterator[None]:
        """Adds to a phase what the block costs, also where it ends with an error."""
        cost = self.phases.setdefault(phase, PhaseCost())
        began_s = time.monotonic()
        began_cpu_s = _cpu_s()
        try:
            yield
        finally:
            cost.wall_s += time.monotonic() - began_s
            cost.cpu_s += _cpu_s() - began_cpu_s

    def to_record(self, num_proven: int) -> dict[str, object]:
        """Returns the costs as the report has them; those of an instance are missing where there is none."""
        phases = {
            str(phase): {"wall_s": round(cost.wall_s, 1), "cpu_s": round(cost.cpu_s, 1)}
            for phase, cost in self.phases.items()
        }
        if not num_proven:
            return {"phases": phases}
        tests_cpu_s = self._cpu_s_of(Phase.search) + self._cpu_s_of(Phase.prove)
        return {
            "phases": phases,
            "build_cpu_s_per_instance": round(self._cpu_s_of(Phase.build) / num_proven, 1),
            "tests_cpu_s_per_instance": round(tests_cpu_s / num_proven, 1),
        }

    def _cpu_s_of(self, phase: Phase) -> float:
        return self.phases.get(phase, PhaseCost()).cpu_s


def _cpu_s() -> float:
    """Returns the CPU seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
