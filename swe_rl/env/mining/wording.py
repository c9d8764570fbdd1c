"""Writes what an agent is told of a mined task: what the project says of the change, and what the new tests test.

Invariants:
- No line of the fix is shown, and no person is named. A test is shown only where nothing else says enough.
- Of a part of a change only those items of a list are told that share a word with the part's tests.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_ENDING = "Change the code so that it does this. Leave what is not named as it is."
_ITEM = re.compile(r"^\s{0,3}(?:[-*+•]|\d+[.)])\s+")
_WORD = re.compile(r"[a-z]{4,}")
# These words are in many entries and in many names of tests, so they connect nothing.
_COMMON = frozenset(
    {"test", "tests", "with", "when", "from", "that", "this", "have", "does", "should", "return", "fixed"}
)
_MAX_DESCRIBED = 20
# A line with fewer words names a thing, as `partition all`, and not what is wanted of it.
_MIN_WORDS = 4


@dataclass(frozen=True, slots=True)
class ChangeWords:
    """Holds what there is to say of a change.

    `heading` comes before `entry`, which the project itself says; `tests` has a line for each of its new tests, and
    `examples` the code of those that are short.
    """

    heading: str = ""
    entry: str = ""
    tests: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)

    def statement(self) -> str:
        """Returns the statement of the whole change, and an empty text where too little is said of it."""
        return self._statement(self.entry, list(self.tests))

    def statement_of_part(self, names: Sequence[str]) -> str:
        """Returns the statement of the part that these tests are about, or an empty text if too little is said."""
        lines = [self.tests.get(name) or words_of(name) for name in names]
        return self._statement(_entries_about(self.entry, [*names, *lines]), names)

    def _statement(self, entry: str, names: Sequence[str]) -> str:
        lines = [self.tests.get(name) or words_of(name) for name in names]
        if entry or tells_enough(lines):
            return _joined(self.heading, entry, lines)
        example = next((self.examples[name] for name in names if name in self.examples), "")
        return _joined(self.heading, entry, lines, example) if example else ""


def tells_enough(lines: Iterable[str]) -> bool:
    """Tells whether one of the lines about tests says what is wanted, and does not only name a thing."""
    return any(len(line.split()) >= _MIN_WORDS for line in lines)


def shown_example(example: str) -> str:
    """Returns the paragraph of a statement that shows a test."""
    return f"This is one of them, or its beginning:\n\n```python\n{example}\n```"


def words_of(name: str) -> str:
    """Returns `an empty list` for `test_an_empty_list`, and `EmptyList` for `testEmptyList`."""
    return name.removeprefix("test").strip("_").replace("_", " ") or name


def _joined(heading: str, entry: str, tests: Iterable[str], example: str = "") -> str:
    parts = []
    if entry:
        parts.append(f"{heading}\n\n{entry}" if heading else entry)
    described = list(dict.fromkeys(tests))[:_MAX_DESCRIBED]
    if described:
        listed = "\n".join(f"- {line}" for line in described)
        parts.append(f"Tests that come with the change are about:\n\n{listed}")
    if example:
        parts.append(shown_example(example))
    return "\n\n".join([*parts, _ENDING]) if parts else ""


def _entries_about(entry: str, texts: Sequence[str]) -> str:
    """Returns the items of a list that share a word with one of the texts, and all of a text that is no list."""
    wanted = _telling_words(" ".join(texts))
    items: list[list[str]] = []
    for line in entry.split("\n"):
        if _ITEM.match(line):
            items.append([line])
        elif items and line[:1].isspace() and line.strip():
            items[-1].append(line)
    if not items:
        return entry
    texts_of_items = ["\n".join(item) for item in items]
    return "\n".join(text for text in texts_of_items if wanted & _telling_words(text))


def _telling_words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower())) - _COMMON
