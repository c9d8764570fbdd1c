"""Makes the embedded instances and proves each of them.

Invariants:
- The same packages and seed give the same records, byte for byte.
- FAIL_TO_PASS fails before and passes after the gold patch; PASS_TO_PASS passes both times. Each has at least one test.
- The FAIL_TO_PASS tests are not in the tree that the agent sees.
"""

import ast
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.edit import usable_sites
from swe_rl.env.bugs.mutation import MutationSite, split_swaps
from swe_rl.env.bugs.statement import problem_statement
from swe_rl.env.bugs.workspace import PACKAGES, commit_tree, copy_package
from swe_rl.env.folder import patch_between
from swe_rl.env.grading.session import ENVIRONMENT
from swe_rl.files.lines import lines_of

VERSION = "1"
# A bug that makes more tests fail is not taken.
MAX_FAILING_TESTS = 6
_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S+)")
_HEADER = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Names a place in a package where a bug can be injected."""

    repo: str
    module: str  # The path is relative to the package.
    site: MutationSite


def list_candidates(split: str) -> list[Candidate]:
    """Returns every usable site of the split's packages and variants, in a fixed order."""
    usable = []
    for path in sorted((PACKAGES / split).glob("*/*/*.py")):
        if path.parent.name == "tests":
            continue
        source = path.read_text(encoding="utf-8")
        repo = f"bugs/{split}/{path.parents[1].name}"
        module = path.relative_to(path.parents[1]).as_posix()
        usable += [Candidate(repo, module, site) for site in usable_sites(source, split_swaps(split))]
    return usable


def generate_instances(
    split: str, count: int, seed: int, progress: Callable[[Instance], None] | None = None
) -> list[Instance]:
    """Returns `count` proven instances, spread over packages and families.

    Raises ValueError when there are not enough.
    """
    rng = random.Random(f"{split}/{seed}")
    kept: list[Instance] = []
    functions: set[tuple[str, str, str]] = set()
    for candidate in _take_by_family(list_candidates(split), rng):
        key = (candidate.repo, candidate.module, candidate.site.function)
        if key in functions:
            continue
        instance = build_instance(candidate, number=len(kept), seed=seed)
        if instance is None:
            continue
        functions.add(key)
        kept.append(instance)
        if progress:
            progress(instance)
        if len(kept) == count:
            return kept
    raise ValueError(f"split {split!r}: only {len(kept)} of {count} instances could be proven")


def _take_by_family(usable: list[Candidate], rng: random.Random) -> Iterator[Candidate]:
    """Yields candidates of each family in turn, shuffled within a family.

    So no family and no package dominates.
    """
    by_family: dict[str, list[Candidate]] = {}
    for candidate in usable:
        by_family.setdefault(candidate.site.swap.family, []).append(candidate)
    for group in by_family.values():
        rng.shuffle(group)
    queue = sorted(by_family)
    while queue:
        for family in list(queue):
            yield by_family[family].pop()
            if not by_family[family]:
                queue.remove(family)


def build_instance(candidate: Candidate, number: int, seed: int) -> Instance | None:
    """Returns the proven instance of a candidate, or None where the tests do not tell the bug from sound code."""
    with tempfile.TemporaryDirectory(prefix="swe_rl_bugs_") as scratch:
        tree = Path(scratch) / "tree"
        copy_package(candidate.repo, tree)
        module = tree / candidate.module
        sound = module.read_text(encoding="utf-8")
        buggy = candidate.site.mutate(sound)
        before_fix = _verdicts_of_source(tree, module, buggy)
        after_fix = _verdicts_of_source(tree, module, sound)
        failing = sorted(test for test, passed in after_fix.items() if passed and not before_fix.get(test, False))
        passing = sorted(test for test, passed in after_fix.items() if passed and before_fix.get(test, False))
        if not 1 <= len(failing) <= MAX_FAILING_TESTS or not passing or not all(after_fix.values()):
            return None
        test_patch = _hide_tests(tree, failing)
        module.write_text(buggy, encoding="utf-8")
        kept = set(_run_suite(tree))
        if not kept or not kept.issuperset(passing):
            return None
        name = candidate.repo.split("/")[-1]
        line = buggy.split("\n")[candidate.site.line - 1]
        statement_rng = random.Random(f"{seed}/{candidate.repo}/{candidate.module}/{candidate.site.line}")
        return Instance(
            instance_id=f"bugs__{name}-{number + 1:03d}",
            repo=candidate.repo,
            base_commit=commit_tree(tree),
            problem_statement=problem_statement(
                statement_rng,
                family=candidate.site.swap.family,
                function=candidate.site.function,
                path=candidate.module,
                line=line,
            ),
            patch=patch_between({candidate.module: buggy}, {candidate.module: sound}),
            test_patch=test_patch,
            fail_to_pass=tuple(failing),
            pass_to_pass=tuple(passing),
            version=VERSION,
        )


def _verdicts_of_source(tree: Path, module: Path, source: str) -> dict[str, bool]:
    module.write_text(source, encoding="utf-8")
    return _run_suite(tree)


def _run_suite(tree: Path) -> dict[str, bool]:
    """Returns the suite's verdicts, and none when it did not finish within 20 s (an endless loop, say)."""
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(tree.parent), **ENVIRONMENT}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-rA", "-q", "--tb=line", "-p", "no:cacheprovider"],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}
    return passed_tests(done.stdout, done.returncode)


def passed_tests(output: str, exit_code: int) -> dict[str, bool]:
    """Returns whether each test passed, from the last summary of `output`, and nothing for an unfinished session."""
    headers = list(_HEADER.finditer(output))
    if exit_code not in (0, 1) or not headers:  # With 0 all tests passed, with 1 some failed.
        return {}
    matches = [_LINE.match(line) for line in lines_of(output[headers[-1].end() :], ends=False)]
    verdicts = {match[2]: match[1] in ("PASSED", "XFAIL") for match in matches if match}
    return {} if exit_code == 0 and not all(verdicts.values()) else verdicts


def _hide_tests(tree: Path, failing: list[str]) -> str:
    """Takes the failing test functions out of the tree. Returns the patch that puts them back."""
    patch = ""
    for name in sorted({test.split("::")[0] for test in failing}):
        path = tree / name
        whole = path.read_text(encoding="utf-8")
        hidden = {test.split("::")[1] for test in failing if test.startswith(f"{name}::")}
        lines = whole.split("\n")
        for node in reversed(ast.parse(whole).body):
            if isinstance(node, ast.FunctionDef) and node.name in hidden:
                end = node.end_lineno or node.lineno
                while end < len(lines) and not lines[end].strip():
                    end += 1
                del lines[node.lineno - 1 : end]
        shown = "\n".join(lines).rstrip("\n") + "\n"
        path.write_text(shown, encoding="utf-8")
        patch += patch_between({name: shown}, {name: whole})
    return patch
