"""Records what was measured of an instance's tests: the wrong patches that were graded, and those that passed.

Invariants:
- A wrong patch that got no verdict counts neither as rejected nor as accepted.
- Rates are shares of the wrong patches that were graded; nothing is said where there is none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from swe_rl.report.statistics import Interval, clustered_interval, wilson_interval


class WrongKind(StrEnum):
    """Says how a wrong patch came about."""

    empty_function = "empty_function"  # a function that the gold patch changes only returns None
    mutant = "mutant"  # one place of the lines that the gold patch changes says something else
    sibling = "sibling"  # it is an attempt of an earlier run that was not resolved


@dataclass(frozen=True, slots=True)
class Survivor:
    """Holds a wrong patch that the tests accept. A person decides whether it really is wrong."""

    kind: WrongKind
    what: str  # says in words which change of the right code it is
    # This is a diff from the code with the gold patch to the accepted code. A sibling has its patch here.
    change: str


@dataclass(frozen=True, slots=True)
class MutantTally:
    """Counts wrong patches of one kind."""

    graded: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Strength:
    """Holds the measurement of one instance.

    `reason` says why there is no rate, and is empty where there is one.
    """

    by_kind: Mapping[str, MutantTally]
    survivors: tuple[Survivor, ...] = ()
    not_tried: int = 0  # the budget left no time for so many wrong patches
    no_verdict: int = 0  # the grading of so many wrong patches failed
    cpu_s: float = 0.0
    reason: str = ""
    made_at: str = ""

    @property
    def graded(self) -> int:
        return sum(tally.graded for tally in self.by_kind.values())

    @property
    def accepted(self) -> int:
        return sum(tally.accepted for tally in self.by_kind.values())

    @property
    def false_pass_rate(self) -> float | None:
        return self.accepted / self.graded if self.graded else None

    @property
    def interval(self) -> Interval | None:
        return wilson_interval(self.accepted, self.graded)

    def to_record(self) -> dict[str, Any]:
        """Returns the measurement as a proof stores it, with the rate and its 95 % interval."""
        low, high = self.interval or (None, None)
        return {"false_pass_rate": self.false_pass_rate, "low": low, "high": high, **asdict(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Strength":
        """Returns the measurement that a record holds.

        Raises KeyError, TypeError or ValueError for what is no record of a measurement.
        """
        known = {name: record[name] for name in ("not_tried", "no_verdict", "cpu_s", "reason", "made_at")}
        by_kind = {WrongKind(kind).value: MutantTally(**tally) for kind, tally in record["by_kind"].items()}
        survivors = tuple(
            Survivor(WrongKind(each["kind"]), str(each["what"]), str(each["change"])) for each in record["survivors"]
        )
        return cls(by_kind, survivors, **known)


def summarize_strengths(strengths: Mapping[str, Strength]) -> dict[str, Any] | None:
    """Returns the rate over the wrong patches of all instances, with its interval over instances, and the rate of each.

    Returns None where no wrong patch was graded.
    """
    measured = {name: strength for name, strength in strengths.items() if strength.graded}
    counts: Sequence[tuple[float, int]] = [(each.accepted, each.graded) for each in measured.values()]
    interval = clustered_interval(counts)
    if interval is None:
        return None
    accepted, graded = (sum(count) for count in zip(*counts, strict=True))
    instances = {
        name: {"false_pass_rate": each.false_pass_rate, "accepted": each.accepted, "graded": each.graded}
        for name, each in sorted(measured.items())
    }
    return {
        "false_pass_rate": accepted / graded,
        "low": interval[0],
        "high": interval[1],
        "accepted": accepted,
        "graded": graded,
        "num_instances": len(measured),
        "instances": instances,
    }
