"""A split as the data set has it: read, converted, and without what nobody could solve.

Invariants:
- What is left out is counted by its reason and named; nothing else is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from swe_rl.check.preflight.image_names import image_of
from swe_rl.config.choices import GradingKind
from swe_rl.config.schema import EnvConfig
from swe_rl.env.grading.swebench_spec import LOG_PARSERS, Recipe, complete, eval_script
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.records import Row, refuse_duplicates
from swe_rl.env.swe import r2e_gym, swe_smith
from swe_rl.env.swe.columns import with_columns
from swe_rl.env.swe.dataset import load_rows
from swe_rl.env.swe.own_command import with_script
from swe_rl.env.swe.prepared import Identity, is_evaluated

# From a data set's own columns to an Instance: which format a row is in, and what its image is called.
# - The format is recognised by a row's columns, not by the name of the data set: a mirror or an extract reads the same.
# - A row's own image comes before the configuration's template.
# - What is missing or malformed is said with the row's place and the column.
_IMAGE_COLUMNS = ("image", "image_name", "docker_image")
_NESTED = ("instance", "extra_info")  # rows made for a trainer keep the record in one of these


def to_instances(rows: Sequence[Row], image_template: str | None) -> list[Instance]:
    """Raises InstanceError."""
    return [to_instance(row.record, row.where, image_template) for row in rows]


def to_instance(record: Mapping[str, Any], where: str, image_template: str | None = None) -> Instance:
    """Raises InstanceError naming `where` and the column."""
    record = _unnested(record)
    if r2e_gym.is_row(record):
        return r2e_gym.to_instance(record, where)
    if swe_smith.is_row(record):
        return swe_smith.to_instance(record, where)
    _refuse_multi_swe(record, where)
    instance = Instance.from_record(record, where)
    image = next((str(record[column]) for column in _IMAGE_COLUMNS if record.get(column)), "")
    if not image and image_template:
        image = image_of(image_template, instance.instance_id)
    return _with_script(with_script(replace(instance, image=image), record, where))


def _refuse_multi_swe(record: Mapping[str, Any], where: str) -> None:
    """Raises InstanceError."""
    if "fix_patch" in record and "patch" not in record:
        raise InstanceError(
            f"{where}: a row of Multi-SWE-bench or Multi-SWE-RL (column fix_patch). How its tests are run is in its "
            "images, and the readers of their logs are in its own harness, so it cannot be graded here; "
            "env=swebench_multilingual has issues in nine languages"
        )


def _with_script(instance: Instance) -> Instance:
    """Where a row says how its tests are run and has no script: the official script around that command."""
    if instance.source is None or not instance.source.test_command or instance.eval_script:
        return instance
    script = eval_script(instance, Recipe(test=instance.source.test_command, install=""))
    return replace(instance, eval_script=script, log_parser=instance.log_parser or "parse_log_pytest")


def _unnested(record: Mapping[str, Any]) -> Mapping[str, Any]:
    for column in _NESTED:
        inner = record.get(column)
        if "instance_id" not in record and isinstance(inner, Mapping) and "instance_id" in inner:
            return inner
    return record


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
    rows = with_columns(loaded.rows, identity.columns, config.name, identity.dataset, key.replace("dataset", "columns"))
    instances = to_instances(rows, identity.image_template)
    instances = [complete(instance) if _has_official_tests(instance, config) else instance for instance in instances]
    refuse_duplicates(instances, f"{key}={identity.dataset}")
    kept, dropped = usable(instances, identity.max_tests, by_harness=config.grading is GradingKind.swebench)
    if not kept:
        reasons = ", ".join(f"{len(names)} with {reason}" for reason, names in dropped.items())
        raise InstanceError(f"{key}={identity.dataset}: {split} has no usable instance ({reasons})")
    return Read(kept, loaded.revision, len(loaded.rows), dropped, loaded.split_rows)


def _has_official_tests(instance: Instance, config: EnvConfig) -> bool:
    """True where the rows' tests are SWE-bench's: its older rows lack the columns that its harness wants."""
    return config.grading is GradingKind.swebench and not instance.repo.startswith("bugs/")


def usable(
    instances: Sequence[Instance], max_tests: int, *, by_harness: bool = False
) -> tuple[list[Instance], dict[str, list[str]]]:
    """Those that can be solved and judged, and the ids of the others by reason."""
    kept: list[Instance] = []
    dropped: dict[str, list[str]] = {}
    for instance in instances:
        reason = _unusable(instance, max_tests, by_harness) or (_not_judged(instance) if by_harness else "")
        if reason:
            dropped.setdefault(reason, []).append(instance.instance_id)
        else:
            kept.append(instance)
    return kept, dropped


def _unusable(instance: Instance, max_tests: int, by_harness: bool) -> str:
    if not instance.problem_statement.strip():
        return "an empty problem_statement"
    if not instance.fail_to_pass and not (by_harness and instance.is_unmeasured):
        return "no FAIL_TO_PASS test"
    if instance.setup_script and not instance.eval_script:
        return "tests that are not Python, and no column eval_script that says how they are run"
    if 0 < max_tests < len(instance.fail_to_pass) + len(instance.pass_to_pass):
        return f"more than {max_tests} tests (env.max_tests)"
    return ""


def _not_judged(instance: Instance) -> str:
    """By SWE-bench's harness."""
    if instance.repo.startswith("bugs/"):
        return ""
    if not instance.eval_script:
        return "no column eval_script and no test command, and tests that are not Python"
    if instance.log_parser not in LOG_PARSERS:
        return f"log_parser={instance.log_parser}, which SWE-bench's harness does not have"
    return ""
