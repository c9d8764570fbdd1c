"""Takes a patch apart into hunks, and makes a patch of some of them.

Invariants:
- All hunks together are the whole patch, and each choice of them is a patch that fits the same base.
- A file that is new, removed, not text, or that changes its mode is one hunk: a part of it means nothing.
- The same hunks give the same text, so a hash of it is a name.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from swe_rl.env.patch_files import split_patch
from swe_rl.env.patch_hunks import read_header, split_hunks

_WHOLE = ("new file mode", "deleted file mode", "old mode", "new mode", "GIT binary patch", "rename ", "copy ")
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Hunk:
    """Holds one hunk of a file's part of a patch, or the whole part where it has no hunk that could stand alone."""

    path: str
    header: str  # These lines come before the file's first hunk, in each patch that has a hunk of the file.
    text: str
    grows_by: int = 0  # So many more lines has the file after the hunk.


def hunks_of(patch: str) -> list[Hunk]:
    """Returns the hunks of a patch, in its order."""
    hunks: list[Hunk] = []
    for part in split_patch(patch):
        header, bodies = split_hunks(part.text)
        if not bodies or any(line.startswith(_WHOLE) for line in header):
            hunks.append(Hunk(part.paths[-1], "", part.text))
            continue
        # The hashes of the whole files would be wrong of a part of their hunks.
        shown = "".join(line for line in header if not line.startswith("index "))
        hunks += [Hunk(part.paths[-1], shown, "".join(lines), _growth(lines[0])) for lines in bodies]
    return hunks


def patch_of(hunks: Sequence[Hunk], chosen: Sequence[int]) -> str:
    """Returns the patch of the hunks with these numbers, in the order of the whole patch."""
    parts: list[str] = []
    wanted = frozenset(chosen)
    path = ""
    is_begun = False
    missing = 0  # So many lines less has the file, at this place of the patch, than after the whole patch.
    for number, hunk in enumerate(hunks):
        if hunk.path != path:
            path = hunk.path
            is_begun = False
            missing = 0
        if number not in wanted:
            missing += hunk.grows_by
            continue
        if not is_begun:
            parts.append(hunk.header)
            is_begun = True
        parts.append(_moved(hunk, missing))
    return "".join(parts)


def digest_of_patch(patch: str) -> str:
    """Returns a short name of a patch, which is the same on every machine."""
    return hashlib.sha256(patch.encode()).hexdigest()[:_DIGITS]


def _growth(line: str) -> int:
    header = read_header(line)
    return header.new.lines - header.old.lines if header else 0


def _moved(hunk: Hunk, missing: int) -> str:
    """Returns a hunk's text whose place in the new file is so many lines higher."""
    header = read_header(hunk.text)
    if header is None or not missing:
        return hunk.text
    return str(replace(header, new=replace(header.new, start=header.new.start - missing)))
