"""Records what was tried with an instance before it is used, and defines what is asked of its environment.

Invariants:
- A proof holds for the row, the tests and the environment that it was made with; where one of them is another it
  says nothing. It names them by hashes, and no folder of a machine, so the file can be copied to another machine.
- An environment without a source that could be made otherwise defines `workspace`, `grade` and `digests` alone.
- The file has a line for each instance that was tried; of several the last counts. A torn line is no proof.
"""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.env import Grade, GradeError, SuiteRun
from swe_rl.env.source_build import environment, tree
from swe_rl.env.source_build.sdist import Release
from swe_rl.env.strength.record import Strength
from swe_rl.files.disk import placed_by, write_text_atomic
from swe_rl.logger.jsonl import JsonlWriter, read_jsonl
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace

FILE = "proofs.jsonl"  # The file lies below the cache, where env.proofs names no other.
# Lines of another version are no proofs, so a new version has everything proven anew.
VERSION = 1


@dataclass(frozen=True, slots=True)
class ProofTrial:
    """Holds one way to make the environment, and what the gold patch did in it."""

    change: str  # The change against the row is in words; it is empty where the environment is as the row says.
    outcome: str  # The outcome is "resolved", or what failed.
    failing: int  # So many tests should have passed and did not; -1 means that they never ran.


