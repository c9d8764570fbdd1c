"""Writes the problem statement of an injected bug, as a reporter would.

Invariants:
- The statement names the function and its file and describes the symptom, never the fix, the line or the right token.
- The wording depends on the family only; which way round the bug goes has to be read from the code.
"""

import keyword
import random
import re

_SYMPTOMS: dict[str, tuple[str, ...]] = {
    "boundary": (
        "It is wrong exactly at the limit: the boundary value lands on the wrong side.",
        "Everything works except for the value that equals the limit.",
    ),
    "direction": (
        "Large and small are mixed up: it compares the wrong way round.",
        "The comparison goes the wrong way, so high values are handled as low ones.",
    ),
    "equality": (
        "Equal values are treated as different and different ones as equal.",
        "It only works when the two values should not match.",
    ),
    "connective": (
        "The two conditions are combined wrongly.",
        "It asks for both conditions where one is enough, or the other way about.",
    ),
    "negation": (
        "A check is inverted: the branch is taken in the opposite case.",
        "It does the opposite of what the check is meant for.",
    ),
    "membership": (
        "Known entries are handled like unknown ones.",
        "Looking up whether an entry is contained gives the opposite answer.",
    ),
    "none_check": (
        "A missing value is handled like a present one.",
        "It breaks for a value that is not given, and ignores one that is given.",
    ),
    "flag": (
        "A yes or no comes out inverted.",
        "The flag has the opposite value of what the documentation says.",
    ),
    "offset": (
        "The result is off by a small step, in the wrong direction.",
        "It counts one step to the wrong side.",
    ),
    "sign": (
        "An amount is taken off where it should be put on top, or the reverse.",
        "The total has the wrong sign for one part.",
    ),
    "product": (
        "The size of the result is completely wrong, as if scaled the wrong way.",
        "It divides and multiplies the wrong way about.",
    ),
    "remainder": (
        "The whole part and the rest of the division are mixed up.",
        "What is left over is confused with how often it fits.",
    ),
    "extreme": (
        "It picks the largest where the smallest is wanted, or the reverse.",
        "The bound works at the wrong extreme.",
    ),
    "quantifier": (
        "A single match counts like all of them, or all are needed for one.",
        "It mixes up one match and every match.",
    ),
    "end": (
        "It takes the item from the wrong end.",
        "First and last item are mixed up.",
    ),
    "case": (
        "Letters come out in the wrong case.",
        "Capital and small letters are mixed up.",
    ),
    "affix": (
        "It looks at the wrong end of the text.",
        "The beginning and the ending of the text are mixed up.",
    ),
    "strip": (
        "Characters are trimmed from the wrong side.",
        "The wrong side of the text is cleaned.",
    ),
    "loop_exit": (
        "The loop stops too early, or does not stop at all.",
        "It leaves the loop where it should go on, or the reverse.",
    ),
    "start_value": (
        "The counter starts from the wrong number.",
        "The result is wrong from the start: the initial number is not right.",
    ),
}
_OPENINGS = (
    "Function {function} in {path} is broken.",
    "Bug: {function} in {path} fails.",
    "See {function} in {path} please.",
)
_HINTS = ("I think it has to do with {hint} there.", "Look for {hint} there.")
# These words are on lines of any code, so they are no hint.
_PLAIN = frozenset({"self", "True", "False", "None", *keyword.kwlist})


def swap_families() -> tuple[str, ...]:
    return tuple(_SYMPTOMS)


def hint_words(line: str) -> list[str]:
    """Returns the identifiers of a line that a reporter could name, each once, in order."""
    without_strings = re.sub(r"(\"[^\"]*\"|'[^']*')", "", line)
    return [word for word in dict.fromkeys(re.findall(r"[A-Za-z_]\w+", without_strings)) if word not in _PLAIN]


def problem_statement(rng: random.Random, *, family: str, function: str, path: str, line: str) -> str:
    """Returns the problem statement of a bug. `line` is the buggy line; only an identifier of it may be named."""
    parts = [rng.choice(_OPENINGS).format(function=function, path=path), rng.choice(_SYMPTOMS[family])]
    words = hint_words(line)
    if words:
        parts.append(rng.choice(_HINTS).format(hint=rng.choice(words)))
    return " ".join(parts)
