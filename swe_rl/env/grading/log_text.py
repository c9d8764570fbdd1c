"""Reads the log of a test run for other readers: without colours, and with what it calls failed in plain lines.

Invariants:
- What disagrees has failed: a test that one line calls passed and another one, or a part of it (a subtest, its end),
  calls failed, has failed, whichever line comes last.
- No pattern takes more time than the log is long: tested code writes the log.
- A line of a test's failure can only make tests fail: a name that is read out of it by mistake costs nobody a verdict
  but the code that printed it.
"""

import re
from collections.abc import Iterator

FAILING = frozenset({"FAILED", "ERROR"})
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()][0-2AB]|[@-Z\\^_=>])")
_SUMMARY_WORDS = ("FAILED ", "ERROR ")
_PART = re.compile(r"\bSUB(?:FAIL(?:ED)?|ERROR)\b")  # pytest 9 and the plugin pytest-subtests print these
_NODE = re.compile(r"(?:^|(?<=\s))\S*?::")
# One line is taken to hold at most so many names: a description of a subtest may look like an id.
_MOST_NAMES = 4
# unittest heads each failure with a ruler, the test, its subtest's parameters, and the first line of its docstring.
_UNITTEST = re.compile(
    r"^={70}\n(?:FAIL|ERROR|UNEXPECTED SUCCESS): (\S{1,500} \([^()\n]{1,500}\))[^\n]*(?:\n(?!-{70}$)([^\n]+))?",
    re.MULTILINE,
)


def strip_escapes(log: str) -> str:
    """Returns `log` without the escape sequences of a terminal."""
    return _ESCAPE.sub("", log)


def failing_lines(text: str) -> list[str]:
    """Returns a line for each test, or part of one, that `text` calls failed.

    The lines are `FAILED ID` as pytest's summary has it, and `TEST ... FAIL` as unittest says it while the tests run.
    """
    lines = [f"FAILED {words}" for line in text.split("\n") for words in _failed_in(line.rstrip("\r"))]
    for match in _UNITTEST.finditer(text.replace("\r\n", "\n")):
        lines += [f"{name} ... FAIL" for name in match.groups() if name]
    return list(dict.fromkeys(lines))


def failed_names(text: str) -> frozenset[str]:
    """Returns the ids in `failing_lines` of pytest.

    Where an id ends is not sure: it may hold blanks, and what looks like the beginning of a message. So each way to
    read it is a name.
    """
    names: set[str] = set()
    for line in failing_lines(text):
        if line.startswith("FAILED "):
            rest = line.removeprefix("FAILED ")
            pieces = rest.split(" - ")[:_MOST_NAMES]
            names.update(" - ".join(pieces[:count]).rstrip() for count in range(1, len(pieces) + 1))
            names.add(rest.split(None, 1)[0])
    return frozenset(names)


def _failed_in(line: str) -> Iterator[str]:
    """Yields what a line of pytest says of a failure, from each id on."""
    if line.startswith(_SUMMARY_WORDS):
        words = line.partition(" ")[2].lstrip()
        if "::" in words.split(" - ", 1)[0]:  # else some program logged it, or a file did not load
            yield words
        return
    part = _PART.search(line) if "SUB" in line else None
    if part is None:
        return
    # The id comes first as the tests run, and last in the summary.
    for words in (line[: part.start()], line[part.end() :]):
        starts = [match.start() for match, _ in zip(_NODE.finditer(words), range(_MOST_NAMES), strict=False)]
        yield from (words[start:].rstrip() for start in starts)
