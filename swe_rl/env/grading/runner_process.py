"""Signs records and combines outcomes for the grader's programs, in the runner's process and beside it.

Invariants:
- This file stands alone (Python 3.6 and later): its text is put into sandboxes, before the text of the program
  that imports it.
- What disagrees has failed: a phase of a test is told of more than once where the test has parts (subtests), and one
  part that failed is enough. Beside a part that passed, one that the tests themselves skip says nothing.
"""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Callable  # noqa: UP035 - 3.6 has no other

_IMPORT = re.compile(r"^from swe_rl\.env\.grading\.runner_process import .*\n", re.MULTILINE)
# The parts of one test may differ so and agree. The last of them in this order is the outcome of the test.
_AGREEING = ("skipped", "xfailed", "passed")
_PHASES = {"setup", "call", "teardown"}


def outcome_of_both(first: str, second: str) -> str:
    """Returns what two outcomes come to that were told of the same phase of a test."""
    if first == second:
        return first
    if first in _AGREEING and second in _AGREEING:
        return max(first, second, key=_AGREEING.index)
    return "failed"


def outcome_of_phases(phases: "dict[str, str]") -> str:
    """Returns the outcome of a test: that of its call, unless its set-up or its end did not pass."""
    words = list(phases.values())
    if "failed" in words:
        return "failed"
    if "call" in phases and phases["call"] != "passed":
        return phases["call"]
    for word in words:
        if word != "passed":
            return word
    return "passed" if set(phases) == _PHASES else "failed"


def with_imports(program: Path) -> str:
    """Returns the text of a program that may import this file, as one that stands alone."""
    text = program.read_text(encoding="utf-8")
    return (Path(__file__).read_text(encoding="utf-8") if _IMPORT.search(text) else "") + _IMPORT.sub("", text)


def make_tell(key: bytes, channel: int) -> "Callable[[dict[str, Any]], None]":
    """Returns a function that writes signed records in the first process alone, not in those that it forks.

    Everything that the function needs is bound now, so that replacing functions of modules changes nothing.
    """
    sign = hashlib.blake2b(key=key)
    write = os.write
    dumps = json.dumps
    getpid = os.getpid
    first = getpid()
    count = [0]

    def tell(record: "dict[str, Any]") -> None:
        if getpid() != first:
            return
        text = dumps(record).encode()
        count[0] += 1  # it is signed too, so no record can be left out, repeated or moved
        mark = sign.copy()
        mark.update(str(count[0]).encode() + b" " + text)
        data = text + b" " + mark.hexdigest().encode() + b"\n"
        while data:
            data = data[write(channel, data) :]

    return tell
