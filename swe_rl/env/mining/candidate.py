"""Defines what a miner finds: an instance that nobody has proven yet, or the reason why there is none.

Invariants:
- A reason is one of `Reason`, so that a report can count reasons.
- A statement shows no line of the fix: what it says can be read by an agent.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from swe_rl.dataset.instance import Instance
from swe_rl.env.mining.recipe import TaskRecipe
from swe_rl.env.mining.wording import ChangeWords


class Reason(StrEnum):
    """Says why a difference gives no candidate."""

    unavailable = "its files cannot be had"
    licence = "its licence is not in mine.licences"
    too_old = "it is older than mine.since"
    no_tests = "it has no tests"
    tests_alone = "no file but tests changed"
    fix_alone = "no test changed"
    too_large = "the fix has more lines than mine.max_changed_lines"
    binary = "a changed file is no text"
    no_statement = "too little says what changed"
    leak = "what says what changed shows the fix"
    unrunnable = "its tests could not be run"
    timed_out = "infrastructure: its tests did not end in time (rollout.grade_timeout_s)"
    nothing_turned = "no test fails before the change and passes after it"
    budget = "mine.max_runs or mine.max_run_s ended before its smallest change was found"
    other_archive = "its archive is another one than when the list was made"
    no_bug = "no bug makes a few of its tests fail"


@dataclass(frozen=True, slots=True)
class TaskCandidate:
    """Holds what became of one difference. `name` says which one; there is an instance or a reason, never both."""

    name: str
    project: str
    instance: Instance | None = None
    reason: Reason | None = None
    licence: str = ""  # This is what the project itself says.
    detail: str = ""  # This says in words what was found, or what finding it cost.
    words: ChangeWords = field(default_factory=ChangeWords)  # These describe the change and its parts.
    recipe: TaskRecipe | None = None  # It says how to make the instance again; a commit has none.


def changed_lines(patch: str) -> int:
    """Returns how many lines a patch adds or removes."""
    lines = patch.split("\n")
    return sum(line.startswith(("+", "-")) and not line.startswith(("+++", "---")) for line in lines)


def is_binary(patch: str) -> bool:
    """Tells whether a file of a patch is no text."""
    return "\nGIT binary patch\n" in f"\n{patch}"
