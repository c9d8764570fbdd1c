"""Returns another value of the same kind, written as Python writes it.

Invariants:
- The new value is not equal to the old one and is of the same type, as long and as likely larger as smaller, so that
  nobody can tell by its looks which of the two a test really expects.
- Numbers move far enough that no usual tolerance of a comparison covers the difference.
"""

import ast
import random
import re

_WORD_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789"
# This matches one string without escapes, so what stands between its quotes is its value.
_QUOTED = re.compile(r"""(?P<prefix>[rRbBuU]{0,2})(?P<quote>'''|\"{3}|'|")(?P<inside>[^\\'"]*)(?P=quote)""")


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
    """Returns the constants within an expression that `another_value` can change, in the order of the source.

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
    ]
    return sorted(constants, key=lambda constant: (constant.lineno, constant.col_offset))


def another_literal(text: str, value: object, rng: random.Random) -> str:
    """Returns the source of another value in the style of `text`, which is the source of `value`.

    Raises TypeError for a value that is neither a number nor text.
    """
    quoted = _QUOTED.fullmatch(text)
    if isinstance(value, str | bytes) and quoted:
        inside = _another_text(quoted["inside"], rng)
        return f"{quoted['prefix']}{quoted['quote']}{inside}{quoted['quote']}"
    return another_value(value, rng)


def another_value(value: object, rng: random.Random) -> str:
    """Returns the source text of a value of the same type that differs. Raises TypeError for other types."""
    if isinstance(value, bool):
        return repr(not value)
    if isinstance(value, int):
        return ("-" if value < 0 else "") + _other_digits(str(abs(value)), rng)
    if isinstance(value, float):
        # A number that is not finite is followed by no other one, and a tolerance is usually a share of the value.
        return _other_digits(repr(value), rng) if abs(value) < 1e15 else repr(float(rng.randint(1, 9)))
    if isinstance(value, complex):
        return repr(value + rng.randint(1, 9))
    if isinstance(value, str):
        return repr(_another_text(value, rng))
    if isinstance(value, bytes):
        return repr(_another_text(value.decode("latin-1"), rng).encode("latin-1"))
    raise TypeError(f"no other value is known for {type(value).__name__}")


def _other_digits(number: str, rng: random.Random) -> str:
    """Returns a number whose first digit that counts differs. The number may become smaller as well as larger."""
    mantissa, exponent_mark, exponent = number.partition("e")
    digits = list(mantissa)
    places = [index for index, character in enumerate(mantissa) if character.isdigit()]
    first = next((index for index in places if mantissa[index] != "0"), places[0])
    for index in places:
        if index > first:
            digits[index] = rng.choice(_DIGITS)
    known = mantissa[first]
    # No digit but 0 is below 1, and none above 9, so every second of these gets a digit less, or more.
    if known == "1" and rng.random() < 0.5:
        digits[first] = "0"
    elif known == "9" and rng.random() < 0.5:
        digits[first] = "1" + rng.choice(_DIGITS)
    else:
        digits[first] = rng.choice([digit for digit in _DIGITS[1:] if digit != known])
    whole, point, fraction = "".join(digits).partition(".")
    return (whole.lstrip("0") or "0") + point + fraction + exponent_mark + exponent


def _another_text(text: str, rng: random.Random) -> str:
    """Exchanges one character for another of its kind, so that the text keeps its length and its look.

    A text without letters and digits gets a word more.
    """
    for alphabet in (_WORD_LETTERS, _WORD_LETTERS.upper(), _DIGITS):
        places = [index for index, character in enumerate(text) if character in alphabet]
        if places:
            index = rng.choice(places)
            others = alphabet.replace(text[index], "")
            return text[:index] + rng.choice(others) + text[index + 1 :]
    return text + "".join(rng.choices(_WORD_LETTERS, k=3))
