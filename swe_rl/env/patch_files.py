"""A patch's text, read file by file: which paths it touches and what it adds.

Invariants:
- Pure text work on what an agent wrote: nothing here decides a verdict (the grader looks at the tree instead).
- Every path that a header line names counts, also where the lines contradict each other.
"""

import re
from dataclasses import dataclass
from io import StringIO

_GIT_HEADER = re.compile(r"^diff --git (.+)$")
_NAMED = re.compile(r"^(?:--- |\+\+\+ |rename from |rename to |copy from |copy to )(.+)$")
_ESCAPE = re.compile(r"\\([abfnrtv\"\\]|[0-7]{3})")
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class FilePatch:
    """One file's part; `paths` are all names its header has, the old one first, without `a/` and `b/`."""

    paths: tuple[str, ...]
    text: str
    is_new: bool
    is_removed: bool
    is_link: bool
    added: tuple[str, ...]  # added lines without their plus


def split_patch(patch: str) -> list[FilePatch]:
    """Every part that has a path; what stands before the first header is left out."""
    return [part for text in _parts(patch) if (part := _read(text)) is not None]


def touched_paths(patch: str) -> list[str]:
    """Sorted, without repetition."""
    return sorted({path for part in split_patch(patch) for path in part.paths})


def old_paths(patch: str) -> list[str]:
    """The paths that exist before the patch, in its order: what a checkout of the base commit can restore."""
    return [part.paths[0] for part in split_patch(patch) if not part.is_new]


def lines_of(text: str, ends: bool = True) -> list[str]:
    """As git cuts them, at no form feed and at no lone CR; with `ends`, else without their `\\n` or `\\r\\n`."""
    lines = [*StringIO(text, newline="\n")]
    return lines if ends else [line.removesuffix("\r\n").removesuffix("\n") for line in lines]


def _parts(patch: str) -> list[str]:
    """Cut before each `diff --git`, and before each `--- ` of a plain unified diff that has none."""
    parts: list[list[str]] = []
    lines = lines_of(patch)
    left = 0  # lines of the running hunk, which cannot be headers
    has_hunks = False  # the running part; a plain one ends with the names of the next
    for index, line in enumerate(lines):
        if left > 0:
            left -= not line.startswith("\\")
        elif line.startswith("@@ "):
            left, has_hunks = _hunk_lines(line, lines, index), True
        elif line.startswith("diff --git ") or ((has_hunks or not parts) and _has_names(lines, index)):
            parts.append([])
            has_hunks = False
        if parts:
            parts[-1].append(line)
    return ["".join(part) for part in parts]


def _has_names(lines: list[str], index: int) -> bool:
    """True for the `--- ` of a pair of names."""
    return lines[index].startswith("--- ") and index + 1 < len(lines) and lines[index + 1].startswith("+++ ")


def _hunk_lines(header: str, lines: list[str], index: int) -> int:
    """How many of the lines after `header` belong to its hunk."""
    match = re.match(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@", header)
    if not match:
        return 0
    old, new = (int(count) if count is not None else 1 for count in match.groups())
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


def _read(text: str) -> FilePatch | None:
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
            paths.append(_plain(match[1].split("\t")[0] if not match[1].startswith('"') else match[1]))
        elif match := _GIT_HEADER.match(line):
            paths += _pair(match[1])
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


def _pair(names: str) -> list[str]:
    """Both names of `diff --git A B`; names with spaces are told apart only where both are the same."""
    if names.startswith('"'):
        return [_plain(name) for name in re.findall(r'"(?:[^"\\]|\\.)*"|\S+', names)]
    middle = len(names) // 2
    if names[middle : middle + 1] == " " and names[:middle][2:] == names[middle + 1 :][2:]:
        return [_plain(names[:middle])]
    old, separator, new = names.partition(" b/")
    return [_plain(old), new] if separator and " b/" not in new else []  # else the lines below the header have them


def _plain(name: str) -> str:
    """Without git's quoting and without the `a/` or `b/`."""
    name = name.strip()
    if len(name) > 1 and name.startswith('"') and name.endswith('"'):
        name = _ESCAPE.sub(_unescape, name[1:-1]).encode("latin-1", "replace").decode("utf-8", "replace")
    return name[2:] if name.startswith(("a/", "b/")) else name


def _unescape(match: "re.Match[str]") -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if len(escaped) == 3 else _LETTERS.get(escaped, escaped)
