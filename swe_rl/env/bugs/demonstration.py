"""Writes scripted demonstrations for the warm start: conversations of a careless beginner.

Invariants:
- Demonstrations come from the training packages only, under other names, with other line numbers and with lines
  exchanged; held-out packages are never read.
- Observations are what the commands would print; a test runs the commands for real and compares.
- A beginner is right in `right_fraction` of the cases only; the policy has to learn from rewards which habit pays.
"""

import builtins
import keyword
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_rl.env.bugs.edit import SwapEdit, changed_lines, look_command, possible_edits, shown_lines, usable_sites
from swe_rl.env.bugs.mutation import MutationSite, all_swaps
from swe_rl.env.bugs.statement import problem_statement

# Code with another name in the place of one of these would mean something else.
_KEPT_NAMES = frozenset({*keyword.kwlist, *dir(builtins), *dir(str), *dir(list), *dir(dict), *dir(set), "self", "cls"})
_WORDS = Path(__file__).parent / "words.txt"
# Made-up names are joined from these.
_SYLLABLES = (
    *(onset + vowel for onset in "bcdfghjklmnprstvwxz" for vowel in "aeio"),
    "nt",
    "st",
    "ck",
    "ng",
    "er",
    "al",
    "on",
)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Holds one conversation: the beginner's commands, and what they print."""

    kind: str
    statement: str
    replies: tuple[str, ...]  # Each reply is a command; the last one submits.
    observations: tuple[str, ...]  # There is one observation less than replies: nothing follows the submission.


@dataclass(frozen=True, slots=True)
class _Scene:
    """Holds a buggy function as the look command shows it, with its fix and its problem statement."""

    path: str
    function: str
    shown: tuple[str, ...]
    fix: SwapEdit
    statement: str


class Demonstrator:
    """Makes any number of demonstrations from the packages below `root`.

    They are reproducible from the generator that is passed in. Renamed identifiers are made of the packages' words, of
    common English ones and of made-up ones.
    """

    def __init__(self, root: Path, right_fraction: float) -> None:
        self._right_fraction = right_fraction
        self._modules: list[tuple[str, ...]] = []
        self._sites: list[tuple[int, MutationSite]] = []
        pool: set[str] = set()
        words = set(_WORDS.read_text(encoding="utf-8").split())
        for path in sorted(root.glob("*/*/*.py")):
            if path.parent.name == "tests":
                continue
            source = path.read_text(encoding="utf-8")
            self._sites += [(len(self._modules), site) for site in usable_sites(source, all_swaps())]
            self._modules.append(tuple(source.split("\n")))
            pool.update(line for line in self._modules[-1] if line.startswith("    ") and "def " not in line)
            words.update(re.findall(r"[a-z]{3,}", source))
        self._pool = sorted(pool)
        self._words = sorted(words - _KEPT_NAMES)
        self._by_family: dict[str, list[tuple[int, MutationSite]]] = {}
        for index, site in self._sites:
            self._by_family.setdefault(site.swap.family, []).append((index, site))

    def demonstrate(self, rng: random.Random) -> Demonstration:
        """Returns one demonstration.

        Its edit is right in `right_fraction` of the cases. Else it is a wrong one, or there is none.
        """
        scene = self._scene(rng)
        look = look_command(scene.function, scene.path)
        seen = "".join(f"{line}\n" for line in scene.shown)
        draw = rng.random()
        if draw < self._right_fraction:
            return self._edited(scene, "right", look, seen, scene.fix)
        others = [edit for edit in possible_edits(scene.shown) if edit != scene.fix]
        if rng.random() < 0.2 or not others:
            return Demonstration("no_edit", scene.statement, (look, "submit"), (seen,))
        return self._edited(scene, "wrong_edit", look, seen, rng.choice(others))

    @staticmethod
    def _edited(scene: _Scene, kind: str, look: str, seen: str, edit: SwapEdit) -> Demonstration:
        """Returns a demonstration that looks at the function, makes one edit and submits."""
        command = edit.command(scene.function, scene.path)
        return Demonstration(kind, scene.statement, (look, command, "submit"), (seen, ""))

    def _scene(self, rng: random.Random) -> _Scene:
        """Returns a bug in a function of the packages, with exchanged lines and other names."""
        index, site = rng.choice(self._by_family[rng.choice(sorted(self._by_family))])
        lines = list(self._modules[index])
        lines[site.line - 1] = lines[site.line - 1].replace(site.swap.right, site.swap.wrong, 1)
        at = site.line - site.first_line
        plain = shown_lines(lines, site.first_line)
        window = self._exchange_lines(rng, plain, keep=at)
        edit = SwapEdit.at(site.swap.reversed(), window[at])
        if changed_lines(window, edit.apply(window)) != 1:
            window = plain
        window, function = self._rename(rng, window, site.function)
        path = f"{self._name(rng)}/{self._name(rng)}.py"
        statement = problem_statement(rng, family=site.swap.family, function=function, path=path, line=window[at])
        return _Scene(path, function, tuple(window), SwapEdit.at(site.swap.reversed(), window[at]), statement)

    def _exchange_lines(self, rng: random.Random, window: Sequence[str], keep: int) -> list[str]:
        """Returns the window with other code around the bug, so that shapes of functions are not learnt by heart."""
        changed = list(window)
        if rng.random() < 0.5:
            for at in rng.sample(range(1, len(changed)), k=min(rng.randint(1, 4), len(changed) - 1)):
                if at != keep and changed[at]:
                    changed[at] = rng.choice(self._pool)
        return changed

    def _rename(self, rng: random.Random, window: Sequence[str], function: str) -> tuple[list[str], str]:
        """Returns the window with some of its identifiers renamed, and the function's name in it."""
        names = sorted(set(re.findall(r"[A-Za-z_]\w*", "\n".join(window))) - _KEPT_NAMES | {function})
        mapping = {name: self._name(rng) for name in names if rng.random() < 0.6}
        renamed = [re.sub(r"[A-Za-z_]\w*", lambda m: mapping.get(m[0], m[0]), line) for line in window]
        return renamed, mapping.get(function, function)

    def _name(self, rng: random.Random) -> str:
        """Returns a made-up or a real word, or two joined."""
        parts = [
            rng.choice(self._words) if rng.random() < 0.75 else "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3)))
            for _ in range(rng.choice((1, 1, 2)))
        ]
        name = "_".join(parts)
        return name if name not in _KEPT_NAMES else name + "_x"
