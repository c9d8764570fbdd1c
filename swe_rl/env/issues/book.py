"""Reads and writes the file of written issues (`env.issues`), and gives instances their texts.

Invariants:
- A text belongs to an instance with this id and this patch. A row that was changed since needs a new text.
- A text is whole in the file, or not there: a kill leaves at most a torn last line, which the next start removes.
- Only instances whose own text is missing or too short get one.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.files.disk import disk_error
from swe_rl.files.json_text import decode_json

_COLUMNS = ("instance_id", "of", "problem_statement")


@dataclass(frozen=True, slots=True)
class IssueBook:
    """Holds the written texts by the id of the instance and the digest of its patch.

    `min_words`: a text of the data set with fewer words is replaced; with 0, only an empty one is.
    """

    texts: Mapping[tuple[str, str], str]
    min_words: int = 0

    @classmethod
    def read(cls, path: Path, min_words: int = 0) -> "IssueBook":
        """Returns the texts of a file, and none where it is not there. Raises InstanceError, DiskError."""
        texts: dict[tuple[str, str], str] = {}
        for number, line in enumerate(_read_lines(path), start=1):
            record = _read_record(line, f"{path}, line {number}")
            texts[record["instance_id"], record["of"]] = record["problem_statement"]
        return cls(texts, min_words)

    def needs_text(self, instance: Instance) -> bool:
        """Tells whether the data set's own text is missing or too short, and nothing was written yet."""
        return self._is_poor(instance) and _key_of(instance) not in self.texts

    def with_texts(self, instances: Iterable[Instance]) -> list[Instance]:
        """Returns the instances, with the written texts in the place of poor ones."""
        return [self._with_text(instance) for instance in instances]

    def _with_text(self, instance: Instance) -> Instance:
        text = self.texts.get(_key_of(instance))
        if text is None or not self._is_poor(instance):
            return instance
        return replace(instance, problem_statement=text)

    def _is_poor(self, instance: Instance) -> bool:
        words = len(instance.problem_statement.split())
        return words == 0 or words < self.min_words


def issue_record(instance: Instance, text: str, *, model: str) -> dict[str, str]:
    """Returns the line of a written text."""
    instance_id, digest = _key_of(instance)
    return {"instance_id": instance_id, "of": digest, "problem_statement": text, "model": model}


def digest_of_issues(path: str | None) -> str:
    """Returns a hash of the file of written issues, and an empty text where there is none. Raises DiskError."""
    if path is None:
        return ""
    data = b"\n".join(_read_lines(Path(path)))
    if not data:
        return ""
    return hashlib.sha256(data).hexdigest()[:16]


def _key_of(instance: Instance) -> tuple[str, str]:
    return instance.instance_id, hashlib.sha256(instance.patch.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _read_lines(path: Path) -> Sequence[bytes]:
    """Returns the whole lines: a last one without its end was torn by a kill."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise disk_error(path, error, key="env.issues") from error


def _read_record(line: bytes, where: str) -> dict[str, str]:
    try:
        record: Any = decode_json(line)
    except ValueError as error:
        raise InstanceError(f"env.issues: {where}: this is no JSON ({error})") from error
    if not isinstance(record, dict):
        raise InstanceError(f"env.issues: {where}: this is no JSON object")
    wrong = [column for column in _COLUMNS if not isinstance(record.get(column), str) or not record[column].strip()]
    if wrong:
        raise InstanceError(f"env.issues: {where}: column {wrong[0]!r} is missing, or is no text")
    return {column: record[column] for column in _COLUMNS}
