"""Finds what a project's own changelog says of one version, without the names of persons.

Invariants:
- Only files of the newer tree are read.
- An entry ends where the next version begins.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from swe_rl.env.mining.persons import code_words_of, without_persons

_NAMES = re.compile(r"(?:change[s_-]?(?:log)?|history|news|release[s_-]?(?:notes)?|whatsnew)", re.IGNORECASE)
_ENDINGS = frozenset({".md", ".rst", ".txt", ""})
_FOLDERS = (".", "docs", "doc", "docs/source", "doc/source")
_MAX_FILE_BYTES = 4 * 1024**2
_MAX_READ_CHARS = 24_000
_MAX_ENTRY_CHARS = 6000
_VERSION = r"\d+(?:\.\d+)+(?:\.?(?:post|dev|rc|a|b)\d+)?"
# A heading begins with a version, perhaps after marks, a word or the project's name, and says little more than a date.
_HEADING = re.compile(rf"^(?:\#+\s*|\*\*|=\s+)?(?:[\w.-]+\s+){{0,2}}?[\[`(]?v?(?P<version>{_VERSION})\b(?P<rest>.*)$")
# In a list of versions an item begins with one, and what is new follows a colon. `- Python 3.12 works` is no such item.
_ITEM_OF_VERSION = re.compile(rf"^[-*]\s+v?(?P<version>{_VERSION})(?P<rest>:\s.*|\s*|\s*\([\d\s/.-]*\):?)$")
_REST_OF_HEADING = re.compile(r"^[\])`*:\s]*[-–—(,:\s]*[\w\s,./()\[\]:#+-]{0,60}\*{0,2}$")
_ADDRESS_OF_LINK = re.compile(r"\]\([^)\s]*\)")
_UNDERLINE = re.compile(r"^\s*([=\-~^*#\"'+`])\1{2,}\s*$")


def entry_of(tree: Path, version: str) -> str:
    """Returns what the first changelog of a tree that knows a version says of it, and an empty text if none does."""
    for path in _changelogs(tree):
        entry = entry_in(path.read_text(encoding="utf-8", errors="replace"), version)
        if entry:
            text = without_persons(entry[:_MAX_READ_CHARS], _code_words(tree))
            return text.strip()[:_MAX_ENTRY_CHARS]
    return ""


def _code_words(tree: Path) -> set[str]:
    """Returns the words that stand after `@` in a tree's modules."""
    words: set[str] = set()
    for path in sorted(tree.rglob("*.py")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _MAX_FILE_BYTES:
            words |= code_words_of(path.read_text(encoding="utf-8", errors="replace"))
    return words


def _changelogs(tree: Path) -> Iterator[Path]:
    for folder in _FOLDERS:
        place = tree / folder
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            is_named = _NAMES.fullmatch(path.stem) and path.suffix.lower() in _ENDINGS
            if is_named and path.is_file() and not path.is_symlink() and path.stat().st_size <= _MAX_FILE_BYTES:
                yield path


def entry_in(text: str, version: str) -> str:
    """Returns the entry of a version in a changelog's text, as it is there."""
    lines = text.replace("\r\n", "\n").split("\n")
    entry: list[str] = []
    is_inside = False
    for line in lines:
        heading = _version_of_heading(line)
        if heading:
            if is_inside:
                break
            is_inside = _is_same(heading, version)
            if is_inside:
                entry += _news_of_item(line)
        elif is_inside:
            entry.append(line)
    while entry and _UNDERLINE.match(entry[0]):
        entry.pop(0)
    return "\n".join(entry).strip()


def _news_of_item(line: str) -> list[str]:
    """Returns what an item of a list of versions says behind its version."""
    match = _ITEM_OF_VERSION.match(line.strip())
    news = match["rest"].partition(":")[2].strip() if match else ""
    return [news] if news else []


def _version_of_heading(line: str) -> str:
    item = _ITEM_OF_VERSION.match(line.strip()) if line[:1].strip() else None
    if item is not None:
        return item["version"]
    shown = _ADDRESS_OF_LINK.sub("]", line.strip())
    match = _HEADING.match(shown) if line[:1].strip() else None
    if match is None or not _REST_OF_HEADING.match(match["rest"]):
        return ""
    return match["version"]


def _is_same(version: str, other: str) -> bool:
    """Tells whether two spellings mean one version: 2.5 and 2.5.0 do."""
    return _without_zeros(version) == _without_zeros(other)


def _without_zeros(version: str) -> list[str]:
    parts = version.split(".")
    while len(parts) > 2 and parts[-1] == "0":
        parts.pop()
    return parts
