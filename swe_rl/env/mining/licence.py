"""Reads which licence a source distribution says it has.

Invariants:
- Only metadata is read, and the files that it names as licences. Where they say nothing, nothing is permitted.
- A whole text is a licence by the sentence that grants it, and not by its title: other texts name licences, too.
"""

import re
from collections.abc import Iterator, Sequence
from email.parser import HeaderParser
from pathlib import Path

_CLASSIFIER = re.compile(r"License :: (?:OSI Approved :: )?(?P<name>.+)")
# A longer text in the field is the licence's whole text.
_NAME_CHARS = 100
_MAX_TEXT_CHARS = 100_000
_LICENCE_FILE = re.compile(r"licen[sc]e|copying", re.IGNORECASE)
_OF_ITS_OWN = "a text of its own"
# It maps a licence to words of the sentence by which its text grants something.
_GRANTS = {
    "Apache": "apache license version 2 0 january 2004",
    "BSD": "redistribution and use in source and binary forms with or without modification are permitted",
    "ISC": "and or distribute this software for any purpose with or without fee is hereby granted",
    "MIT": "permission is hereby granted free of charge to any person obtaining a copy of this software",
    "PSF": "python software foundation license version 2",
    # Texts of these are recognised so that a text with one of them is not taken for one of the others alone.
    "GPL": "gnu general public license",
    "LGPL": "gnu lesser general public license",
    "MPL": "mozilla public license",
}
# The classifier of this licence says its owner's whole name, and `mine.licences` its short one.
_SHORT_NAMES = {"python software foundation": "psf"}


def licence_of(tree: Path) -> str:
    """Returns the licence that an unpacked source distribution names, and an empty text where it names none.

    A licence expression (PEP 639) comes before the classifiers, these before the field in free text, and this before
    the files that the metadata names.
    """
    try:
        metadata = HeaderParser().parsestr((tree / "PKG-INFO").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    expression = metadata.get("License-Expression", "").strip()
    if expression:
        return expression
    classifiers = [_CLASSIFIER.fullmatch(value.strip()) for value in metadata.get_all("Classifier", [])]
    # `License :: OSI Approved` alone is the name of a group of licences.
    names = [match["name"] for match in classifiers if match and match["name"] != "OSI Approved"]
    if names:
        return "; ".join(names)
    field = metadata.get("License", "").strip()
    if field:
        return licence_of_text(field) or field.split("\n")[0][:_NAME_CHARS]
    texts = _texts_of(tree, metadata.get_all("License-File", []))
    return "; ".join(licence_of_text(text) or _OF_ITS_OWN for text in texts)


def licence_of_text(text: str) -> str:
    """Returns the licences that a text grants, joined as those of classifiers, and an empty text for a name alone."""
    words = " ".join(re.findall(r"[a-z0-9]+", text.lower()))
    return "; ".join(name for name, grant in _GRANTS.items() if grant in words)


def _texts_of(tree: Path, names: Sequence[str]) -> Iterator[str]:
    """Yields the texts of the files that a release names as its licences, without lists of authors and notices."""
    for name in names:
        path = tree / name.strip()
        if _LICENCE_FILE.match(path.name) and path.is_file() and path.resolve().is_relative_to(tree.resolve()):
            yield path.read_text(encoding="utf-8", errors="replace")[:_MAX_TEXT_CHARS]


def is_permitted(licence: str, permitted: Sequence[str]) -> bool:
    """Tells whether a licence is one of `permitted`: each of these is a word that its name begins or contains.

    Of several licences ("MIT AND GPL-3.0") each has to be permitted, unless they are alternatives ("MIT OR GPL-3.0").
    """
    if not permitted:
        return True
    parts = [part for part in re.split(r"\bAND\b|;", licence) if part.strip(" ()")]
    return bool(parts) and all(
        any(_is_one_of(alternative, permitted) for alternative in re.split(r"\bOR\b", part)) for part in parts
    )


def _is_one_of(licence: str, permitted: Sequence[str]) -> bool:
    name = licence.lower()
    for whole, short in _SHORT_NAMES.items():
        name = name.replace(whole, short)
    return any(re.search(rf"(?<![a-z]){re.escape(word.lower())}(?![a-z])", name) for word in permitted)
