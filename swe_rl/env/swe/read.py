"""Reads a split as the data set has it, converts it, and leaves out what nobody could solve.

Invariants:
- What is left out is counted by its reason and named; nothing else is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swe_rl.config.choices import GradingKind
from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.find_rows import LoadedRows, load_rows
from swe_rl.dataset.images import image_of
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.records import PlacedRecord, refuse_duplicates
from swe_rl.env.grading.swebench_spec import LOG_PARSERS, TestRecipe, complete_instance, eval_script
from swe_rl.env.issues.book import IssueBook
from swe_rl.env.swe import r2e_gym, swe_smith, swebench_pro
from swe_rl.env.swe.columns import with_columns
from swe_rl.env.swe.own_command import with_script
from swe_rl.env.swe.prepared import PreparedIdentity, is_evaluated

# A row's own image, in one of these columns, comes before the configuration's template. A row's format is recognised by
# its columns, not by the name of the data set, so that a mirror or an extract reads the same.
_IMAGE_COLUMNS = ("image", "image_name", "docker_image")
_NESTED = ("instance", "extra_info")  # Rows made for a trainer keep the record in one of these.


def to_instances(
    rows: Sequence[PlacedRecord], image_template: str | None, scripts: Path | None = None
) -> list[Instance]:
    """Returns the instances of rows. Raises InstanceError."""
    return [to_instance(row.record, row.where, image_template, scripts) for row in rows]


def to_instance(
    record: Mapping[str, Any], where: str, image_template: str | None = None, scripts: Path | None = None
) -> Instance:
    """Returns the instance of a row in any of the known formats. `scripts` is the folder `env.scripts`.

    Raises InstanceError naming `where` and the column.
    """
    record = _inner_record(record)
    if swebench_pro.is_row(record):
        return swebench_pro.to_instance(record, where, scripts)
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
    """Raises InstanceError for a row of Multi-SWE-bench, which cannot be graded here."""
    if "fix_patch" in record and "patch" not in record:
        raise InstanceError(
            f"{where}: a row of Multi-SWE-bench or Multi-SWE-RL (column fix_patch). How its tests are run is in its "
            "images, and the readers of their logs are in its own harness, so it cannot be graded here; "
            "env=swebench_multilingual has issues in nine languages"
        )


def _with_script(instance: Instance) -> Instance:
    """Returns the instance with the official script around the test command that its row names.

    An instance without a command, or with a script of its own, stays as it is.
    """
    if instance.source is None or not instance.source.test_command or instance.eval_script:
        return instance
    command = _with_cheap_tracebacks(instance.source.test_command)
    script = eval_script(instance, TestRecipe(test=command, install=""))
    return replace(instance, eval_script=script, log_parser=instance.log_parser or "parse_log_pytest")


def _with_cheap_tracebacks(command: str) -> str:
    """Returns a command of pytest that prints Python's own tracebacks, and any other command as it is.

    Twins have to fail, and each case of a test with parameters has one. pytest's own tracebacks parse the file of tests
    anew for each of them, which took three quarters of a grading. No reader of logs looks at them.
    """
    words = command.split()
    if words[:1] != ["pytest"] or any(word.startswith("--tb") for word in words):
        return command
    return f"{command} --tb=native"


def _inner_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the record inside of a trainer's row, or the row itself."""
    for column in _NESTED:
        inner = record.get(column)
        if "instance_id" not in record and isinstance(inner, Mapping) and "instance_id" in inner:
            return inner
    return record


@dataclass(frozen=True, slots=True)
class Read:
    """Holds the usable instances of a split, and what was left out."""

    instances: list[Instance]
    revision: str
    source_rows: int
    # It maps a reason to the ids that were left out for it.
    dropped: dict[str, list[str]] = field(default_factory=dict)
    # It counts the rows of the whole split, with those that its slice left out; None means unknown.
    split_rows: int | None = None


