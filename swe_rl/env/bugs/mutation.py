"""Defines the families of bugs: swaps of one token for its partner on one line.

Invariants:
- A swap is its own way back: what turns `right` into `wrong` turns `wrong` into `right`.
- A site is usable only where the wrong text is the first of its kind on the mutated line, so that a one-line
  substitution (`sed 'Ns|wrong|right|'`) is the exact fix.
- No variant (family, right, wrong) belongs to both splits.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Swap:
    """Holds what sound code says (`right`) and what the bug makes of it (`wrong`).

    The texts carry the spaces around them.
    """

    family: str
    right: str
    wrong: str

    def reversed(self) -> "Swap":
        return Swap(self.family, self.wrong, self.right)


@dataclass(frozen=True, slots=True)
class MutationSite:
    """Names one place where a swap can be injected.

    `line` counts from 1, and `function` is the innermost function's name.
    """

    swap: Swap
    function: str
    line: int
    first_line: int  # This is the first line of the function.
    last_line: int

    def mutate(self, source: str) -> str:
        lines = source.split("\n")
        lines[self.line - 1] = lines[self.line - 1].replace(self.swap.right, self.swap.wrong, 1)
        return "\n".join(lines)


# Each family has pairs of texts. Of each pair one way round is injected in the training split and the other one in the
# held-out split, in turns: `split_swaps` says which.
PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "boundary": ((" < ", " <= "), (" >= ", " > ")),
    "direction": ((" > ", " < "), (" <= ", " >= ")),
    "equality": ((" == ", " != "),),
    "connective": ((" and ", " or "),),
    "negation": (("if not ", "if "),),
    "membership": ((" in ", " not in "),),
    "none_check": ((" is None", " is not None"),),
    "flag": (("True", "False"),),
    "offset": ((" + 1", " - 1"),),
    "sign": ((" + ", " - "),),
    "product": ((" * ", " // "),),
    "remainder": ((" % ", " // "),),
    "extreme": (("min(", "max("),),
    "quantifier": (("any(", "all("),),
    "end": (("[0]", "[-1]"),),
    "case": ((".lower(", ".upper("),),
    "affix": ((".startswith(", ".endswith("),),
    "strip": ((".lstrip(", ".rstrip("),),
    "loop_exit": (("break", "continue"),),
    "start_value": ((" = 0", " = 1"),),
}

# In these families a text alone would also match something else of Python's grammar, so the line has to match, too.
_LINE_RULES: dict[str, re.Pattern[str]] = {
    "membership": re.compile(r"^\s*(if|elif|return|while|assert)\b(?!.*\bfor\b)"),
    "negation": re.compile(r"^\s*if "),
    "sign": re.compile(r" [+-] (?!1\b)"),
    "offset": re.compile(r" [+-] 1\b(?!\.)"),
    "start_value": re.compile(r"^\s*\w+ = [01]$"),
    "loop_exit": re.compile(r"^\s*(break|continue)$"),
    "none_check": re.compile(r"\bis (not )?None\b"),
}


def all_swaps() -> list[Swap]:
    """Returns every variant, both ways round."""
    forward = [Swap(family, right, wrong) for family, pairs in PAIRS.items() for right, wrong in pairs]
    return [swap for pair in forward for swap in (pair, pair.reversed())]


def split_swaps(split: str) -> list[Swap]:
    """Returns the variants of a split.

    One way round of each pair goes to `train` and the other to `heldout`, in turns.
    """
    chosen = []
    turn = 0
    for family, pairs in PAIRS.items():
        for right, wrong in pairs:
            swap = Swap(family, right, wrong)
            chosen.append(swap if (turn % 2 == 0) == (split == "train") else swap.reversed())
            turn += 1
    return chosen


def _iter_functions(source: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            yield node


def matches_line(swap: Swap, line: str) -> bool:
    """Tells whether the swap applies to this line of sound code, and the first match of `wrong` undoes it."""
    at = line.find(swap.right)
    rule = _LINE_RULES.get(swap.family)
    if at < 0 or line.lstrip().startswith(("#", '"', "'", "def ", "@")) or (rule and not rule.search(line)):
        return False
    if (swap.right == "if " and line[at:].startswith("if not ")) or (swap.right == " in " and " not in " in line):
        return False
    if swap.family == "sign" and re.match(r" [+-] 1\b", line[at:]):
        return False
    mutated = line[:at] + swap.wrong + line[at + len(swap.right) :]
    return mutated.find(swap.wrong) == at and mutated != line


def find_sites(source: str, swaps: Sequence[Swap]) -> list[MutationSite]:
    """Returns all sites of `swaps` in functions of `source`, in order of line."""
    lines = source.split("\n")
    places = []
    for function in _iter_functions(source):
        last = function.end_lineno or function.lineno
        for number in range(function.lineno + 1, last + 1):
            places += [
                MutationSite(swap, function.name, number, function.lineno, last)
                for swap in swaps
                if matches_line(swap, lines[number - 1])
            ]
    return sorted(places, key=lambda site: (site.line, site.swap.family, site.swap.right))
