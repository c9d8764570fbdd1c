"""This module tells which files of a folder hold a split, by their names alone.

Invariants:
- `SPLIT.jsonl`, the hub's `SPLIT-00000-of-00002.parquet` and `rl_SPLIT.parquet` name a split.
- Files of which none names a split are every split together, as a single file is.
"""

import re
from collections.abc import Sequence

from swe_rl.errors import count_noun

ENDINGS = (".jsonl", ".json", ".parquet")
# `save_to_disk` of the library datasets writes these files, and such a folder is not a set of files of splits.
SAVED = ("dataset_dict.json", "dataset_info.json")
_SPLITS = re.compile(r"(?:.*_)?(?:train|test|valid|validation|val|dev|eval|heldout)(?:-.*)?")


def files_of(names: Sequence[str], split: str) -> list[str]:
    """Returns the files of a split in order, or an empty list. `split` is without a slice."""
    if set(names) & set(SAVED):
        return []
    for ending in ENDINGS:
        if files := sorted(name for name in names if name.endswith(ending) and _holds_split(name, ending, split)):
            return files
    return []


def whole_files(names: Sequence[str]) -> list[str]:
    """Returns files of one kind that hold all splits, or an empty list if a name says that it holds one."""
    if set(names) & set(SAVED):
        return []
    for ending in (".jsonl", ".parquet"):
        if files := sorted(name for name in names if name.endswith(ending)):
            if any(_SPLITS.fullmatch(name.removesuffix(ending)) for name in files):
                return []
            return files
    return []


def _holds_split(name: str, ending: str, split: str) -> bool:
    stem = name.removesuffix(ending)
    return stem == split or stem.startswith(f"{split}-") or stem.endswith(f"_{split}")


# A message names so many ids, and counts the others.
_SHOWN_IDS = 5


def no_such_instances(missing: Sequence[str], known: Sequence[str]) -> str:
    """Says that no instance has these ids, or that a list or a pattern means none, and names two ids that exist."""
    shown = ", ".join(missing[:_SHOWN_IDS])
    if len(missing) > _SHOWN_IDS:
        shown = f"{shown} and {len(missing) - _SHOWN_IDS} more"
    verb = "is"
    if len(missing) > 1:
        verb = "are"
    examples = " and ".join(known[:2])
    instances = count_noun(len(known), "instance")
    return f"{shown or 'none'} {verb} {'not ' if missing else ''}among the {instances} (such as {examples})"
