"""Reads a patch's text file by file: which paths it touches and what it adds.

Invariants:
- The code only reads text that an agent wrote: nothing here decides a verdict (the grader looks at the tree instead).
- Every path that a header line names counts, also where the lines contradict each other.
"""

import re
from dataclasses import dataclass

from swe_rl.env.patch_hunks import read_header
from swe_rl.files.lines import lines_of

# This patch adds a file that no test looks at. Unlike an empty patch it is applied, and the tests run.
NOOP_PATCH = (
    "diff --git a/.changed_nothing b/.changed_nothing\nnew file mode 100644\n--- /dev/null\n+++ b/.changed_nothing\n"
    "@@ -0,0 +1 @@\n+This file fixes nothing.\n"
)

_GIT_HEADER = re.compile(r"^diff --git (.+)$")
_NAMED = re.compile(r"^(?:--- |\+\+\+ |rename from |rename to |copy from |copy to )(.+)$")
_ADDED_TEST = re.compile(r"^\+\s*(?:async )?def (test\w*)", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([abfnrtv\"\\]|[0-7]{3})")
# Git writes these characters of a path with a backslash.
_LETTERS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


@dataclass(frozen=True, slots=True)
class FilePatch:
    """Holds one file's part of a patch.

    `paths` are all names that its header has, the old one first, without `a/` and `b/`.
    """

    paths: tuple[str, ...]
    text: str
    is_new: bool
    is_removed: bool
    is_link: bool
    added: tuple[str, ...]  # These are the added lines without their plus.


def split_patch(patch: str) -> list[FilePatch]:
    """Returns every part that has a path. What stands before the first header is left out."""
    return [part for text in _split_files(patch) if (part := _read_part(text)) is not None]


def touched_paths(patch: str) -> list[str]:
    """Returns the paths that the patch names, sorted and without repetition."""
    return sorted({path for part in split_patch(patch) for path in part.paths})


def old_paths(patch: str) -> list[str]:
    """Returns the paths that exist before the patch, in its order. A checkout of the base commit can restore them."""
    return [part.paths[0] for part in split_patch(patch) if not part.is_new]


def new_paths(patch: str) -> list[str]:
    """Returns the paths that the patch makes, in its order."""
    return [part.paths[-1] for part in split_patch(patch) if part.is_new]


def added_tests(patch: str) -> list[str]:
    """Returns the names of the test functions that a patch of Python files adds, in its order."""
    return _ADDED_TEST.findall(patch)


def text_of(data: bytes) -> str:
    """Returns a patch's text. A byte that is no UTF-8 becomes a surrogate, from which `bytes_of` makes it again."""
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Returns a patch's bytes. Half of a surrogate pair that stands for no byte becomes U+FFFD."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def readable_text(text: str) -> str:
    """Returns `text` with U+FFFD in the place of bytes that are no UTF-8: what JSON and every reader of it can hold."""
    return bytes_of(text).decode("utf-8", "replace")


def _split_files(patch: str) -> list[str]:
    """Returns the patch, cut before each `diff --git`, and before each `--- ` of a plain unified diff that has none."""
    parts: list[list[str]] = []
    lines = lines_of(patch)
    left = 0  # So many lines of the running hunk are left; they cannot be headers.
    # It is true once the running part has hunks: a plain part ends where the names of the next one begin.
    has_hunks = False
    for index, line in enumerate(lines):
        if left > 0:
            left -= not line.startswith("\\")
        elif line.startswith("@@ "):
            left = _hunk_lines(line, lines, index)
            has_hunks = True
        elif line.startswith("diff --git ") or ((has_hunks or not parts) and _has_names(lines, index)):
            parts.append([])
            has_hunks = False
        if parts:
            parts[-1].append(line)
    return ["".join(part) for part in parts]


def _has_names(lines: list[str], index: int) -> bool:
    """Tells whether the line is the `--- ` of a pair of names."""
    return lines[index].startswith("--- ") and index + 1 < len(lines) and lines[index + 1].startswith("+++ ")


def _hunk_lines(header: str, lines: list[str], index: int) -> int:
    """Returns how many of the lines after `header` belong to its hunk."""
    read = read_header(header)
    if read is None:
        return 0
    old = read.old.lines
    new = read.new.lines
    taken = 0
    for at in range(index + 1, len(lines)):
        line = lines[at]
        if old <= 0 and new <= 0:
            break
        taken += not line.startswith("\\")
        old -= line[:1] in (" ", "-", "\n")
        new -= line[:1] in (" ", "+", "\n")
        if line[:1] not in (" ", "+", "-", "\\", "\n"):
            break
    return taken


def _read_part(text: str) -> FilePatch | None:
    """Returns one part with what its header says, and None for a part without a path."""
    paths: list[str] = []
    added: list[str] = []
    header: list[str] = []
    in_hunks = False
    for line in lines_of(text, ends=False):
        in_hunks = in_hunks or line.startswith(("@@ ", "GIT binary patch"))
        if in_hunks:
            if line.startswith("+"):
                added.append(line[1:])
            continue
        header.append(line)
        if match := _NAMED.match(line):
            paths.append(_plain_name(match[1].split("\t")[0] if not match[1].startswith('"') else match[1]))
        elif match := _GIT_HEADER.match(line):
            paths += _both_names(match[1])
    named = [path for path in dict.fromkeys(paths) if path not in ("", "/dev/null")]
    if not named:
        return None
    return FilePatch(
        paths=tuple(named),
        text=text,
        is_new=any(line.startswith("new file mode") or line == "--- /dev/null" for line in header),
        is_removed=any(line.startswith("deleted file mode") or line == "+++ /dev/null" for line in header),
        is_link=any(line.startswith(("new file mode 120000", "new mode 120000")) for line in header),
        added=tuple(added),
    )


def _both_names(names: str) -> list[str]:
    """Returns both names of `diff --git A B`. Names with spaces are told apart only where both are the same."""
    if names.startswith('"'):
        return [_plain_name(name) for name in re.findall(r'"(?:[^"\\]|\\.)*"|\S+', names)]
    middle = len(names) // 2
    if names[middle : middle + 1] == " " and names[:middle][2:] == names[middle + 1 :][2:]:
        return [_plain_name(names[:middle])]
    old, separator, new = names.partition(" b/")
    # If no name is found here, the lines below the header have them.
    return [_plain_name(old), new] if separator and " b/" not in new else []


def _plain_name(name: str) -> str:
    """Returns a name without git's quoting and without the `a/` or `b/`. Bytes that are no UTF-8 are surrogates."""
    name = name.strip()
    if len(name) > 1 and name.startswith('"') and name.endswith('"'):
        name = text_of(_ESCAPE.sub(_unescape_byte, bytes_of(name[1:-1])))
    return name[2:] if name.startswith(("a/", "b/")) else name


def _unescape_byte(match: "re.Match[bytes]") -> bytes:
    escaped = match[1]
    return bytes([int(escaped, 8) & 0xFF]) if len(escaped) == 3 else _LETTERS.get(escaped, escaped)
