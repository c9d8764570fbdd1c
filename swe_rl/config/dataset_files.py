"""Which files of a folder hold a split, by their names alone.

Invariants:
- `SPLIT.jsonl`, the hub's `SPLIT-00000-of-00002.parquet` and `rl_SPLIT.parquet` name a split.
- Files of which none names a split are every split together, as a single file is.
"""

import re
from collections.abc import Sequence

ENDINGS = (".jsonl", ".json", ".parquet")
SAVED = ("dataset_dict.json", "dataset_info.json")  # what datasets' save_to_disk writes
_SPLITS = re.compile(r"(?:.*_)?(?:train|test|valid|validation|val|dev|eval|heldout)(?:-.*)?")


def files_of(names: Sequence[str], split: str) -> list[str]:
    """In order; none where there is none. `split` is without a slice."""
    if set(names) & set(SAVED):
        return []
    for ending in ENDINGS:
        if files := sorted(name for name in names if name.endswith(ending) and _holds(name, ending, split)):
            return files
    return []


def whole_files(names: Sequence[str]) -> list[str]:
    """Files of one kind that hold all splits; none where a name says that it holds one."""
    if set(names) & set(SAVED):
        return []
    for ending in (".jsonl", ".parquet"):
        if files := sorted(name for name in names if name.endswith(ending)):
            return [] if any(_SPLITS.fullmatch(name.removesuffix(ending)) for name in files) else files
    return []


def _holds(name: str, ending: str, split: str) -> bool:
    stem = name.removesuffix(ending)
    return stem == split or stem.startswith(f"{split}-") or stem.endswith(f"_{split}")