@dataclass(frozen=True, slots=True)
class Proof:
    """Holds what was tried with an instance, and what it was made with."""

    instance_id: str
    proven: bool
    reason: str  # The reason says why the instance is not proven.
    tests: str  # This is a hash of what judges.
    made_of: str  # This is a hash of what the row says of tree and environment, and of where the tests run.
    environment: str  # This is a hash of the packages that were there; it is empty for an image that is not made here.
    gold: tuple[str, ...] = ()  # Each run of the gold patch gives resolved or unresolved.
    noop: str = ""
    flaky: tuple[str, ...] = ()  # These tests passed in some of the runs; measured lists of tests leave them out.
    failing: tuple[str, ...] = ()  # These tests should pass with the gold patch and do not.
    log_tail: str = ""  # It is the end of the log of the last failing run of the gold patch.
    source: Mapping[str, Any] | None = None  # It is the row's mended column; None means that the column is as it is.
    fail_to_pass: tuple[str, ...] = ()  # The lists are measured where the row names no tests.
    pass_to_pass: tuple[str, ...] = ()
    trials: tuple[ProofTrial, ...] = ()
    untwinned: bool = False  # It is proven, and nothing shows that its tests can fail: there is no twin of any.
    weak_twins: tuple[str, ...] | None = None  # The tests of these names get no twin; None means that nobody knows.
    twins_tried: bool = False  # The gold patch was tried beside twins of all tests that count, not of some.
    strength: Strength | None = None  # None means that the strength was not measured.
    took_s: float = 0.0
    made_at: str = ""

    @property
    def is_verdict(self) -> bool:
        """Tells whether tests ran.

        If not, nothing could be built, which may be the machine or the network of that day.
        """
        return bool(self.gold)

    def to_record(self) -> dict[str, Any]:
        record = {"version": VERSION, **asdict(self)}
        for key in (
            "strength",
            "untwinned",
            "weak_twins",
            "twins_tried",
        ):  # Older versions can read a line without these keys.
            del record[key]
        if self.untwinned:
            record["untwinned"] = True
        if self.weak_twins is not None:
            record["weak_twins"] = self.weak_twins
        if self.twins_tried:
            record["twins_tried"] = True
        return record if self.strength is None else record | {"strength": self.strength.to_record()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Proof":
        """Returns the proof of a line. Raises KeyError, TypeError or ValueError for what is none of this version."""
        if record["version"] != VERSION:
            raise ValueError(f"a proof of version {record['version']}")
        values = {key: value for key, value in record.items() if key != "version"}
        for key in ("gold", "flaky", "failing", "fail_to_pass", "pass_to_pass"):
            values[key] = tuple(values.get(key) or ())
        values["trials"] = tuple(ProofTrial(**trial) for trial in values.get("trials") or ())
        if values.get("weak_twins") is not None:
            values["weak_twins"] = tuple(values["weak_twins"])
        if values.get("strength") is not None:
            values["strength"] = Strength.from_record(values["strength"])
        return cls(**values)

    def applied(self, instance: Instance) -> Instance:
        """Returns `instance` as it was proven."""
        if instance.is_unmeasured:
            instance = replace(instance, fail_to_pass=self.fail_to_pass, pass_to_pass=self.pass_to_pass)
        if self.source is None:
            return instance
        return replace(instance, source=Source.from_record(self.source, f"the proof of {self.instance_id}"))


class Provable(Protocol):
    """Defines what a proof asks of an environment."""

    @abstractmethod
    def workspace(self, instance: Instance) -> Workspace: ...

    @abstractmethod
    async def grade(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> Grade: ...

    async def run_tests(self, instance: Instance, patch: str, sandboxes: SandboxProvider, timeout_s: float) -> SuiteRun:
        """Returns the results of all tests, whatever the row names. Raises GradeError."""
        raise GradeError(f"{instance.instance_id}: its tests cannot be measured one by one")

    def released(self, instance: Instance) -> datetime | None:
        """Returns the time at which what its source names was made. Raises InstanceError, BuildError."""
        return None

    def nearer(self, instance: Instance) -> Sequence[Release]:
        """Returns other releases of its distribution that its patches fit, the nearest to the base commit first."""
        return ()

    def environment_digest(self, instance: Instance) -> str:
        """Returns a hash of its packages, once they are there, and an empty text where they are not made here."""
        return ""

    @abstractmethod
    def digests(self, instance: Instance) -> tuple[str, str]:
        """Returns a hash of its tests, and a hash of what its tree and environment are made of."""
        ...


class Standing(StrEnum):
    """Says what is known of an instance before it is used."""

    proven = "proven"
    refuted = "refuted"  # Its gold patch fails here, or a change that fixes nothing passes.
    untried = "untried"  # There is no proof, or one of another row, tests or environment.


def tests_digest(instance: Instance, grading: str) -> str:
    """Returns a hash of everything that decides a verdict on the instance: its patches, its tests and its grader."""
    judges: list[object] = [
        instance.patch,
        instance.test_patch,
        instance.eval_script,
        instance.log_parser,
        instance.eval_type,
    ]
    judges += [sorted(instance.fail_to_pass), sorted(instance.pass_to_pass), instance.setup_script, grading]
    return _hash_content([instance.instance_id, instance.base_commit, *judges])


def made_of_digest(instance: Instance, *, as_image: bool) -> str:
    """Returns a hash of what the row says of tree and environment, and of whether tests run in an image or a folder."""
    made = [environment.RECIPE, tree.tree_digest(instance), instance.source.to_record()] if instance.source else None
    return _hash_content([made, instance.image if as_image and not made else "", "image" if as_image else "folder"])


def _hash_content(content: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class ProofBook:
    """Keeps the proofs of a file, which is read once. `put` adds to both."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._proofs = read_proofs(path)

    def of(self, instance_id: str) -> Proof | None:
        return self._proofs.get(instance_id)

    def put(self, proof: Proof) -> None:
        """Adds a proof to the file. The last one of an instance counts. Raises DiskError."""
        self._proofs[proof.instance_id] = proof
        with placed_by("env.proofs", self.path), JsonlWriter(self.path, ours=frozenset()) as writer:
            writer.append(proof.to_record())

    def tidy(self) -> None:
        """Rewrites the file with one line an instance, sorted by name. Raises DiskError."""
        proofs = sorted(read_proofs(self.path).values(), key=lambda proof: proof.instance_id)
        with placed_by("env.proofs", self.path):
            write_text_atomic(
                self.path, "".join(json.dumps(proof.to_record(), sort_keys=True) + "\n" for proof in proofs)
            )


def read_proofs(path: Path) -> dict[str, Proof]:
    """Returns the proofs by instance id, and none where there is no file. Lines of another version are skipped."""
    if not path.is_file():
        return {}
    proofs: dict[str, Proof] = {}
    for record in read_jsonl(path):
        try:
            proof = Proof.from_record(record)
        except (KeyError, TypeError, ValueError):
            continue
        proofs[proof.instance_id] = proof
    return proofs


@cache
def book_of(path: Path) -> ProofBook:
    """Returns the book of a file, which is one and the same everywhere in a process."""
    return ProofBook(path)


def book_path(proofs: str | None, cache_folder: Path) -> Path:
    """Returns the path of the file of proofs. Raises InstanceError for a folder."""
    path = Path(proofs) if proofs else cache_folder / FILE
    if path.is_dir():
        raise InstanceError(f"env.proofs={proofs} is a folder; name a file, {FILE} in it for example")
    return path
