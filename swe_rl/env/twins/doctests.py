"""Changes what the examples of a text expect to be printed, as doctest runs them.

Invariants:
- Only a printed line is changed, never what an example calls.
- An example stays as it is if it expects nothing, or if its line matches anything (`...`).
"""

import random
import re

from swe_rl.env.twins.values import another_text

_EXAMPLE = re.compile(r"(?P<indent>\s*)>>> ")
_ENDS_DOCSTRING = re.compile(r'"""|\'\'\'')
_EXCEPTION = re.compile(r"(?P<indent>\s*)(?P<name>[A-Za-z_][\w.]*)(?=:|$)")
_TRACEBACK = "Traceback (most recent call last)"


def with_other_outputs(text: str, rng: random.Random) -> str:
    """Returns a text whose examples print something else than they expect, or nothing where none can be changed."""
    lines = text.split("\n")
    changed = list(lines)
    for place in _places_of_last_lines(lines):
        changed[place] = _another_line(lines, place, rng)
    return "\n".join(changed) if changed != lines else ""


def _places_of_last_lines(lines: list[str]) -> list[int]:
    """Returns the index of the last line of each expected output."""
    places: list[int] = []
    number = 0
    while number < len(lines):
        example = _EXAMPLE.match(lines[number])
        number += 1
        if not example:
            continue
        indent = example["indent"]
        while number < len(lines) and lines[number].startswith(f"{indent}..."):  # the example goes on
            number += 1
        first = number
        while number < len(lines) and _is_output(lines[number], indent):
            number += 1
        if number > first:
            places.append(number - 1)
    return places


def _is_output(line: str, indent: str) -> bool:
    return (
        bool(line.strip()) and line.startswith(indent) and not _EXAMPLE.match(line) and not _ENDS_DOCSTRING.search(line)
    )


def _another_line(lines: list[str], place: int, rng: random.Random) -> str:
    """Returns another line for the last one of an output."""
    line = lines[place]
    words = line.strip()
    if words == "...":
        return line
    start = len(line) - len(line.lstrip())
    if _is_traceback(lines, place):
        exception = _EXCEPTION.match(line)
        # doctest can be told to look at the exception's name alone.
        other = "KeyError" if exception and exception["name"] != "KeyError" else "IndexError"
        return f"{line[:start]}{other}{line[exception.end() :]}" if exception else line
    return line[:start] + another_text(words, rng)


def _is_traceback(lines: list[str], place: int) -> bool:
    """Tells whether the output that ends at a line is that of an exception."""
    for line in reversed(lines[:place]):
        if _TRACEBACK in line:
            return True
        if not line.strip() or _EXAMPLE.match(line):
            return False
    return False
