"""Writes and reads what `job=prepare` makes of a split: a parquet file of instances, and a manifest of that file.

Invariants:
- The parquet file is complete before its manifest is there; a manifest is the last thing written.
- A prepared file is used only for the configuration and the source that it was made of, and only unchanged.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.columns import columns_for
from swe_rl.dataset.find_rows import hash_of_files, local_files
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.records import read_rows
from swe_rl.env.issues.book import digest_of_issues
from swe_rl.env.swe.swebench_pro import digest_of_scripts
from swe_rl.files.disk import disk_error, placed_by, write_bytes_atomic, write_json_atomic

VERSION = 1  # A file of another version has another layout and is made anew.


# Manifests of older versions do not have these.
_NEWER = frozenset({"columns", "scripts", "issues", "issue_words"})


@dataclass(frozen=True, slots=True)
class PreparedIdentity:
    """Says what a prepared file was made for."""

    dataset: str
    split: str
    wanted_revision: str | None
    image_template: str | None
    max_tests: int
    columns: Mapping[str, str] = field(default_factory=dict)
    # These are hashes of the scripts that run tests and of the written issues, and which texts those replace.
    scripts: str = ""
    issues: str = ""
    issue_words: int = 0

    @classmethod
    def of(cls, config: EnvConfig, split: str) -> "PreparedIdentity":
        """Returns what a prepared file of this split has to be made for. Raises InstanceError."""
        is_eval = is_evaluated(config, split)
        dataset = str(config.eval_dataset) if is_eval else config.dataset
        path = Path(dataset)
        return cls(
            dataset=str(path.resolve()) if path.exists() else dataset,
            split=split,
            wanted_revision=None if is_eval else config.revision,
            image_template=(config.eval_image_template or config.image_template) if is_eval else config.image_template,
            max_tests=0 if is_eval else config.max_tests,
            columns=columns_for(config, evaluated=is_eval),
            scripts=digest_of_scripts(config.scripts),
            issues=digest_of_issues(config.issues),
            issue_words=config.issue_words if config.issues else 0,
        )

    @property
    def record(self) -> dict[str, Any]:
        """Returns the identity for a manifest.

        It leaves out what is not used, as older manifests do.
        """
        return {name: value for name, value in asdict(self).items() if name not in _NEWER or value}

    def path(self, cache: Path) -> Path:
        """Returns the place of the prepared file, which is another one for each identity."""
        digest = hashlib.sha256(json.dumps(self.record, sort_keys=True).encode()).hexdigest()[:10]
        return cache / "datasets" / _make_slug(self.dataset) / f"{_make_slug(self.split)}-{digest}.parquet"


def is_evaluated(config: EnvConfig, split: str) -> bool:
    """Tells whether `split` is the one of `env.eval_dataset`.

    Raises InstanceError where a split's name may mean two data sets.
    """
    if config.eval_dataset in (None, config.dataset) or split != config.eval_split:
        return False
    if split == config.split:
        same = split.replace("[", "[0") if "[" in split else f"{split}[0:]"
        raise InstanceError(
            f"env.split and env.eval_split are both {split}, of two data sets ({config.dataset} and "
            f"{config.eval_dataset}); tell them apart by a slice: 'env.eval_split=\"{same}\"'"
        )
    return True


def write_prepared(
    cache: Path, identity: PreparedIdentity, instances: Sequence[Instance], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes the file, then its manifest, and returns the manifest. Raises DiskError."""
    path = identity.path(cache)
    data = _encode_parquet(instances)
    with placed_by("paths.cache", path):
        write_bytes_atomic(path, data)
    manifest = {
        "version": VERSION,
        "made_for": identity.record,
        **facts,
        "rows": len(instances),
        "columns": sorted({column for instance in instances for column in instance.to_record()}),
        "repositories": _count_names(instance.repo for instance in instances),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    with placed_by("paths.cache", manifest_of(path)):
        write_json_atomic(manifest_of(path), manifest)
    return manifest


def prepared_instances(config: EnvConfig, split: str, cache: Path) -> list[Instance] | None:
    """Returns the prepared instances of a split, or None where there are none for this configuration and source.

    Raises InstanceError for a prepared file that was changed since, DiskError for one that cannot be read.
    """
    identity = PreparedIdentity.of(config, split)
    path = identity.path(cache)
    manifest = read_manifest(path)
    if manifest is None or manifest.get("made_for") != identity.record or not _is_current(identity, manifest):
        return None
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise disk_error(path, error) from error
    if digest != manifest.get("sha256"):
        raise InstanceError(
            f"{path} is not the file that its manifest describes (sha256 {digest[:12]}, not "
            f"{str(manifest.get('sha256'))[:12]}); remove it and run job=prepare again"
        )
    return [Instance.from_record(_drop_nulls(row.record), row.where) for row in read_rows(path)]


def prepared_split_rows(config: EnvConfig, split: str, cache: Path) -> int | None:
    """Returns the rows of a prepared split, with those that its slice left out.

    Returns None where its manifest does not say it.
    """
    manifest = read_manifest(PreparedIdentity.of(config, split).path(cache)) or {}
    rows = manifest.get("split_rows")
    return rows if isinstance(rows, int) else None


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Returns the manifest of a prepared file, and None where there is none of this version."""
    try:
        manifest = json.loads(manifest_of(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(manifest, dict) and manifest.get("version") == VERSION and path.is_file()
    return manifest if known else None


def manifests_beside(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the other prepared files of the same data set, with their manifests."""
    for other in sorted(path.parent.glob("*.parquet")):
        if other != path and (manifest := read_manifest(other)) is not None:
            yield other, manifest


def manifest_of(path: Path) -> Path:
    return path.with_suffix(".manifest.json")


def _is_current(identity: PreparedIdentity, manifest: Mapping[str, Any]) -> bool:
    """Tells whether the prepared file is still what its source says.

    Files of this machine must be as they were. A data set of the hub is what its revision says.
    """
    files = local_files(identity.dataset, identity.split)
    return not files or hash_of_files(files) == manifest.get("revision")


def _encode_parquet(instances: Sequence[Instance]) -> bytes:
    """Returns the instances as a parquet file. Raises InstanceError where pyarrow is not installed.

    Lists and tables are written as JSON, because an empty list has no type of its own.
    """
    import io

    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InstanceError("job=prepare writes parquet, which needs pyarrow: pip install 'swe_rl[data]'") from error
    records = [instance.to_record() for instance in instances]
    columns = sorted({column for record in records for column in record})
    table = pyarrow.table({column: [_as_text(record.get(column)) for record in records] for column in columns})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _drop_nulls(record: Mapping[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in record.items() if value is not None}


def _count_names(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _make_slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._") or "data"
