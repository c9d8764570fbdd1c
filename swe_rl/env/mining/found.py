"""Holds what became of all differences, and writes it: the proven instances, and a report of the others.

Invariants:
- All instances of a project are in one split, which follows from the project's name alone.
- The rows are in the order of their ids, so the same finds give the same file.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.dataset.instance import Instance
from swe_rl.env.mining.candidate import TaskCandidate
from swe_rl.env.mining.cost import MiningCost
from swe_rl.env.proof.measure import TIMED_OUT
from swe_rl.files.disk import write_json_atomic, write_text_atomic

# A difference that gave a candidate has one of these words in the report.
PROVEN = "proven"
REFUTED = "its proof failed"
UNTRIED = "infrastructure failed"
SHOWN = "its fix stands in a file that an agent sees"
ALTERED = "it is proven, and not the row that mine.lock names"


@dataclass(frozen=True, slots=True)
class Found:
    """Holds the candidates, and for each candidate's id the instance as it was proven, or why it was not."""

    candidates: Sequence[TaskCandidate]
    outcomes: Mapping[str, Instance | str]
    proof_s: Mapping[str, float] = field(default_factory=dict)  # It maps a candidate's id to what its proof cost.

    @property
    def proven(self) -> list[Instance]:
        return [outcome for outcome in self.outcomes.values() if isinstance(outcome, Instance)]

    def counts(self) -> list[tuple[str, int]]:
        """Returns how many differences had which outcome, the most frequent first."""
        return Counter(self._outcome(candidate)[0] for candidate in self.candidates).most_common()

    def split_sizes(self, heldout_share: float) -> dict[str, int]:
        """Returns how many proven instances each split has."""
        splits = [split_of(instance.repo, heldout_share) for instance in self.proven]
        return {split: splits.count(split) for split in ("train", "heldout")}

    def write(self, target: Path, heldout_share: float, cost: MiningCost) -> None:
        """Writes the proven instances, and beside them what became of each difference. Raises DiskError."""
        licences = {
            candidate.instance.instance_id: candidate.licence
            for candidate in self.candidates
            if candidate.instance is not None
        }
        write_text_atomic(target, lines_of(self.proven, licences, heldout_share))
        differences = []
        for candidate in self.candidates:
            outcome, why = self._outcome(candidate)
            about = {"difference": candidate.name, "project": candidate.project}
            made = {} if candidate.instance is None else self._about_instance(candidate.instance)
            differences.append({**about, "outcome": outcome, "why": why, **made})
        write_json_atomic(report_of(target), {**self._totals(cost), "differences": differences})

    def _about_instance(self, instance: Instance) -> dict[str, str | float]:
        name = instance.instance_id
        return {"instance": name} | ({"proof_s": self.proof_s[name]} if name in self.proof_s else {})

    def _totals(self, cost: MiningCost) -> dict[str, Any]:
        """Returns the yield and the cost of all that was looked at, and of each project."""
        projects: dict[str, Counter[str]] = {}
        for candidate in self.candidates:
            projects.setdefault(candidate.project, Counter())[self._outcome(candidate)[0]] += 1
        tried = len(self.outcomes)
        seconds = sum(self.proof_s.values())
        return {
            "looked_at": len(self.candidates),
            "candidates": tried,
            "proven": len(self.proven),
            "proof_s": round(seconds, 1),
            "proof_s_per_instance": round(seconds / len(self.proven), 1) if self.proven else None,
            "cost": cost.to_record(len(self.proven)),
            "counts": dict(self.counts()),
            "projects": {name: dict(counts) for name, counts in sorted(projects.items())},
        }

    def _outcome(self, candidate: TaskCandidate) -> tuple[str, str]:
        """Returns the word for what became of a difference, and why."""
        if candidate.instance is None:
            return str(candidate.reason), candidate.detail
        outcome = self.outcomes.get(candidate.instance.instance_id, "its row was left out when it was read")
        if isinstance(outcome, Instance):
            return PROVEN, candidate.detail
        words = (word for word in (UNTRIED, ALTERED, SHOWN, TIMED_OUT) if outcome.startswith(word))
        return next(words, REFUTED), outcome


def report_of(target: Path) -> Path:
    """Returns the place of the report that belongs to a file of instances."""
    return target.with_name(f"{target.stem}.report.json")


def split_of(project: str, heldout_share: float) -> str:
    """Returns `heldout` or `train`: all instances of a project, on all machines, are in the same split."""
    digest = hashlib.sha256(project.lower().encode()).digest()
    return "heldout" if int.from_bytes(digest[:4]) < heldout_share * 2**32 else "train"


def lines_of(rows: Iterable[Instance], licences: Mapping[str, str] | None = None, heldout_share: float = 0.0) -> str:
    """Returns rows as lines of JSON, in the order of their ids."""
    lines: list[str] = []
    known = licences or {}
    for row in sorted(rows, key=lambda row: row.instance_id):
        record = row.to_record() | {"split": split_of(row.repo, heldout_share)}
        if known.get(row.instance_id):
            record["licence"] = known[row.instance_id]
        lines.append(json.dumps(record, sort_keys=True) + "\n")
    return "".join(lines)
