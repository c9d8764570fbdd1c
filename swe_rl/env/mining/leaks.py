"""Finds out whether a statement, or a file that an agent sees, shows the code of a fix.

Invariants:
- A statement is compared token by token, so spaces, ends of lines, and marks of lists, prompts and code hide nothing.
- Of a line that the fix changes a little, the changed tokens with two neighbours count; of a new line all tokens do.
- Comments, and lines that only declare a name, are no code of a fix: a statement may say how something is called.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from swe_rl.env.patch_files import split_patch
from swe_rl.env.patch_hunks import changed_places, split_hunks

# A backtick marks code in a text, and belongs to no language that is mined.
_TOKEN = re.compile(r"\w+|[^\w\s`]")
_DECLARATION = re.compile(r"\s*(?:(?:async\s+)?def |class |import |from |@|#)")
# Without one of these a text of so few words may be English.
_CODE_TOKENS = frozenset("=<>+*/%&|^~[]{}()") | {"None", "True", "False"}
# Two lines with this share of common tokens are two states of one line.
_SAME_LINE = 0.6
_MIN_WINDOW_TOKENS = 3
_MIN_LINE_TOKENS = 4
# A line of fewer tokens tells as much, if these are long: `retry_delay_s = 86400`.
_MIN_LINE_CHARACTERS = 20
# A shorter line stands in many files by chance: `return value`, `if not path:`.
_MIN_TELLING_TOKENS = 6
_MAX_FILE_BYTES = 2 * 1024**2
_UNSEEN_FOLDERS = frozenset({".git", "__pycache__"})

Tokens = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddedLine:
    """Holds a line of code that a fix adds, and the parts of it that give the fix away."""

    text: str  # The line has no spaces at its ends.
    tokens: Tokens
    telling: Sequence[Tokens]


def shows_fix(statement: str, patch: str) -> bool:
    """Tells whether a statement has code that the fix adds."""
    said = _as_text(_tokens_of(statement))
    return any(_as_text(part) in said for line in added_lines(patch) for part in line.telling)


def file_with_fix(patch: str, folder: Path, *, is_installed: bool = False) -> str:
    """Returns a file of a folder that shows the fix, and an empty text where there is none.

    A module shows it if it has a changed place as the fix leaves it, or a comment with a line of the fix. A text shows
    it if it has all telling lines. Of installed packages only modules count that are called like a file of the fix:
    they hold so much code that single lines are in it by chance.
    """
    wanted = [line.text for line in added_lines(patch) if len(line.tokens) >= _MIN_TELLING_TOKENS]
    if not wanted:
        return ""
    places = [place for place in _places_after(patch) if any(line in place for line in wanted)]
    names = {Path(part.paths[-1]).name for part in split_patch(patch)} - {"__init__.py"}
    for path in _files_in(folder):
        if is_installed and path.name not in names:
            continue
        content = path.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n")
        if _shows_lines(content, wanted, places, is_module=path.suffix == ".py"):
            return path.relative_to(folder).as_posix()
    return ""


def _shows_lines(content: str, wanted: Sequence[str], places: Sequence[str], *, is_module: bool) -> bool:
    if not is_module:
        return all(line in content for line in wanted)
    if any(f"\n{place}\n" in f"\n{content}\n" for place in places):
        return True
    if not any(line in content for line in wanted):
        return False
    comments = [line for line in content.split("\n") if line.lstrip().startswith(("#", ">>>", "..."))]
    return any(line in comment for line in wanted for comment in comments)


def _places_after(patch: str) -> Iterator[str]:
    """Yields each changed place as the fix leaves it, with the line before it and the line behind it."""
    for part in split_patch(patch):
        for hunk in split_hunks(part.text)[1]:
            left = [line.removesuffix("\n") for line in hunk[1:] if line[:1] in ("+", " ")]
            added = [number for number, line in enumerate(left) if line.startswith("+")]
            if added:
                yield "\n".join(line[1:] for line in left[max(added[0] - 1, 0) : added[-1] + 2])


def added_lines(patch: str) -> list[AddedLine]:
    """Returns the lines of code that a patch adds, without those that it only moves."""
    lines: list[AddedLine] = []
    blocks = list(_blocks_of(patch))
    moved = {_tokens_of(line) for removed, _ in blocks for line in removed}
    for removed, added in blocks:
        for line in added:
            tokens = _tokens_of(line)
            if not tokens or tokens in moved or _DECLARATION.match(line):
                continue
            telling = [part for part in _telling_parts(tokens, [_tokens_of(old) for old in removed]) if _is_code(part)]
            if telling:
                lines.append(AddedLine(line.strip(), tokens, telling))
    return lines


def _blocks_of(patch: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the removed and the added lines of each changed place."""
    for part in split_patch(patch):
        for hunk in split_hunks(part.text)[1]:
            yield from ((removed, added) for _, removed, added in changed_places(hunk) if added)


def _telling_parts(tokens: Tokens, removed: Sequence[Tokens]) -> Iterator[Tokens]:
    """Yields what gives a line away: all of a new line, or the changed places of one that was there."""
    matchers = [SequenceMatcher(None, old, tokens, autojunk=False) for old in removed]
    nearest = max(matchers, key=lambda matcher: matcher.ratio(), default=None)
    if nearest is None or nearest.ratio() < _SAME_LINE:
        if len(tokens) >= _MIN_LINE_TOKENS or sum(map(len, tokens)) >= _MIN_LINE_CHARACTERS:
            yield tokens
        return
    for kind, _, _, start, end in nearest.get_opcodes():
        if kind == "equal":
            continue
        # Where tokens only went, their two neighbours are what the fix makes of the place.
        if start == end:
            start = max(start - 1, 0)
            end = min(end + 1, len(tokens))
        width = min(max(end - start + 2, _MIN_WINDOW_TOKENS), len(tokens))
        for first in range(max(end - width, 0), min(start, len(tokens) - width) + 1):
            yield tokens[first : first + width]


def _is_code(tokens: Tokens) -> bool:
    return not _CODE_TOKENS.isdisjoint(tokens) or any("_" in token.strip("_") for token in tokens)


def _tokens_of(text: str) -> Tokens:
    return tuple(_TOKEN.findall(text))


def _as_text(tokens: Tokens) -> str:
    """Returns tokens so that one sequence contains another exactly if their texts do."""
    return f" {' '.join(tokens)} "


def _files_in(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if not _UNSEEN_FOLDERS.isdisjoint(path.relative_to(folder).parts):
            continue
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _MAX_FILE_BYTES:
            yield path
