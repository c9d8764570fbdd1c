"""Defines an instance, which is one issue to solve, in SWE-bench's own record format."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from unicodedata import category

from swe_rl.errors import UserError

# Every record has to have these columns of SWE-bench as text.
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
    "workdir",
)


class InstanceError(UserError):
    """Says that a record or a file of instances is missing, malformed or contradicts itself."""


# These categories are control characters, halves of surrogate pairs, and ends of lines.
_NOT_IN_IDS = frozenset({"Cc", "Cs", "Zl", "Zp"})


def check_id(instance_id: str, where: str) -> None:
    """Refuses an id that cannot name folders, files and images, or stand on a line of a list.

    Raises InstanceError naming `where`.
    """
    if not instance_id.strip():
        problem = "is empty"
    elif instance_id in (".", ".."):
        problem = "means a folder"
    elif "/" in instance_id or "\\" in instance_id:
        problem = "holds a separator of paths"
    elif not _NOT_IN_IDS.isdisjoint(map(category, instance_id)):
        problem = "holds a character that cannot be printed"
    elif instance_id != instance_id.strip():
        problem = "begins or ends with a blank"
    else:
        return
    raise InstanceError(
        f"{where}: the instance id {instance_id!r:.80} {problem}. An id is the name of folders and files: use letters, "
        "digits, '.', '_' and '-' (env.columns makes such ids of a column of yours)"
    )


@dataclass(frozen=True, slots=True)
class Source:
    """Says where an instance's tree and environment come from when there is neither a registry nor a clone.

    The tree is made of a source distribution, an archive, a folder that holds it, or a git repository (whose base
    commit is taken).
    """

    sdist: str = ""  # The field is NAME-VERSION, as the package index calls it.
    # The field says how the tree becomes the base commit's: the fix is taken back ("reverse ..."), or applies forward.
    fix: str = "applies forward"
    python: str = ""  # The field is the version that the tests run with, as 3.9.
    archive: str = ""  # The field is a .tar.gz or .zip of this machine, in the place of sdist.
    tree: str = ""  # The field is a folder of this machine or the address of a git repository, in the place of sdist.
    # No package is taken that was published after this date. If it is empty, the date is 30 days after the release.
    until: str = ""
    packages: tuple[str, ...] = ()  # These are further packages, as pip writes them: dask, pytest<8.
    optional: tuple[str, ...] = ()  # Each of these packages is taken where there is a wheel of it.
    until_of: tuple[str, ...] = ()  # These are dates of single packages: pytest=2020-12-31.
    setup: str = ""  # This bash changes the environment once its packages are there; it runs in a copy of the tree.
    test_command: str = ""  # The command runs the tests where the row has no eval_script; the tests' files follow it.

    @property
    def reverse(self) -> bool:
        """Tells whether the tree has the fix already, which is then taken back."""
        return self.fix.lower().startswith("reverse")

    @property
    def origin(self) -> str:
        """Returns what the tree is made of, for a message."""
        return self.sdist or self.archive or self.tree

    @classmethod
    def from_record(cls, value: Any, where: str) -> "Source":
        """Returns the source that the value of column 'source' describes.

        Raises InstanceError naming `where` and the key.
        """
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise InstanceError(f"{where}: column 'source' is a string but not JSON: {error}") from error
        if not isinstance(value, Mapping):
            raise InstanceError(f"{where}: column 'source' must be a table of {', '.join(_SOURCE_KEYS)}")
        given = {str(key): content for key, content in value.items() if content is not None}
        _refuse_keys(given, where)
        lists = {key: tuple(given[key]) for key in _SOURCE_LISTS if key in given}
        values: dict[str, Any] = {**given, **lists}
        source = cls(**values)
        if not source.reverse and "forward" not in source.fix:
            raise InstanceError(
                f"{where}: column 'source' has fix={source.fix!r}; it says either that patch and test_patch are to be "
                "reverse-applied, or that they apply forward"
            )
        return source

    def to_record(self) -> dict[str, Any]:
        """Returns the keys that say something, with their values."""
        values = {key: getattr(self, key) for key in _SOURCE_KEYS}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items() if value}


_SOURCE_LISTS = ("packages", "optional", "until_of")
_SOURCE_KEYS = tuple(item.name for item in fields(Source))
# A source names exactly one of these.
_TREES = ("sdist", "archive", "tree")


def _refuse_keys(given: Mapping[str, Any], where: str) -> None:
    """Raises InstanceError where a key is unknown, missing or badly written."""
    unknown = sorted(set(given) - set(_SOURCE_KEYS))
    if unknown:
        raise InstanceError(
            f"{where}: column 'source' has {', '.join(unknown)}, which nothing reads; its keys are "
            f"{', '.join(_SOURCE_KEYS)}"
        )
    wrong = [key for key, content in given.items() if key not in _SOURCE_LISTS and not isinstance(content, str)]
    wrong += [key for key in _SOURCE_LISTS if not _are_words(given.get(key, []))]
    if wrong:
        raise InstanceError(f"{where}: column 'source': {', '.join(wrong)} must be text, or for a list a list of texts")
    if sum(bool(given.get(key)) for key in _TREES) != 1 or not given.get("python"):
        raise InstanceError(f"{where}: column 'source' must hold python, as 3.9, and one of {', '.join(_TREES)}")
    if given.get("sdist") and not given.get("fix"):
        raise InstanceError(f"{where}: column 'source' must hold the strings sdist, fix, python")
    if _SECRET.match(given.get("tree", "")):
        raise InstanceError(
            f"{where}: column 'source': the address in tree holds a user's name or password, and a record is no place "
            "for them; write it without, git asks its credential helper"
        )
    for key, pattern in (("python", _VERSION), ("until", _DATE)):
        if given.get(key) and not pattern.fullmatch(given[key]):
            raise InstanceError(f"{where}: column 'source' has {key}={given[key]!r}; write it as {_AS[key]}")


# An address may hold a user's name or password, which must not be written into a record.
_SECRET = re.compile(r"https?://[^/]*@|\w+://[^/@]*:[^/@]*@")
_VERSION = re.compile(r"\d+\.\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ)?")
# SWE-smith calls its mirror of a repository `owner__name.commit`.
_MIRROR = re.compile(r".*?__(.*)\.[0-9a-f]+")
_AS = {"python": "3.9", "until": "2020-05-04"}


def _are_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(word, str) and word.strip() for word in value)


@dataclass(frozen=True, slots=True)
class Instance:
    """Holds one issue with its tests: a row of a data set, with SWE-bench's columns."""

    instance_id: str  # The name of the instance, which also names folders and files.
    repo: str  # The repository, as OWNER/NAME.
    base_commit: str  # The agent begins at this commit.
    problem_statement: str  # The text of the issue.
    patch: str  # The gold patch is never shown to an agent.
    test_patch: str  # The test patch adds the FAIL_TO_PASS tests; only the grader applies it.
    fail_to_pass: tuple[str, ...]  # These tests fail before the fix and pass after it.
    pass_to_pass: tuple[str, ...]  # These tests pass before the fix and after it.
    version: str = ""  # The release of the repository's package.
    # The image holds the repository at its base commit. If it is empty, env.image_template names the image.
    image: str = ""
    eval_script: str = ""  # This is the data set's own test script, as the official harness wants it.
    log_parser: str = ""  # The official harness calls the reader of that script's log so.
    eval_type: str = ""  # How the official harness counts tests, as `pass_and_fail`.
    environment_setup_commit: str = ""  # SWE-bench built the environment at this commit.
    hints_text: str = ""  # Comments on the issue, which no agent sees.
    created_at: str = ""  # The date of the change, which orders releases.
    difficulty: str = ""  # The data set's own estimate.
    setup_script: str = ""  # This bash makes the base tree in a fresh container of the image, as root.
    hide_script: str = ""  # This bash takes the tests out of an agent's container; it is never run before grading.
    workdir: str = ""  # The image holds the repository in this folder; if it is empty, in /testbed.
    source: Source | None = None  # The source says how workspace and image are made without a registry.

    def __post_init__(self) -> None:
        check_id(self.instance_id, f"an instance of {self.repo!r:.80}")

    @property
    def project(self) -> str:
        """The repository's name without its owner, also of R2E-Gym's `sympy` and of SWE-smith's mirrors."""
        name = self.repo.rpartition("/")[2].lower()
        return _MIRROR.sub(r"\1", name) if self.repo.startswith("swesmith/") else name

    @property
    def is_unmeasured(self) -> bool:
        """Tells whether the row leaves it to `job=prepare` to find out which tests the fix turns."""
        return self.source is not None and not (self.fail_to_pass or self.pass_to_pass)

    @classmethod
    def from_record(cls, record: Mapping[str, Any], where: str = "record") -> "Instance":
        """Returns the instance that a record describes.

        SWE-bench writes the two test lists either as lists or as JSON strings; both are read. Raises InstanceError
        naming `where` and the column.
        """
        for key in _REQUIRED:
            if not isinstance(record.get(key), str):
                raise InstanceError(
                    f"{where}: column {key!r} is missing or not a string; SWE-bench's columns are needed"
                )
        check_id(record["instance_id"], where)
        return cls(
            **{key: record[key] for key in _REQUIRED},
            fail_to_pass=_test_ids(record, "FAIL_TO_PASS", where),
            pass_to_pass=_test_ids(record, "PASS_TO_PASS", where),
            **{key: str(record.get(key) or "") for key in _OPTIONAL},
            source=Source.from_record(record["source"], where) if record.get("source") else None,
        )

    def to_record(self) -> dict[str, Any]:
        """Returns the instance as a record in SWE-bench's columns, without the optional columns that are empty."""
        record: dict[str, Any] = {key: getattr(self, key) for key in _REQUIRED}
        record |= {
            "FAIL_TO_PASS": list(self.fail_to_pass),
            "PASS_TO_PASS": list(self.pass_to_pass),
            **{key: value for key in _OPTIONAL if (value := getattr(self, key)) or key == "version"},
        }
        return record | ({"source": self.source.to_record()} if self.source else {})


def _test_ids(record: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = record.get(key)
    if value is None and record.get("source"):
        return ()  # The tests are measured before the instance is used.
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InstanceError(f"{where}: column {key!r} is a string but not a JSON list: {error}") from error
    if not isinstance(value, list | tuple) or not all(isinstance(test, str) for test in value):
        raise InstanceError(f"{where}: column {key!r} must be a list of test ids")
    return tuple(value)
