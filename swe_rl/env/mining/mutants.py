"""Puts bugs into a release whose tests pass, and keeps those that make a few of its tests fail.

Invariants:
- A bug changes one line of the project's own code, by one of our swaps of a token; its way back is the gold patch.
- The tests that a bug makes fail are taken out of the tree that an agent sees, and judge it.
- The order in which bugs are tried follows from the release alone, so the same budget of runs finds the same bugs.
- A statement says more than names: where the failing tests have only short ones, the beginning of a test is shown.
  Then the statement names the function that has the bug, or there is no task.
"""

import ast
import random
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.bugs.mutation import MutationSite, Swap, all_swaps, find_sites
from swe_rl.env.commits import is_test
from swe_rl.env.folder import patch_between
from swe_rl.env.mining.candidate import Reason, TaskCandidate
from swe_rl.env.mining.hidden_tests import without_tests
from swe_rl.env.mining.hunks import digest_of_patch
from swe_rl.env.mining.leaks import shows_fix
from swe_rl.env.mining.licence import licence_of
from swe_rl.env.mining.plugins import packages_for_tests
from swe_rl.env.mining.recipe import NEWEST_EDITION, Edition, TaskRecipe
from swe_rl.env.mining.release import MiningFilter, base_instance, is_about_release, refusal_of_tree
from swe_rl.env.mining.runs import BudgetEndedError, CountedRuns, TestsTimedOutError
from swe_rl.env.mining.tests_text import descriptions_in, examples_in
from swe_rl.env.mining.wording import shown_example, tells_enough, words_of
from swe_rl.env.patch_files import NOOP_PATCH
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.releases import REVERSE
from swe_rl.env.source_build.sdist import fetch_sdist, release_time, unpack_sdist, versions_of

