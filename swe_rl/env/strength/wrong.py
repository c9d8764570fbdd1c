"""Makes wrong patches of an instance: its gold patch with one place made wrong, or without one of its parts.

Invariants:
- Only the part of one file differs from the gold patch; the parts of the others stay as they are, byte for byte.
- Files of tests, and files that are no code, are left alone: what is wrong in them no test has to find.
- The same instance gives the same patches in the same order, which is drawn by its id.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import PurePosixPath

from swe_rl.dataset.instance import Instance
from swe_rl.env.folder import patch_between
from swe_rl.env.patch_files import FilePatch, split_patch
from swe_rl.env.strength.python_code import Variant, code_fingerprint, emptied_functions, python_mutants
from swe_rl.env.strength.record import WrongKind
from swe_rl.files.lines import lines_of

_PYTHON = ".py"
# These languages write operators alike, and their comments begin with one of _COMMENTS.
_OTHERS = frozenset(
    {
        ".c",
        ".cc",
        ".cpp",
        ".cs",
        ".go",
        ".h",
        ".hpp",
        ".java",
        ".js",
        ".jsx",
        ".kt",
        ".mjs",
        ".php",
        ".rb",
        ".rs",
        ".scala",
        ".swift",
        ".ts",
        ".tsx",
    }
)
_COMMENTS = ("//", "/*", "*", "#")
_SWAPS = (
    (" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
    (" === ", " !== "), (" !== ", " === "), (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "),
    (" + 1", " - 1"), (" - 1", " + 1"), ("true", "false"), ("false", "true"),
)  # fmt: skip
_TEST_PATH = re.compile(
    r"(^|/)(tests?|testing|spec|__tests__)/|(^|/)(test_[^/]*|conftest)\.py$|_test\.\w+$|\.test\.\w+$"
)


@dataclass(frozen=True, slots=True)
class Sides:
    """Holds one file without the gold patch and with it. `before` is None where the gold patch makes the file."""

    before: str | None
    after: str


@dataclass(frozen=True, slots=True)
class WrongPatch:
    """Holds one wrong patch: `patch` is what is graded, and `change` is the diff from right to wrong, for people."""

    kind: WrongKind
    what: str
    patch: str
    change: str


def code_paths(patch: str) -> dict[str, bool]:
    """Returns the files of a gold patch of which wrong variants can be made, in the order of the patch.

    The value says whether the patch makes the file.
    """
    return {part.paths[-1]: part.is_new for part in split_patch(patch) if _is_code(part)}


def wrong_patches(instance: Instance, files: Mapping[str, Sides], mutants: int) -> list[WrongPatch]:
    """Returns the emptied functions, and at most `mutants` of the mutants, which are drawn at random.

    `files` are those that `code_paths` names.
    """
    emptied: list[WrongPatch] = []
    others: list[WrongPatch] = []
    blocks = {path: _changed_blocks(sides) for path, sides in files.items()}
    has_parts = sum(map(len, blocks.values())) > 1
    for path, sides in files.items():
        changed = frozenset(line for block in blocks[path] for line in block.after)
        if PurePosixPath(path).suffix == _PYTHON:
            emptied += _make_patches(
                instance, path, sides, WrongKind.empty_function, _emptied_variants(sides.after, changed)
            )
        variants = [
            *_mutated_variants(path, sides.after, changed),
            *(_without_each(sides, blocks[path]) if has_parts else ()),
        ]
        others += _make_patches(instance, path, sides, WrongKind.mutant, variants)
    made = {patch.patch for patch in emptied}
    others = [patch for patch in others if patch.patch not in made]  # a function may be one `return`
    random.Random(instance.instance_id).shuffle(others)
    return [*emptied, *others[:mutants]]


def _is_code(part: FilePatch) -> bool:
    """Tells whether a part of a patch changes code of which wrong variants can be made, and no test."""
    suffix = PurePosixPath(part.paths[-1]).suffix
    is_text = not part.is_removed and not part.is_link and "GIT binary patch" not in part.text
    is_one = len(set(part.paths)) == 1  # a file that gets another name has two
    return is_text and is_one and (suffix == _PYTHON or suffix in _OTHERS) and not _TEST_PATH.search(part.paths[-1])


@dataclass(frozen=True, slots=True)
class _PatchBlock:
    """Holds the lines that the gold patch puts in the place of others."""

    before: range  # counts from 0, in the file without the gold patch
    after: range  # counts from 1, in the file with it


def _changed_blocks(sides: Sides) -> list[_PatchBlock]:
    """Returns the blocks of lines in which the two sides of a file differ."""
    old = lines_of(sides.before or "")
    new = lines_of(sides.after)
    steps = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [
        _PatchBlock(range(old_from, old_to), range(new_from + 1, new_to + 1))
        for tag, old_from, old_to, new_from, new_to in steps
        if tag != "equal"
    ]


def _without_each(sides: Sides, blocks: Sequence[_PatchBlock]) -> Iterator[Variant]:
    """Yields the file without one part of the fix, once for each part.

    A file that the fix makes yields nothing, because there is only the whole of it.
    """
    if sides.before is None:
        return
    old = lines_of(sides.before)
    new = lines_of(sides.after)
    for block in blocks:
        text = [
            *new[: block.after.start - 1],
            *old[block.before.start : block.before.stop],
            *new[block.after.stop - 1 :],
        ]
        yield Variant(block.after.start, "a part of the fix is left out", "".join(text))


def _emptied_variants(after: str, changed: frozenset[int]) -> Iterator[Variant]:
    """Yields the variants with an emptied function. A file that does not parse yields nothing."""
    if code_fingerprint(after) is not None:
        yield from emptied_functions(after, changed)


def _mutated_variants(path: str, after: str, changed: frozenset[int]) -> Iterator[Variant]:
    """Yields the mutants of the changed lines: of Python by its syntax tree, of other languages by their operators."""
    if PurePosixPath(path).suffix == _PYTHON:
        if code_fingerprint(after) is not None:
            yield from python_mutants(after, changed)
        return
    lines = lines_of(after)
    for number in sorted(changed):
        line = lines[number - 1]
        for right, wrong in _SWAPS:
            if right in line and not line.lstrip().startswith(_COMMENTS):
                text = "".join([*lines[: number - 1], line.replace(right, wrong, 1), *lines[number:]])
                yield Variant(number, f"`{right.strip()}` is `{wrong.strip()}`", text)


def _make_patches(
    instance: Instance, path: str, sides: Sides, kind: WrongKind, variants: Iterator[Variant] | Sequence[Variant]
) -> Iterator[WrongPatch]:
    """Yields each variant once whose code differs from the right file and from the file before the fix."""
    seen = {_code_of(path, sides.after), _code_of(path, sides.before or "")}
    for variant in variants:
        code = _code_of(path, variant.text)
        if code is None or code in seen:
            continue
        seen.add(code)
        what = f"{path}:{variant.line}: {variant.what}"
        change = patch_between({path: sides.after}, {path: variant.text})
        yield WrongPatch(kind, what, _with_part(instance.patch, path, sides.before, variant.text), change)


def _code_of(path: str, text: str) -> str | None:
    """Returns what two variants that do the same have in common.

    Returns None for code that does not parse, because any test rejects it.
    """
    return code_fingerprint(text) if PurePosixPath(path).suffix == _PYTHON else text


def _with_part(patch: str, path: str, before: str | None, text: str) -> str:
    """Returns the gold patch with another part for one file."""
    old = {} if before is None else {path: before}
    parts = [patch_between(old, {path: text}) if part.paths[-1] == path else part.text for part in split_patch(patch)]
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts if part)
