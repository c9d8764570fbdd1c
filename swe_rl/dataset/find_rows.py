"""Finds the rows of a data set: in a file, in a folder, in the hub's cache or on the hub.

Invariants:
- A file or folder of this machine comes before the hub, and needs no network and no `datasets`.
- No code of a data set is ever run.
- What was read has a revision: the hub's commit, or the hash of the files' bytes.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.config.dataset_files import ENDINGS, SAVED, files_of, whole_files
from swe_rl.dataset.instance import InstanceError
from swe_rl.dataset.records import PlacedRecord, read_rows
from swe_rl.errors import one_line

# The text names a split and may slice it: `train`, `train[1000:]`, `test[:400]`. Rows count from 0 in the data set's
# own order; a slice never reorders.
_SPLIT = re.compile(r"([\w.-]+)(?:\[(\d*):(\d*)\])?")


@dataclass(frozen=True, slots=True)
class Split:
    """Names a split of a data set, and the rows of it that are used."""

    name: str
    start: int = 0
    stop: int | None = None  # None means that the slice goes to the end.

    @classmethod
    def parse(cls, text: str, key: str = "env.split") -> "Split":
        """Returns the split that the text names. Raises InstanceError for anything but NAME or NAME[FROM:TO]."""
        match = _SPLIT.fullmatch(text)
        if not match:
            raise InstanceError(f"{key}={text} is not a split; write NAME or NAME[FROM:TO], as train[1000:]")
        name, start, stop = match.groups()
        return cls(name, int(start or 0), int(stop) if stop else None)

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


# Files are hashed in blocks, so that large ones do not fill the memory.
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """Holds the rows that were read, and says what they were read from."""

    rows: Sequence[PlacedRecord]
    source: str  # The source is a file, a folder or an id of the hub.
    revision: str
    split_rows: int | None = None  # It counts the rows of the whole split, with those that its slice left out.


def load_rows(dataset: str, split: str, *, revision: str | None = None, key: str = "env.dataset") -> LoadedRows:
    """Returns the rows of `split` with its slice. Raises InstanceError naming `key`."""
    wanted = Split.parse(split, key.replace("dataset", "split"))
    path = Path(dataset)
    if path.suffix in ENDINGS and not path.exists():
        raise InstanceError(f"{key}={dataset} is not there; give the path of an existing file")
    if files := local_files(dataset, split):
        loaded = _from_files(files, dataset, wanted)
    elif path.is_dir():
        loaded = _from_saved(path, dataset, wanted, key)
    else:
        loaded = _from_hub(dataset, wanted.name, revision, key)
    rows = loaded.rows[wanted.rows]
    if not rows:
        raise InstanceError(f"{key}={dataset}: {split} holds no row; there are {len(loaded.rows)} in {wanted.name}")
    return LoadedRows(rows, loaded.source, loaded.revision, len(loaded.rows))


def _from_files(paths: Sequence[Path], dataset: str, split: Split) -> LoadedRows:
    """Returns the rows of files of this machine.

    A single file is every split, unless a column `split` tells its rows apart. Raises InstanceError.
    """
    rows = [row for path in paths for row in read_rows(path)]
    if any(row.record.get("split") for row in rows):
        rows = [row for row in rows if row.record.get("split") == split.name]
    return LoadedRows(rows, dataset, hash_of_files(paths))


def local_files(dataset: str, split: str) -> list[Path]:
    """Returns the files of this machine that hold a split, in order, and none for a data set of the hub.

    They are the file itself, or the files of a folder whose names tell that they belong to the split.
    """
    path = Path(dataset)
    name = Split.parse(split).name
    if path.is_file():
        return [path]
    folders = [(parent, _file_names(parent)) for parent in (path, path / "data") if parent.is_dir()]
    for parent, names in folders:
        if files := files_of(names, name):
            return [parent / file for file in files]
    return next(([parent / file for file in files] for parent, names in folders if (files := whole_files(names))), [])


def _file_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_file()]


def _from_saved(folder: Path, dataset: str, split: Split, key: str) -> LoadedRows:
    """Returns the rows of a folder that `save_to_disk` wrote. Raises InstanceError."""
    if not any((folder / name).is_file() for name in SAVED):
        present = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise InstanceError(
            f"{key}={dataset} is a folder without a file of the split {split.name!r}; there is {present}. A file "
            f"{split.name}.jsonl or {split.name}.parquet is looked for, or what datasets' save_to_disk writes"
        )
    datasets = _import_datasets(dataset)
    try:
        saved = datasets.load_from_disk(str(folder))
        if isinstance(saved, Mapping):
            records = saved[split.name]
        else:
            records = saved
    except (OSError, ValueError, KeyError) as error:
        raise InstanceError(
            f"{key}={dataset}: {split.name} cannot be read from what save_to_disk wrote: {error}"
        ) from (error)
    return LoadedRows(
        _number_rows(records, f"{dataset}[{split.name}]"), dataset, hash_of_files(sorted(folder.rglob("*.arrow")))
    )


def _from_hub(dataset: str, split: str, revision: str | None, key: str) -> LoadedRows:
    """Returns the rows of a data set of the hub, from its cache if it is there. Raises InstanceError."""
    datasets = _import_datasets(dataset)
    try:
        records = datasets.load_dataset(dataset, split=split, revision=revision)
    except Exception as error:  # The package `datasets` raises whatever its file systems raise.
        raise InstanceError(
            f"{key}={dataset}: not a file or folder of this machine, and neither the hub nor its cache has it "
            f"({type(error).__name__}: {one_line(error)}); where there is a network: "
            f"hf download {dataset} --repo-type dataset"
        ) from error
    return LoadedRows(
        _number_rows(records, f"{dataset}[{split}]"), dataset, _hub_commit(records) or revision or "unknown"
    )


def _number_rows(records: Any, name: str) -> list[PlacedRecord]:
    return [PlacedRecord(f"{name}, row {number}", record) for number, record in enumerate(records)]


def _hub_commit(records: Any) -> str | None:
    """Returns the hub's commit, and None where it is not known.

    It is in the addresses that were downloaded: `hf://datasets/ORG/NAME@COMMIT/FILE`.
    """
    for address in getattr(records.info, "download_checksums", None) or ():
        _, at, rest = str(address).partition("@")
        if at:
            return rest.partition("/")[0]
    return None


def hash_of_files(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def _import_datasets(dataset: str) -> Any:
    """Returns the package `datasets`. Raises InstanceError where it is not installed."""
    try:
        import datasets
    except ImportError as error:
        raise InstanceError(
            f"env.dataset={dataset} is read with `datasets`, which is not installed: pip install 'swe_rl[data]'"
        ) from error
    datasets.disable_progress_bars()
    return datasets
