"""A split as the data set has it: read, converted, and without what nobody could solve.

Invariants:
- What is left out is counted by its reason and named; nothing else is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from swe_rl.config.choices import GradingKind
from swe_rl.config.schema import EnvConfig
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.records import refuse_duplicates
from swe_rl.env.swe.dataset import load_rows
from swe_rl.env.swe.formats import to_instances
from swe_rl.env.swe.prepared import Identity, is_evaluated
from swe_rl.env.swebench_spec import complete


@dataclass(frozen=True, slots=True)
class Read:
    instances: list[Instance]
    revision: str
    source_rows: int
    dropped: dict[str, list[str]] = field(default_factory=dict)  # reason -> instance ids
    split_rows: int | None = None  # of the split, what its slice left out included; None: nobody knows


def read_split(config: EnvConfig, split: str) -> Read:
    """Raises InstanceError."""
    identity = Identity.of(config, split)
    key = "env.eval_dataset" if is_evaluated(config, split) else "env.dataset"
    loaded = load_rows(identity.dataset, split, revision=identity.wanted_revision, key=key)
    instances = to_instances(loaded.rows, identity.image_template)
    instances = [complete(one) if _has_official_tests(one, config) else one for one in instances]
    refuse_duplicates(instances, f"{key}={identity.dataset}")
    kept, dropped = usable(instances, identity.max_tests)
    if not kept:
        reasons = ", ".join(f"{len(names)} with {reason}" for reason, names in dropped.items())
        raise InstanceError(f"{key}={identity.dataset}: {split} has no usable instance ({reasons})")
    return Read(kept, loaded.revision, len(loaded.rows), dropped, loaded.split_rows)


def _has_official_tests(one: Instance, config: EnvConfig) -> bool:
    """True where the rows' tests are SWE-bench's: its older rows lack the columns that its harness wants."""
    return config.grading is GradingKind.swebench and not one.repo.startswith("bugs/")


def usable(instances: Sequence[Instance], max_tests: int) -> tuple[list[Instance], dict[str, list[str]]]:
    """Those that can be solved and judged, and the ids of the others by reason."""
    kept: list[Instance] = []
    dropped: dict[str, list[str]] = {}
    for one in instances:
        reason = _unusable(one, max_tests)
        if reason:
            dropped.setdefault(reason, []).append(one.instance_id)
        else:
            kept.append(one)
    return kept, dropped


def _unusable(one: Instance, max_tests: int) -> str:
    if not one.problem_statement.strip():
        return "an empty problem_statement"
    if not one.fail_to_pass:
        return "no FAIL_TO_PASS test"
    if 0 < max_tests < len(one.fail_to_pass) + len(one.pass_to_pass):
        return f"more than {max_tests} tests (env.max_tests)"
    return ""
