"""Takes the names of persons out of what projects say: accounts, addresses, names after "by", thanks, and links.

Invariants:
- Names may be of any script, and a person after "and" goes with the person before it.
- A word after `@` is an account, unless it is code: in backticks, called or dotted, or a decorator that is known.
"""

import re
from collections.abc import Collection

# The letters that a name begins with: capitals of Latin, Greek, Cyrillic and Armenian, and scripts without capitals.
_CAPITALS = "".join(letter for letter in map(chr, range(0x41, 0x590)) if letter.isupper())
_UNCASED = "\u05d0-\u05ea\u0620-\u064a\u0904-\u0dff\u0e01-\u0e4e\u3041-\u30ff\u3400-\u9fff\uac00-\ud7a3"
_WORD = rf"(?:[{_CAPITALS}]\.(?:-?[{_CAPITALS}]\.)*|[{_CAPITALS}][\w'\u2019-]+)"
_PARTICLE = r"(?:(?:de|del|della|den|der|di|da|das|do|dos|du|la|le|van|von|zu|bin|ibn|al|el|ter|ten)[ \t]+)*"
_FULL_NAME = rf"(?:{_WORD}(?:[ \t]+|[ \t]*\n[ \t]+){_PARTICLE}{_WORD}(?:[ \t]+{_PARTICLE}{_WORD})*|[{_UNCASED}]{{2,}})"
_EMAIL = r"(?<![\w.+-])<?[\w.+-]+@[\w-]+\.[\w.]*\w>?"
_ACCOUNT = r"`{0,2}@\w[\w-]*`{0,2}"
# A link to a page of an account on a forge names the account's owner.
_LINKED = r"\[[^\]\n]{1,60}\]\(https?://(?:www\.)?(?:github|gitlab|bitbucket|codeberg)\.\w+/[\w-]+/?\)"
_PERSON = rf"(?:{_LINKED}|{_ACCOUNT}|{_FULL_NAME})(?:\s*(?:{_EMAIL}|\({_ACCOUNT}\)))?"
_PERSONS = rf"{_PERSON}(?:(?:,|,?\s*(?:and\b|&|\+))\s+{_PERSON}|,?\s*(?:and|&)\s+{_WORD})*"
_GAVE = (
    r"(?i:contributed|reported|fixed|suggested|written|implemented|requested|found|spotted|noticed|submitted|proposed|"
    r"provided|discovered|reviewed|authored|patch(?:es)?|pull request|pr|report|contribution|idea)"
)
# Reports come from persons, also where an account is written as a plain word.
_TOLD = r"(?i:contributed|reported|suggested|requested|spotted|noticed|submitted|proposed|discovered|authored)"
_NAMES = rf"(?:{_FULL_NAME}|{_WORD})(?:(?:,|,?\s+and|\s*&)\s+(?:{_FULL_NAME}|{_WORD}))*"
# What joins a person to the text before goes as well, and never the mark of an item.
_LEAD = r"(?:(?<=\S)[ \t]*(?:\n[ \t]+(?![-*+\u2022]))?(?:-{1,2}[ \t])?[,;(\[]*[ \t]*)?"
# Thanks go on to the end of their sentence. A point after an initial or inside a word ends none.
_SENTENCE = rf"(?:[^.\n()\[\]]|\.(?=\w)|(?<=\b[{_CAPITALS}])\.|\([^()\n]*\)|\[[^\]\n]*\]|\n[ \t]+(?![-*+\u2022\d\s]))*"
_THANKS = (
    r"(?i:(?:(?:many|special|big|huge) )?(?:thanks|thank you|thx|kudos)\b|(?:props|hat tip|shout-?out|"
    r"credits?(?: goes| go| is due)?) to\b|courtesy of\b|h/t\b)"
)
_FIELDS = (
    r"maintainers?|authors?|contributors?|reporters?|committers?|reviewers?|credits?|cc|thanks(?: to)?|"
    r"(?:released|reported|co-authored|authored|patch|contributed) by"
)
_REMOVED = (
    re.compile(r"^[ \t]*(?:[A-Za-z]+-)+by:.*$", re.IGNORECASE | re.MULTILINE),
    re.compile(rf"^[ \t]*(?:[-*+][ \t]+)?:?(?:{_FIELDS})[ \t]*:.*$", re.IGNORECASE | re.MULTILINE),
    re.compile(rf"\s*[\[(][^()\[\]\n]*?\b{_THANKS}(?:[^()\[\]]|\([^()]*\)|\[[^\]\n]*\])*[\])]"),
    re.compile(rf"{_LEAD}{_THANKS}{_SENTENCE}\.?"),
    re.compile(rf"{_LEAD}(?:(?:{_GAVE}\s+and\s+)?{_GAVE}\s+)?\b[Bb]y\s+{_PERSONS}[)\]]?"),
    re.compile(rf"{_LEAD}(?:{_GAVE}\s+and\s+)?{_GAVE}\s+by\s+{_NAMES}[)\]]?(?=[.,;]|\s*$)", re.MULTILINE),
    re.compile(rf"\s*[(\[]{_TOLD}\s+by\s+[\w.-]+[)\]]"),
    re.compile(rf"\s*[(\[](?:via|from|with)\s+{_NAMES}[)\]](?=[.,;]?\s*$)", re.MULTILINE),
    re.compile(rf"{_LEAD}{_GAVE}s?\s+(?:from|of)\s+{_PERSONS}[)\]]?"),
    re.compile(rf"\s*[(\[]{_ACCOUNT}(?:(?:,|,? and|\s*&)?\s+{_ACCOUNT})*[)\]]"),
    re.compile(rf"\s*\({_FULL_NAME}(?:(?:,|,? and|\s*&)\s+{_FULL_NAME})*\)(?=[.,;]?\s*$)", re.MULTILINE),
    re.compile(rf"\s*(?<=\w[.!])\s*\[{_FULL_NAME}(?:(?:,|,? and|\s*&)\s+{_FULL_NAME})*\][ \t]*$", re.MULTILINE),
    # Brackets that end a line and have an issue's number or an account say who made it.
    re.compile(r"\s*\([^()`\n]*(?:#\d+|@[\w-]+)[^()`\n]*\)(?=[.,;]?[ \t]*$)", re.MULTILINE),
    # Some projects close each entry with a line of the account or the name in brackets, others with a dash before it.
    re.compile(rf"^[ \t]*\[(?:{_FULL_NAME}|[a-z][\w-]*(?:,[ \t]*[a-z][\w-]*)*)\][ \t]*$", re.MULTILINE),
    re.compile(rf"(?:^|(?<=[.!)]))[ \t]*(?:--|[\u2013\u2014~])[ \t]*{_PERSONS}[ \t]*$", re.MULTILINE),
    re.compile(rf"\s*{_LINKED}"),
    re.compile(rf"\s*(?:(?:{_FULL_NAME}|{_WORD})\s+(?=<))?{_EMAIL}"),
)
_SUBJECT = re.compile(
    rf"\b{_FULL_NAME}(?=\s+(?:has\s+|have\s+)?(?:reported|contributed|suggested|submitted|sent|noticed|pointed out)\b)"
)
_ANY_ACCOUNT = re.compile(
    r"\s*(?:\b(?:cc|via|from)\s+)?(?<![\w`.@/\"'])@(?P<name>[A-Za-z\d][A-Za-z\d-]*)(?![\w`(]|[.-]\w)(?P<end>:?)"
)
_DECORATORS = frozenset(
    {"abstractmethod", "cache", "classmethod", "contextmanager", "dataclass", "deprecated", "final", "fixture", "media"}
    | {"import", "overload", "override", "property", "staticmethod", "total", "wraps"}
)
_TWO_DOTS = re.compile(r"(?<!\.)\.\.(?!\.)")
_EMPTY_ITEM = re.compile(r"^[ \t]*[-*+\u2022][ \t]*\n", re.MULTILINE)
_ISSUE = r"\[#\d+\]\([^)\s]*\)"
_ISSUES = re.compile(rf"\s*\(?{_ISSUE}(?:,\s*{_ISSUE})*\)?")
_LINK = re.compile(r"\s*[(\[]?(?:https?://\S+|`[^`]*<https?://[^>]*>`__?)[)\]]?")
_CODE_WORD = re.compile(r"(?:^[ \t]*|[\"'])@(\w+)", re.MULTILINE)


def without_persons(text: str, code_words: Collection[str] = ()) -> str:
    """Returns a text without persons and links. `code_words` stand after `@` in the project's code."""
    for pattern in (*_REMOVED, _ISSUES, _LINK):
        text = pattern.sub("", text)
    known = _DECORATORS.union(code_words)
    text = _ANY_ACCOUNT.sub(lambda match: match[0] if match["name"] in known else "", text)
    text = _SUBJECT.sub("Somebody", text)
    text = _EMPTY_ITEM.sub("", _TWO_DOTS.sub(".", text) + "\n")[:-1]
    return re.sub(r"[ \t]+\n", "\n", text)


def code_words_of(source: str) -> set[str]:
    """Returns the words that stand after `@` in code: decorators, and strings that begin so."""
    return set(_CODE_WORD.findall(source))
