"""Finds what a project's own changelog says of one version, without the names of persons.

Invariants:
- Only files of the newer tree are read.
- An entry ends where the next version begins.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_NAMES = re.compile(r"(?:change[s_-]?(?:log)?|history|news|release[s_-]?(?:notes)?|whatsnew)", re.IGNORECASE)
_ENDINGS = frozenset({".md", ".rst", ".txt", ""})
_FOLDERS = (".", "docs", "doc", "docs/source", "doc/source")
_MAX_FILE_BYTES = 4 * 1024**2
_MAX_ENTRY_CHARS = 6000
_VERSION = r"\d+(?:\.\d+)+(?:\.?(?:post|dev|rc|a|b)\d+)?"
# A heading begins with a version, perhaps after marks, a word or the project's name, and says little more than a date.
_HEADING = re.compile(rf"^(?:\#+\s*|\*\*|=\s+)?(?:[\w.-]+\s+){{0,2}}?[\[`(]?v?(?P<version>{_VERSION})\b(?P<rest>.*)$")
# In a list of versions an item begins with one, and what is new follows a colon. `- Python 3.12 works` is no such item.
_ITEM_OF_VERSION = re.compile(rf"^[-*]\s+v?(?P<version>{_VERSION})(?P<rest>:\s.*|\s*|\s*\([\d\s/.-]*\):?)$")
_REST_OF_HEADING = re.compile(r"^[\])`*:\s]*[-–—(,:\s]*[\w\s,./()\[\]:#+-]{0,60}\*{0,2}$")
_ADDRESS_OF_LINK = re.compile(r"\]\([^)\s]*\)")
_UNDERLINE = re.compile(r"^\s*([=\-~^*#\"'+`])\1{2,}\s*$")
_ACCOUNTS = r"`{0,2}@[\w-]+`{0,2}(?:(?:,|,? and|\s*&)?\s+`{0,2}@[\w-]+`{0,2})*"
_FULL_NAME = r"[A-Z][\w.'-]+(?:\s+[A-Z][\w'-]*\.?)*\s+[A-Z][\w'-]+"
# These stand for persons: thanks, names and accounts after "by", accounts in brackets, addresses. A word after "@" may
# also be a decorator.
_PERSONS = (
    re.compile(r"\s*[\[(]?(?:thanks|thank you|credits?|kudos)\b[^.\n)]*[)\].]?", re.IGNORECASE),
    re.compile(
        r"\s*[,;(\[-]*\s*(?i:contributed|reported|fixed|suggested|written|patch|pull request|pr)?\s*\b[Bb]y\s+"
        rf"(?:{_ACCOUNTS}|{_FULL_NAME})[)\]]?"
    ),
    re.compile(rf"\s*[(\[]{_ACCOUNTS}[)\]]"),
    re.compile(rf"\s*\({_FULL_NAME}(?:(?:,|,? and|\s*&)\s+{_FULL_NAME})*\)(?=[.,;]?\s*$)", re.MULTILINE),
    # Brackets that end a line and have an issue's number or an account say who made it.
    re.compile(r"\s*\([^()`\n]*(?:#\d+|@[\w-]+)[^()`\n]*\)(?=[.,;]?[ \t]*$)", re.MULTILINE),
    re.compile(r"^\s*:(?:maintainers?|authors?|contributors?|released by):.*$", re.IGNORECASE | re.MULTILINE),
    re.compile(r"\s*<?[\w.+-]+@[\w-]+\.[\w.]*\w>?"),
)
_TWO_DOTS = re.compile(r"(?<!\.)\.\.(?!\.)")
_ISSUE = r"\[#\d+\]\([^)\s]*\)"
_ISSUES = re.compile(rf"\s*\(?{_ISSUE}(?:,\s*{_ISSUE})*\)?")
_LINK = re.compile(r"\s*[(\[]?(?:https?://\S+|`[^`]*<https?://[^>]*>`__?)[)\]]?")


def entry_of(tree: Path, version: str) -> str:
    """Returns what the first changelog of a tree that knows a version says of it, and an empty text if none does."""
    for path in _changelogs(tree):
        text = path.read_text(encoding="utf-8", errors="replace")
        entry = entry_in(text, version)
        if entry:
            return entry
    return ""


def _changelogs(tree: Path) -> Iterator[Path]:
    for folder in _FOLDERS:
        place = tree / folder
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            is_named = _NAMES.fullmatch(path.stem) and path.suffix.lower() in _ENDINGS
            if is_named and path.is_file() and not path.is_symlink() and path.stat().st_size <= _MAX_FILE_BYTES:
                yield path


def entry_in(text: str, version: str) -> str:
    """Returns the entry of a version in a changelog's text, without the names of persons and without links."""
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
    return without_persons("\n".join(entry)).strip()[:_MAX_ENTRY_CHARS]


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


def without_persons(text: str) -> str:
    """Returns a text without accounts, addresses, names after "by", thanks, and links."""
    for pattern in (*_PERSONS, _ISSUES, _LINK):
        text = pattern.sub("", text)
    return re.sub(r"[ \t]+\n", "\n", _TWO_DOTS.sub(".", text))