# A bug that makes more test functions fail, or more cases of them, says too little of where it is.
MAX_FAILING_TESTS = 6
MAX_FAILING_CASES = 30
_SIDE_RUNS = 2
# Where so many bugs one after the other are no task, the next ones cost more than those of another project.
_MOST_IN_VAIN = 16
# A small project has few functions. So a second bug of each is tried when each had one.
_BUGS_OF_A_FUNCTION = 2
# A bug may make a loop endless. A run of tests with a bug may last so much longer than one without.
_LONGER = 4.0
_LEAST_S = 8.0
# The row of the sound release has this as its tests, so that all test files run: a file that is no test of its own.
_ALL_TESTS = NOOP_PATCH.replace(".changed_nothing", ".all_tests.txt")
# These files run when a package is built, and no test of the project tests them.
_BUILDING = frozenset({"setup.py", "noxfile.py", "tasks.py", "conftest.py", "fabfile.py"})
# Files of benchmarks are called like tests, and take long.
_BENCHMARK = re.compile(r"(?:^|_)bench(?:mark)?s?[_.]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_QUICK = "--tb=no --continue-on-collection-errors"
_ENDING = "Find the bug in the code and mend it. The tests that show it are not in the repository."


class Refusal(StrEnum):
    """Says why a swap of a token is no task."""

    unseen = "no test fails"
    late = "the tests do not end in time"
    seen_before = "an earlier task has these tests"
    broad = "too many tests fail"
    unhidden = "its tests cannot be hidden"
    untold = "its tests say too little"
    leak = "its tests say the fix"


@dataclass(frozen=True, slots=True)
class SoundRelease:
    """Holds a release that bugs are put into. `candidate` has an instance without a fix, or the reason for none."""

    candidate: TaskCandidate
    files: Mapping[str, str]  # These are its files of Python, code and tests.
    test_command: str = ""  # The rows' tests are run by this command; that of the candidate names all test files.
    edition: Edition = NEWEST_EDITION


def is_test_module(path: str) -> bool:
    """Tells whether a file has tests that tell whether the code is right, and not how fast it is."""
    name = PurePosixPath(path).name
    is_named = fnmatchcase(name, "*test*.py") and name != "conftest.py"
    return is_test(path) and is_named and _BENCHMARK.search(name) is None


def whole_suite(command: str) -> str:
    """Returns a command of pytest as a search runs it, and any other one as it is.

    A file of tests that needs what is not installed keeps the others from nothing. Tracebacks of failing tests take
    longest of a run with a bug, and say nothing here.
    """
    return f"{command} {_QUICK}" if command.split()[:1] == ["pytest"] else command


def with_early_end(sound: Instance, not_passed: int) -> Instance:
    """Returns the instance of a whole suite, which ends when more tests failed than those of any task may.

    So many tests of the release do not pass without a bug, and a bug may make them fail, too.
    """
    most = not_passed + MAX_FAILING_CASES + 1
    return replace(sound, eval_script=sound.eval_script.replace(_QUICK, f"{_QUICK} --maxfail={most}"))


def newest_release(project: str) -> str:
    """Returns the version of the newest release. Raises BuildError where there is none."""
    versions = versions_of(project)
    if not versions:
        raise BuildError(f"the package index has no release of {project} with a source distribution")
    return versions[-1]


def read_release(project: str, version: str, wanted: MiningFilter, archives: Path) -> SoundRelease:
    """Returns a release with its files, or with the reason why no bug is put into it."""
    name = f"{project}-{version}"
    try:
        archive = fetch_sdist(name, archives)
        made = release_time(archive)
        with tempfile.TemporaryDirectory(dir=archives, prefix=".mine-") as folder:
            tree = Path(folder) / "tree"
            unpack_sdist(archive, tree)
            licence = licence_of(tree)
            refusal = refusal_of_tree(tree, made, wanted)
            files = dict(_python_files(tree))
            optional = packages_for_tests(tree, wanted.edition)
    except (BuildError, InstanceError) as error:
        refused = TaskCandidate(name, project, reason=Reason.unavailable, detail=str(error))
        return SoundRelease(refused, {})
    if refusal is not None:
        return SoundRelease(TaskCandidate(name, project, reason=refusal[0], detail=refusal[1]), {})
    tests = [path for path in files if is_test_module(path)]
    command = " ".join([whole_suite(wanted.test_command), *map(shlex.quote, sorted(tests))])
    row = base_instance(project, version, replace(wanted, test_command=command), made, optional)
    row = replace(
        row,
        instance_id=f"{row.instance_id}-sound",
        problem_statement="There is no bug yet.",
        patch=NOOP_PATCH,
        test_patch=_ALL_TESTS,
    )
    return SoundRelease(TaskCandidate(name, project, row, licence=licence), files, wanted.test_command, wanted.edition)


async def bugs_of(release: SoundRelease, sound: Instance, runs: CountedRuns, number: int) -> list[TaskCandidate]:
    """Returns at most `number` candidates, each a bug in the release, and else one with the reason for none.

    `sound` is the release's instance with the script that runs its tests. Raises what the runner of the tests raises.
    """
    without = replace(release.candidate, instance=None)
    bugs: list[TaskCandidate] = []
    try:
        passes = frozenset.intersection(*[await runs.passing(sound, NOOP_PATCH) for _ in range(_SIDE_RUNS)])
    except (BudgetEndedError, TestsTimedOutError) as error:
        return [replace(without, reason=error.reason, detail=str(error))]
    if not passes:
        words = f"no test passes in the release as it is: {runs.last_words}"
        return [replace(without, reason=Reason.unrunnable, detail=words)]
    longest_s = _LEAST_S + _LONGER * runs.tests_s / _SIDE_RUNS
    sound = with_early_end(sound, runs.not_passed)
    shown_by: set[tuple[str, ...]] = set()
    refusals: Counter[Refusal] = Counter()
    in_vain = 0
    for path, site in _sites(release):
        if in_vain == _MOST_IN_VAIN:
            break
        in_vain += 1
        source = release.files[path]
        patch = patch_between({path: source}, {path: site.mutate(source)})
        try:
            failing = tuple(sorted(passes - await runs.passing(sound, patch, longest_s)))
        except TestsTimedOutError:
            # Whether its loop is endless or the machine slow, its tests cannot judge it.
            refusals[Refusal.late] += 1
            continue
        except BudgetEndedError:
            break
        # Tests that show an earlier bug would say the same of this one.
        bug = Refusal.seen_before if failing in shown_by else bug_of(release, path, site, failing)
        if isinstance(bug, Refusal):
            refusals[bug] += 1
            continue
        in_vain = 0
        shown_by.add(failing)
        bugs.append(replace(bug, detail=f"{site.swap.family} in {path}, after {runs.spent}"))
        if len(bugs) >= number:
            break
    counts = "".join(f"; {number} times {refusal}" for refusal, number in refusals.most_common())
    return bugs or [replace(without, reason=Reason.no_bug, detail=f"{runs.spent}{counts}")]


def _sites(release: SoundRelease) -> Iterator[tuple[str, MutationSite]]:
    """Yields places for bugs in an order that follows from the release: one of each function, then a second one.

    Functions that a test names come first: their bugs are shown by tests, and said by the names of these tests.
    """
    tested = frozenset(
        word for path, source in release.files.items() if is_test(path) for word in _WORD.findall(source)
    )
    sites: list[tuple[str, MutationSite]] = []
    for path, source in sorted(release.files.items()):
        if is_shipped_module(path, release.files):
            sites += [(path, site) for site in find_sites(source, all_swaps())]
    random.Random(release.candidate.name).shuffle(sites)
    sites.sort(key=lambda place: place[1].function not in tested or place[1].function.startswith("__"))
    # A line of an inner function is a place of the outer one, too.
    mutated_files: set[tuple[str, str]] = set()
    for _ in range(_BUGS_OF_A_FUNCTION):
        functions: set[tuple[str, int]] = set()
        for path, site in sites:
            if (path, site.first_line) in functions:
                continue
            mutated = site.mutate(release.files[path])
            if (path, mutated) in mutated_files:
                continue
            if not is_python(mutated) or not changes_code(release.files[path], mutated):
                continue
            functions.add((path, site.first_line))
            mutated_files.add((path, mutated))
            yield path, site


def is_shipped_module(path: str, files: Collection[str]) -> bool:
    """Tells whether a file is a module that users of the project import: no test, no tool and no example.

    It lies in a package at the top of the tree or below `src`, or it is itself a module there.
    """
    parts = PurePosixPath(path).parts
    if is_test(path) or is_about_release(path) or parts[-1] in _BUILDING:
        return False
    inside = parts[1:] if parts[0] == "src" else parts
    top = "/".join(parts[: len(parts) - len(inside) + 1])
    return len(inside) == 1 or f"{top}/__init__.py" in files


def bug_of(release: SoundRelease, path: str, site: MutationSite, failing: Sequence[str]) -> TaskCandidate | Refusal:
    """Returns the candidate of a bug, or why the tests that fail by it cannot judge it."""
    sound = release.candidate.instance
    assert sound is not None and sound.source is not None
    if not failing:
        return Refusal.unseen
    functions = test_functions(failing)
    if functions is None:
        return Refusal.unhidden
    if sum(map(len, functions.values())) > MAX_FAILING_TESTS or len(failing) > MAX_FAILING_CASES:
        return Refusal.broad
    shown: dict[str, str] = {}
    lines: list[str] = []
    examples: list[str] = []
    for file, names in functions.items():
        left = without_tests(release.files.get(file, ""), names)
        if left is None:
            return Refusal.unhidden
        shown[file] = left
        described = descriptions_in(release.files[file], release.edition)
        short_names = [name.rpartition("::")[2] for name in names]
        lines += [described.get(name) or words_of(name) for name in short_names]
        of_file = examples_in(release.files[file])
        examples += [of_file[name] for name in short_names if name in of_file]
    source = release.files[path]
    if not changes_code(source, site.mutate(source)):
        return Refusal.unseen
    patch = patch_between({path: site.mutate(source)}, {path: source})
    statement = _statement(release.candidate, lines, examples, _words_of_function(source, site))
    if not statement:
        return Refusal.untold
    if shows_fix(statement, patch):
        return Refusal.leak
    instance = replace(
        sound,
        instance_id=f"{sound.instance_id.removesuffix('-sound')}-bug-{digest_of_patch(patch)}",
        problem_statement=statement,
        patch=patch,
        test_patch=patch_between(shown, {file: release.files[file] for file in shown}),
        source=replace(sound.source, fix=REVERSE, test_command=release.test_command),
        eval_script="",
    )
    swap = site.swap
    recipe = TaskRecipe(
        project=release.candidate.project,
        release=sound.version,
        # Whole functions are hidden, so the list needs none of their cases.
        tests=tuple(f"{file}::{name}" for file, names in functions.items() for name in names),
        file=path,
        line=site.line,
        family=swap.family,
        right=swap.right,
        wrong=swap.wrong,
        until="" if sound.created_at else sound.source.until,
        edition=release.edition,
    )
    return replace(release.candidate, name=instance.instance_id, instance=instance, recipe=recipe)


def bug_again(release: SoundRelease, recipe: TaskRecipe) -> TaskCandidate | None:
    """Returns the bug that a recipe names, and None where the release has no such place."""
    if recipe.file not in release.files:
        return None
    swap = Swap(recipe.family, recipe.right, recipe.wrong)
    sites = [site for site in find_sites(release.files[recipe.file], [swap]) if site.line == recipe.line]
    if not sites:
        return None
    bug = bug_of(release, recipe.file, sites[-1], recipe.tests)
    return None if isinstance(bug, Refusal) else bug


def _words_of_function(source: str, site: MutationSite) -> frozenset[str]:
    """Returns the words of the name of the innermost function that has a place."""
    same = [other for other in find_sites(source, [site.swap]) if other.line == site.line]
    return _lower_words(same[-1].function if same else site.function)


def _statement(
    candidate: TaskCandidate, lines: Sequence[str], examples: Sequence[str], function: frozenset[str]
) -> str:
    """Returns the statement of a bug, and an empty text where its tests say too little.

    `function` has the words of the name of the function with the bug.
    """
    parts = [f"{candidate.project} has a bug. Tests that passed before fail now. They are about:"]
    parts.append("\n".join(f"- {line}" for line in dict.fromkeys(lines)))
    if not tells_enough(lines):
        said = _lower_words(" ".join(lines))
        telling = [example for example in examples if function <= said | _lower_words(example)]
        if not telling:
            return ""
        parts.append(shown_example(telling[0]))
    return "\n\n".join([*parts, _ENDING])


def _lower_words(text: str) -> frozenset[str]:
    """Returns the words of a text or a name in small letters; `_` ends a word as a space does."""
    return frozenset(word for word in re.split(r"[^a-z0-9]+", text.lower()) if word)


def test_functions(failing: Sequence[str]) -> dict[str, list[str]] | None:
    """Returns the failing functions of each file of tests, and None for a name that is no function of a file.

    The names are as `without_tests` takes them.
    """
    functions: dict[str, list[str]] = {}
    for test in failing:
        file, separator, name = test.partition("::")
        if not separator or not file.endswith(".py"):
            return None
        name = name.partition("[")[0]
        if name not in functions.setdefault(file, []):
            functions[file].append(name)
    return functions


def is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def changes_code(source: str, mutated: str) -> bool:
    """Tells whether more than texts differ: a message with another word is no bug that a test's name tells of."""
    return _code_without_texts(source) != _code_without_texts(mutated)


def _code_without_texts(source: str) -> str:
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            node.value = ""
    return ast.dump(module)


def _python_files(tree: Path) -> Iterator[tuple[str, str]]:
    """Yields names and texts of the files of Python that a diff can change: UTF-8, with plain ends of lines."""
    for path in sorted(tree.rglob("*.py")):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        if "\r" not in text and is_python(text):
            yield path.relative_to(tree).as_posix(), text
