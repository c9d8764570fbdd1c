"""One issue to solve, in SWE-bench's own record format."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from swe_rl.errors import UserError

_REQUIRED = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
_OPTIONAL = (
    "version",
    "image",
    "eval_script",
    "log_parser",
    "eval_type",
    "environment_setup_commit",
    "hints_text",
    "created_at",
    "difficulty",
    "setup_script",
    "hide_script",
)


class InstanceError(UserError):
    """A record or a file of instances is missing, malformed or contradicts itself."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an instance's tree comes from when there is neither a registry nor a clone: a source distribution."""

    sdist: str  # NAME-VERSION, as the package index calls it
    fix: str  # how its tree becomes the base commit's, in words: it is taken back, or it applies forward
    python: str  # the version that the tests run with, as 3.9

    @property
    def reverse(self) -> bool:
        """True if the distribution has the fix already, which is then taken back."""
        return self.fix.lower().startswith("reverse")

    @classmethod
    def from_record(cls, value: Any, where: str) -> "Source":
        """Raises InstanceError naming `where` and the key."""
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise InstanceError(f"{where}: column 'source' is a string but not JSON: {error}") from error
        keys = ("sdist", "fix", "python")
        if not isinstance(value, Mapping) or not all(isinstance(value.get(key), str) for key in keys):
            raise InstanceError(f"{where}: column 'source' must hold the strings {', '.join(keys)}")
        source = cls(value["sdist"], value["fix"], value["python"])
        if not source.reverse and "forward" not in source.fix:
            raise InstanceError(
                f"{where}: column 'source' has fix={source.fix!r}; it says either that patch and test_patch are to be "
                "reverse-applied, or that they apply forward"
            )
        return source


@dataclass(frozen=True, slots=True)
class Instance:
    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str  # gold; never shown to an agent
    test_patch: str  # adds FAIL_TO_PASS tests; applied by the grader only
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    version: str = ""
    image: str = ""  # container image that holds the repository at its base commit; empty: env.image_template's
    eval_script: str = ""  # the data set's own test script, as the official harness wants it
    log_parser: str = ""  # the official harness's name of the reader of that script's log
    eval_type: str = ""
    environment_setup_commit: str = ""
    hints_text: str = ""
    created_at: str = ""
    difficulty: str = ""
    setup_script: str = ""  # bash that makes the base tree in a fresh container of the image, as root
    hide_script: str = ""  # bash that takes the tests out of an agent's container; never run before grading
    source: Source | None = None  # how to make workspace and image without a registry

    @classmethod
    def from_record(cls, record: Mapping[str, Any], where: str = "record") -> "Instance":
        """SWE-bench writes the two test lists either as lists or as JSON strings; both are read.

        Raises InstanceError naming `where` and the column.
        """
        for key in _REQUIRED:
            if not isinstance(record.get(key), str):
                raise InstanceError(
                    f"{where}: column {key!r} is missing or not a string; SWE-bench's columns are needed"
                )
        return cls(
            **{key: record[key] for key in _REQUIRED},
            fail_to_pass=_test_ids(record, "FAIL_TO_PASS", where),
            pass_to_pass=_test_ids(record, "PASS_TO_PASS", where),
            **{key: str(record.get(key) or "") for key in _OPTIONAL},
            source=Source.from_record(record["source"], where) if record.get("source") else None,
        )

    def to_record(self) -> dict[str, Any]:
        record: dict[str, Any] = {key: getattr(self, key) for key in _REQUIRED}
        record |= {
            "FAIL_TO_PASS": list(self.fail_to_pass),
            "PASS_TO_PASS": list(self.pass_to_pass),
            **{key: value for key in _OPTIONAL if (value := getattr(self, key)) or key == "version"},
        }
        return record | ({"source": asdict(self.source)} if self.source else {})


def _test_ids(record: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = record.get(key)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InstanceError(f"{where}: column {key!r} is a string but not a JSON list: {error}") from error
    if not isinstance(value, list | tuple) or not all(isinstance(test, str) for test in value):
        raise InstanceError(f"{where}: column {key!r} must be a list of test ids")
    return tuple(value)
