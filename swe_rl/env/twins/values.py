"""Returns other values of the same kind, written as Python writes them.

Invariants:
- Nobody can tell by their looks which of the values a test really expects: they differ in one character, at one place,
  and any of them could be the first one.
- No new value equals the old one. Numbers differ in the first digit that counts, which no usual tolerance covers.
"""

import ast
import random
import re
from collections.abc import Sequence

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789"
_ALPHABETS = (_DIGITS, _LETTERS, _LETTERS.upper(), "-_:;,.!?/|+*#")
# By these letters Python's numbers say that they have another base.
_DIGITS_OF_BASES = {"x": "123456789abcdef", "o": "1234567", "b": "01"}
_STRING = re.compile(
    r"""[rRbBuU]{0,2}(?P<quote>'''|\"{3}|'|")(?P<inside>(?:\\.|(?!(?P=quote)).)*)(?P=quote)""", re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|[0-7]{1,3}|.)", re.DOTALL)
_NO_DIGIT = re.compile(r"0(?P<base>[xob])|[eE].*|[jJ]$")


def is_literal(node: ast.expr) -> bool:
    """Tells whether an expression is written out: a constant, or a list, tuple, set or dictionary of constants."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd) and isinstance(node.operand, ast.Constant)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return all(is_literal(element) for element in node.elts)
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
        return len(keys) == len(node.keys) and all(is_literal(part) for part in (*keys, *node.values))
    return False


def changeable_constants(node: ast.expr) -> list[ast.Constant]:
    """Returns the constants within an expression that `other_literals` can change, in the order of the source.

    Parts of an f-string have no place of their own in the source, so they are left out.
    """
    inside_f_strings = {
        id(part) for string in ast.walk(node) if isinstance(string, ast.JoinedStr) for part in ast.walk(string)
    }
    constants = [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
        and id(part) not in inside_f_strings
        and isinstance(part.value, bool | int | float | complex | str | bytes)
        and part.value != float("inf")  # no other digits make another number of it
    ]
    return sorted(constants, key=lambda constant: (constant.lineno, constant.col_offset))


def another_literal(text: str, rng: random.Random) -> str:
    """Returns the source of another value than that of the source `text`."""
    return other_literals(text, rng)[0]


def other_literals(text: str, rng: random.Random) -> list[str]:
    """Returns the sources of values that look like that of the source `text`, in any order."""
    if text in ("True", "False"):
        return ["False" if text == "True" else "True"]
    strings = [string.span("inside") for string in _STRING.finditer(text)]
    return _other_texts(text, strings, rng) if strings else _exchange(text, *_place_in_number(text), rng)


def another_text(text: str, rng: random.Random) -> str:
    """Returns another text that looks like `text`."""
    return _other_texts(text, [(0, len(text))], rng)[0]


def _other_texts(text: str, spans: Sequence[tuple[int, int]], rng: random.Random) -> list[str]:
    """Returns texts that differ within `spans`: in a digit, as digits have no spelling, or else in a letter."""
    places = {place for start, end in spans for place in range(start, end)}
    for start, end in spans:
        places -= {place for escape in _ESCAPE.finditer(text, start, end) for place in range(*escape.span())}
    for alphabet in _ALPHABETS:
        fitting = sorted(place for place in places if text[place] in alphabet)
        if fitting:
            return _exchange(text, rng.choice(fitting), alphabet, rng)
    end = spans[-1][1]
    return [text[:end] + "".join(rng.choices(_LETTERS, k=3)) + text[end:]]


def _exchange(text: str, place: int, alphabet: str, rng: random.Random) -> list[str]:
    """Returns texts in which one character is another one of an alphabet, in any order."""
    others = [character for character in alphabet if character not in (text[place], text[place].lower())]
    return [text[:place] + character + text[place + 1 :] for character in rng.sample(others, k=len(others))]


def _place_in_number(text: str) -> tuple[int, str]:
    """Returns where the first digit of a number that counts stands, and by which digits it may be exchanged."""
    base = ""
    places = set(range(len(text)))
    for part in _NO_DIGIT.finditer(text.lower()):
        base = part["base"] or base
        if not base or part["base"]:
            places -= set(range(*part.span()))
    digits = [place for place in sorted(places) if text[place].isalnum()]
    counting = [place for place in digits if text[place] != "0"]
    alphabet = _DIGITS_OF_BASES.get(base, _DIGITS if len(counting) < 2 and len(digits) < 2 else _DIGITS[1:])
    return (counting or digits)[0], alphabet
