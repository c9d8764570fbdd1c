"""Scripted demonstrations for the warm start: conversations of a careless beginner.

Invariants:
- They come from the training packages only, under other names, with other line numbers and with lines exchanged;
  held-out packages are never read.
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

from swe_rl.env.bugs.edit import Edit, changed_lines, look_command, possible_edits, shown_lines, usable_sites
from swe_rl.env.bugs.mutation import Site, all_swaps
from swe_rl.env.bugs.statement import problem_statement

_KEPT_NAMES = frozenset({*keyword.kwlist, *dir(builtins), *dir(str), *dir(list), *dir(dict), *dir(set), "self", "cls"})
_WORDS = Path(__file__).parent / "words.txt"
_SYLLABLES = (
    *(onset + vowel for onset in "bcdfghjklmnprstvwxz" for vowel in "aeio"),
    *("nt", "st", "ck", "ng", "er", "al", "on"),
)


@dataclass(frozen=True, slots=True)
class Demonstration:
    kind: str
    statement: str
    replies: tuple[str, ...]  # commands, the last one submits
    observations: tuple[str, ...]  # one less than replies


@dataclass(frozen=True, slots=True)
class _Scene:
    """A buggy function as the look command shows it."""

    path: str
    function: str
    shown: tuple[str, ...]
    fix: Edit
    statement: str


class Demonstrator:
    """Endless demonstrations from the packages below `root`, reproducible from the generator passed in.

    Renamed identifiers are made of the packages' words, of common English ones and of made-up ones.
    """

    def __init__(self, root: Path, right_fraction: float) -> None:
        self._right_fraction = right_fraction
        self._modules: list[tuple[str, ...]] = []
        self._sites: list[tuple[int, Site]] = []
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
        self._by_family: dict[str, list[tuple[int, Site]]] = {}
        for index, site in self._sites:
            self._by_family.setdefault(site.swap.family, []).append((index, site))

    def demonstrate(self, rng: random.Random) -> Demonstration:
        scene = self._scene(rng)
        look, seen = look_command(scene.function, scene.path), "".join(f"{line}\n" for line in scene.shown)
        draw = rng.random()
        if draw < self._right_fraction:
            return self._edited(scene, "right", look, seen, scene.fix)
        others = [edit for edit in possible_edits(scene.shown) if edit != scene.fix]
        if rng.random() < 0.2 or not others:
            return Demonstration("no_edit", scene.statement, (look, "submit"), (seen,))
        return self._edited(scene, "wrong_edit", look, seen, rng.choice(others))

    @staticmethod
    def _edited(scene: _Scene, kind: str, look: str, seen: str, edit: Edit) -> Demonstration:
        command = edit.command(scene.function, scene.path)
        return Demonstration(kind, scene.statement, (look, command, "submit"), (seen, ""))

    def _scene(self, rng: random.Random) -> _Scene:
        index, site = rng.choice(self._by_family[rng.choice(sorted(self._by_family))])
        lines = list(self._modules[index])
        lines[site.line - 1] = lines[site.line - 1].replace(site.swap.right, site.swap.wrong, 1)
        at = site.line - site.first_line
        plain = shown_lines(lines, site.first_line)
        window = self._exchange_lines(rng, plain, keep=at)
        edit = Edit.at(site.swap.reversed(), window[at])
        if changed_lines(window, edit.apply(window)) != 1:
            window = plain
        window, function = self._rename(rng, window, site.function)
        path = f"{self._name(rng)}/{self._name(rng)}.py"
        statement = problem_statement(rng, family=site.swap.family, function=function, path=path, line=window[at])
        return _Scene(path, function, tuple(window), Edit.at(site.swap.reversed(), window[at]), statement)

    def _exchange_lines(self, rng: random.Random, window: Sequence[str], keep: int) -> list[str]:
        """Other code around the bug, so that shapes of functions are not learnt by heart."""
        changed = list(window)
        if rng.random() < 0.5:
            for at in rng.sample(range(1, len(changed)), k=min(rng.randint(1, 4), len(changed) - 1)):
                if at != keep and changed[at]:
                    changed[at] = rng.choice(self._pool)
        return changed

    def _rename(self, rng: random.Random, window: Sequence[str], function: str) -> tuple[list[str], str]:
        names = sorted(set(re.findall(r"[A-Za-z_]\w*", "\n".join(window))) - _KEPT_NAMES | {function})
        mapping = {name: self._name(rng) for name in names if rng.random() < 0.6}
        renamed = [re.sub(r"[A-Za-z_]\w*", lambda m: mapping.get(m[0], m[0]), line) for line in window]
        return renamed, mapping.get(function, function)

    def _name(self, rng: random.Random) -> str:
        """A made-up or a real word, or two joined."""
        parts = [
            rng.choice(self._words) if rng.random() < 0.75 else "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3)))
            for _ in range(rng.choice((1, 1, 2)))
        ]
        name = "_".join(parts)
        return name if name not in _KEPT_NAMES else name + "_x"
