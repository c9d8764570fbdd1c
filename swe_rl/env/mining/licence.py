"""Reads which licence a source distribution says it has.

Invariants:
- Only metadata is read. Where it says nothing, there is no licence, and nothing is permitted.
"""

import re
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path

_CLASSIFIER = re.compile(r"License :: (?:OSI Approved :: )?(?P<name>.+)")
# A longer text in the field is the licence's whole text, of which the first line has the name.
_NAME_CHARS = 100
# The classifier of this licence says its owner's whole name, and `mine.licences` its short one.
_SHORT_NAMES = {"python software foundation": "psf"}


def licence_of(tree: Path) -> str:
    """Returns the licence that an unpacked source distribution names, and an empty text where it names none.

    A licence expression (PEP 639) comes before the classifiers, and these before the field in free text.
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
    return metadata.get("License", "").strip().split("\n")[0][:_NAME_CHARS]


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
