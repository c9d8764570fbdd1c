"""Turns a unified diff around: what it added is removed, what it removed is added.

Invariants:
- Turning a diff around twice gives the same diff.
- Which lines belong to a hunk is counted, as its header says: a line's content never passes for a header.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from swe_rl.dataset.instance import InstanceError
from swe_rl.env.patch_hunks import read_header

# Each of these lines of a header becomes its opposite in the reversed diff.
_SWAPPED = {
    "new file mode ": "deleted file mode ",
    "deleted file mode ": "new file mode ",
    "old mode ": "new mode ",
    "new mode ": "old mode ",
    "rename from ": "rename to ",
    "rename to ": "rename from ",
}


def reverse_patch(patch: str, where: str) -> str:
    """Returns the patch that undoes `patch`.

    Raises InstanceError for a patch with binary parts, which cannot be turned around without the files.
    """
    lines = patch.split("\n")
    out: list[str] = []
    header: list[str] = []
    index = 0
    while index < len(lines):
        hunk = read_header(lines[index])
        if hunk is None:
            if lines[index].startswith(("GIT binary patch", "Binary files ")):
                raise InstanceError(f"{where}: the patch has binary parts and cannot be turned around")
            header.append(lines[index])
            index += 1
            continue
        out += _reverse_header(header)
        header = []
        end = _end_of_hunk(lines, index, hunk.old.lines, hunk.new.lines)
        out.append(str(replace(hunk, old=hunk.new, new=hunk.old)))
        out += _reverse_hunk(lines[index + 1 : end])
        index = end
    return "\n".join([*out, *_reverse_header(header)])


def _end_of_hunk(lines: list[str], index: int, old: int, new: int) -> int:
    """Returns the index behind the hunk that starts at `index`, notes on a missing newline included."""
    index += 1
    while index < len(lines) and (old > 0 or new > 0 or lines[index].startswith("\\")):
        sign = lines[index][:1]
        old -= sign in (" ", "-", "")  # An empty context line may have lost its space.
        new -= sign in (" ", "+", "")
        index += 1
    return index


def _reverse_hunk(hunk: list[str]) -> list[str]:
    """Returns the hunk with the sign of each changed line swapped.

    In each run of changed lines the removed ones come first, and a note stays with its own line.
    """
    out: list[str] = []
    removed: list[str] = []
    added: list[str] = []
    last = out
    for line in hunk:
        if line.startswith("-"):
            last = added
            added.append("+" + line[1:])
        elif line.startswith("+"):
            last = removed
            removed.append("-" + line[1:])
        elif line.startswith("\\"):
            last.append(line)
        else:
            out += [*removed, *added, line]
            removed = []
            added = []
            last = out
    return [*out, *removed, *added]


def _reverse_header(lines: list[str]) -> Iterator[str]:
    """Yields the lines between two files' hunks, turned around: names, modes and the pair `--- a/x`, `+++ b/x`."""
    held = ""
    for line in lines:
        if line.startswith("--- "):
            held = line[4:]
        elif line.startswith("+++ "):
            yield "--- " + _swap_side(line[4:], "b/", "a/")
            yield "+++ " + _swap_side(held, "a/", "b/")
        elif match := re.match(r"diff --git a/(.*) b/(.*)$", line):
            yield f"diff --git a/{match[2]} b/{match[1]}"
        elif match := re.match(r"index (\w+)\.\.(\w+)(.*)$", line):
            yield f"index {match[2]}..{match[1]}{match[3]}"
        else:
            words = next((words for words in _SWAPPED if line.startswith(words)), "")
            yield _SWAPPED[words] + line[len(words) :] if words else line


def _swap_side(name: str, old: str, new: str) -> str:
    return new + name[len(old) :] if name.startswith(old) else name