def read_split(config: EnvConfig, split: str) -> Read:
    """Returns the usable instances of a split, read from the data set.

    Raises InstanceError, also where no instance is usable.
    """
    identity = PreparedIdentity.of(config, split)
    key = "env.eval_dataset" if is_evaluated(config, split) else "env.dataset"
    instances, loaded = _read_all(config, split, key)
    if config.issues:
        instances = IssueBook.read(Path(config.issues), config.issue_words).with_texts(instances)
    kept, dropped = usable_instances(instances, identity.max_tests, by_harness=config.grading is GradingKind.swebench)
    if not kept:
        reasons = ", ".join(f"{len(names)} with {reason}" for reason, names in dropped.items())
        raise InstanceError(f"{key}={identity.dataset}: {split} has no usable instance ({reasons})")
    return Read(kept, loaded.revision, len(loaded.rows), dropped, loaded.split_rows)


def read_whole_split(config: EnvConfig, split: str) -> list[Instance]:
    """Returns all instances of a split as the data set has them, also those that nobody could solve.

    Raises InstanceError.
    """
    key = "env.eval_dataset" if is_evaluated(config, split) else "env.dataset"
    return _read_all(config, split, key)[0]


def _read_all(config: EnvConfig, split: str, key: str) -> tuple[list[Instance], LoadedRows]:
    identity = PreparedIdentity.of(config, split)
    loaded = load_rows(identity.dataset, split, revision=identity.wanted_revision, key=key)
    rows = with_columns(loaded.rows, identity.columns, config.name, identity.dataset, key.replace("dataset", "columns"))
    scripts = None
    if config.scripts is not None:
        scripts = Path(config.scripts)
    instances = to_instances(rows, identity.image_template, scripts)
    instances = [
        complete_instance(instance) if _has_official_tests(instance, config) else instance for instance in instances
    ]
    refuse_duplicates((instance.instance_id, row.where) for instance, row in zip(instances, rows, strict=True))
    return instances, loaded


def _has_official_tests(instance: Instance, config: EnvConfig) -> bool:
    """Tells whether the rows' tests are SWE-bench's. Its older rows lack the columns that its harness wants."""
    return config.grading is GradingKind.swebench and not instance.repo.startswith("bugs/")


def usable_instances(
    instances: Sequence[Instance], max_tests: int, *, by_harness: bool = False
) -> tuple[list[Instance], dict[str, list[str]]]:
    """Returns the instances that can be solved and judged, and the ids of the others by reason."""
    kept: list[Instance] = []
    dropped: dict[str, list[str]] = {}
    for instance in instances:
        reason = _unusable_reason(instance, max_tests, by_harness) or (_not_judged(instance) if by_harness else "")
        if reason:
            dropped.setdefault(reason, []).append(instance.instance_id)
        else:
            kept.append(instance)
    return kept, dropped


def _unusable_reason(instance: Instance, max_tests: int, by_harness: bool) -> str:
    """Returns why nobody could solve the instance, and an empty text for a usable one."""
    if not instance.problem_statement.strip():
        return "an empty problem_statement"
    if not instance.fail_to_pass and not (by_harness and instance.is_unmeasured):
        return "no FAIL_TO_PASS test"
    if instance.log_parser == swebench_pro.LOG_PARSER and not instance.eval_script:
        return "no run_script.sh and parser.py in env.scripts"
    if instance.setup_script and not instance.eval_script:
        return "tests that are not Python, and no column eval_script that says how they are run"
    if 0 < max_tests < len(instance.fail_to_pass) + len(instance.pass_to_pass):
        return f"more than {max_tests} tests (env.max_tests)"
    return ""


def _not_judged(instance: Instance) -> str:
    """Returns why SWE-bench's harness cannot judge the instance, and an empty text where it can."""
    if instance.repo.startswith("bugs/"):
        return ""
    if not instance.eval_script:
        return "no column eval_script and no test command, and tests that are not Python"
    if instance.log_parser not in LOG_PARSERS:
        return f"log_parser={instance.log_parser}, which SWE-bench's harness does not have"
    return ""
