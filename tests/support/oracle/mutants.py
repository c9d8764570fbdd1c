"""A bug, its fix and the tests that catch it, as SWE-bench writes them: two patches.

Invariants:
- Pure: text in, text out.
- The gold patch takes exactly the bug back; the test patch puts back exactly the tests that were taken out.
- A failing test that cannot be taken out alone (inherited, made in a loop) disqualifies its mutant.
"""

import ast
import difflib
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from swe_rl.env.bugs.mutation import MutationSite, all_swaps, find_sites

MAX_FUNCTIONS = 8
MAX_FILES = 3


class UnfitError(Exception):
    """Why a mutant makes no instance."""


@dataclass(frozen=True, slots=True)
class Mutant:
    path: str  # of the module, below the tree
    site: MutationSite
    sound: str

    @property
    def buggy(self) -> str:
        return self.site.mutate(self.sound)

    @property
    def gold_patch(self) -> str:
        return diff(self.path, self.buggy, self.sound)


def mutants(modules: Mapping[str, str], tests: str, rng: random.Random) -> Iterator[Mutant]:
    """Of each function one at a time, in rounds, so that bugs spread over functions; `modules`: path -> source.

    Functions that the text of the `tests` names come first: most others are not tested.
    """
    named = set(re.findall(r"\w+", tests))
    by_function: dict[tuple[str, int], list[Mutant]] = {}
    for path, source in modules.items():
        for site in find_sites(source, all_swaps()):
            by_function.setdefault((path, site.first_line), []).append(Mutant(path, site, source))
    queues = list(by_function.values())
    rng.shuffle(queues)
    queues.sort(key=lambda queue: queue[0].site.function not in named)
    for queue in queues:
        rng.shuffle(queue)
    while queues:
        for queue in queues:
            mutant = queue.pop()
            if _still_parses(mutant.buggy):
                yield mutant
        queues = [queue for queue in queues if queue]


def hide_tests(files: Mapping[str, str], failing: Collection[str]) -> dict[str, str]:
    """Path -> source without the functions of the `failing` tests, for the files that hold any.

    `files`: the test files' sources; a test is `PATH::[CLASS::]FUNCTION[PARAMETERS]`. Raises UnfitError.
    """
    functions = sorted({tuple(test.split("[")[0].split("::")) for test in failing})
    if not 1 <= len(functions) <= MAX_FUNCTIONS:
        raise UnfitError(f"{len(functions)} test functions fail")
    by_path: dict[str, set[tuple[str, ...]]] = {}
    for path, *names in functions:
        if path not in files or not names:
            raise UnfitError(f"{path} as a whole fails, or is no test file")
        by_path.setdefault(path, set()).add(tuple(names))
    if len(by_path) > MAX_FILES:
        raise UnfitError(f"tests of {len(by_path)} files fail")
    return {path: _without(files[path], names) for path, names in by_path.items()}


def diff(path: str, before: str, after: str) -> str:
    header = f"diff --git a/{path} b/{path}\n"
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return header + "".join(lines)


def _without(source: str, names: set[tuple[str, ...]]) -> str:
    found = dict(_functions(ast.parse(source).body, ()))
    missing = names - found.keys()
    if missing:
        raise UnfitError(f"{'::'.join(min(missing))} is not written as one function")
    if not source.endswith("\n") or "\r" in source:
        raise UnfitError("a test file's lines end in another way")
    lines = source.split("\n")
    for first, last in sorted((found[name] for name in names), reverse=True):
        while last < len(lines) - 1 and not lines[last].strip():
            last += 1
        del lines[first - 1 : last]
    shown = "\n".join(lines).rstrip("\n") + "\n"
    if not _still_parses(shown):
        raise UnfitError("a class or file of tests would be empty")
    return shown


def _functions(body: Sequence[ast.stmt], inside: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[int, int]]]:
    """(Class, function) -> first and last line, decorators included."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, (*inside, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min(one.lineno for one in (node, *node.decorator_list))
            yield (*inside, node.name), (first, node.end_lineno or node.lineno)


def _still_parses(source: str) -> bool:
    try:
        return bool(ast.parse(source).body)
    except SyntaxError:
        return False
