"""The commands that show a function and that undo a swap in it, as a person would type them.

Invariants:
- Both address the function by its name: from its `def` to the next blank line.
- `apply` gives the lines that the command's sed would leave, so that demonstrations and the generator need no shell.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from swe_rl.env.bugs.mutation import Site, Swap, all_swaps, matches, sites

_NEXT_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces `swap.right` (what the code says now) with the word behind it by `swap.wrong` and that word."""

    swap: Swap
    word: str  # the identifier that follows directly, or nothing

    @classmethod
    def at(cls, swap: Swap, line: str) -> "Edit":
        """The edit that a person who looks at `line` would type."""
        rest = line[line.find(swap.right) + len(swap.right) :]
        match = _NEXT_WORD.match(rest)
        return cls(swap, match[0] if match else "")

    def command(self, function: str, path: str) -> str:
        pattern = re.sub(r"([\[\]*.])", r"\\\1", self.swap.right) + self.word
        return f"sed -i '/def {function}(/,/^$/s|{pattern}|{self.swap.wrong}{self.word}|' {path}"

    def apply(self, lines: Sequence[str]) -> list[str]:
        """`lines` of the function after the command: sed changes the first match of every line."""
        return [line.replace(self.swap.right + self.word, self.swap.wrong + self.word, 1) for line in lines]


def look_command(function: str, path: str) -> str:
    return f"sed -n '/def {function}(/,/^$/p' {path}"


def shown_lines(lines: Sequence[str], first_line: int) -> list[str]:
    """What `look_command` prints, line by line, for a function that starts at `first_line` (1-based) of a file."""
    shown: list[str] = []
    for line in lines[first_line - 1 :]:
        shown.append(line)
        if not line:
            break
    return shown


def possible_edits(shown: Sequence[str]) -> list[Edit]:
    """Every one-token swap that the lines below the `def` allow, each once."""
    edits = [Edit.at(swap, line) for line in shown[1:] for swap in all_swaps() if matches(swap, line)]
    return list(dict.fromkeys(edits))


def changed_lines(before: Sequence[str], after: Sequence[str]) -> int:
    return sum(old != new for old, new in zip(before, after, strict=True))


def usable_sites(source: str, swaps: Sequence[Swap]) -> list[Site]:
    """The sites whose function has a name of its own, is shown up to them, and is mended by exactly their edit."""
    return [site for site in sites(source, swaps) if _is_mended(source, site)]


def _is_mended(source: str, site: Site) -> bool:
    if site.function.startswith("__") or source.count(f"def {site.function}(") != 1:
        return False
    shown = shown_lines(site.mutate(source).split("\n"), site.first_line)
    at = site.line - site.first_line
    if at >= len(shown):
        return False
    fixed = Edit.at(site.swap.reversed(), shown[at]).apply(shown)
    return fixed == shown_lines(source.split("\n"), site.first_line)
