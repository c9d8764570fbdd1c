"""Writes the commands that show a function and that undo a swap in it, as a person would type them.

Invariants:
- Both commands address the function by its name: from its `def` to the next blank line.
- `apply` gives the lines that the command's sed would leave, so that demonstrations and the generator need no shell.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from swe_rl.env.bugs.mutation import MutationSite, Swap, all_swaps, find_sites, matches_line

_NEXT_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class SwapEdit:
    """Replaces `swap.right` (what the code says now) with the word behind it by `swap.wrong` and that word."""

    swap: Swap
    word: str  # The identifier follows directly; the word is empty where none does.

    @classmethod
    def at(cls, swap: Swap, line: str) -> "SwapEdit":
        """Returns the edit that a person who looks at `line` would type."""
        rest = line[line.find(swap.right) + len(swap.right) :]
        match = _NEXT_WORD.match(rest)
        return cls(swap, match[0] if match else "")

    def command(self, function: str, path: str) -> str:
        """Returns the edit as a command of sed that changes this function only."""
        pattern = re.sub(r"([\[\]*.])", r"\\\1", self.swap.right) + self.word
        return f"sed -i '/def {function}(/,/^$/s|{pattern}|{self.swap.wrong}{self.word}|' {path}"

    def apply(self, lines: Sequence[str]) -> list[str]:
        """Returns the function's lines after the command: sed changes the first match of every line."""
        return [line.replace(self.swap.right + self.word, self.swap.wrong + self.word, 1) for line in lines]


def look_command(function: str, path: str) -> str:
    return f"sed -n '/def {function}(/,/^$/p' {path}"


def shown_lines(lines: Sequence[str], first_line: int) -> list[str]:
    """Returns what `look_command` prints for a function that starts at `first_line` (1-based), line by line."""
    shown: list[str] = []
    for line in lines[first_line - 1 :]:
        shown.append(line)
        if not line:
            break
    return shown


def possible_edits(shown: Sequence[str]) -> list[SwapEdit]:
    """Returns every one-token swap that the lines below the `def` allow, each once."""
    edits = [SwapEdit.at(swap, line) for line in shown[1:] for swap in all_swaps() if matches_line(swap, line)]
    return list(dict.fromkeys(edits))


def changed_lines(before: Sequence[str], after: Sequence[str]) -> int:
    return sum(old != new for old, new in zip(before, after, strict=True))


def usable_sites(source: str, swaps: Sequence[Swap]) -> list[MutationSite]:
    """Returns the sites that a person could find and mend with the two commands.

    A site's function has a name of its own, is shown up to the site, and is mended by exactly the site's edit.
    """
    return [site for site in find_sites(source, swaps) if _is_mended(source, site)]


def _is_mended(source: str, site: MutationSite) -> bool:
    if site.function.startswith("__") or source.count(f"def {site.function}(") != 1:
        return False
    shown = shown_lines(site.mutate(source).split("\n"), site.first_line)
    at = site.line - site.first_line
    if at >= len(shown):
        return False
    fixed = SwapEdit.at(site.swap.reversed(), shown[at]).apply(shown)
    return fixed == shown_lines(source.split("\n"), site.first_line)
