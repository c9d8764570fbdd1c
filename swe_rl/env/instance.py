"""One issue to solve, in SWE-bench's own record format."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swe_rl.errors import UserError

_REQUIRED = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")


class InstanceError(UserError):
    """A record or a file of instances is missing, malformed or contradicts itself."""


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
            version=str(record.get("version") or ""),
        )

    def to_record(self) -> dict[str, Any]:
        record: dict[str, Any] = {key: getattr(self, key) for key in _REQUIRED}
        return record | {
            "FAIL_TO_PASS": list(self.fail_to_pass),
            "PASS_TO_PASS": list(self.pass_to_pass),
            "version": self.version,
        }


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
