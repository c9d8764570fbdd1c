"""Makes a candidate of two neighbouring releases of a distribution: what changed in its code, and in its tests.

Invariants:
- Nothing of a distribution is run. Its files are compared as they are, by git.
- The base tree is that of the older release, so no file of the newer one is in it but what the patches bring.
- The same two archives give the same instance, on any machine.
"""

import hashlib
import re
import tempfile
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path, PurePosixPath

from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.commits import CommitChange, is_test
from swe_rl.env.mining.candidate import Reason, TaskCandidate, changed_lines, is_binary
from swe_rl.env.mining.changelog import entry_of
from swe_rl.env.mining.leaks import shows_fix
from swe_rl.env.mining.licence import is_permitted, licence_of
from swe_rl.env.mining.plugins import packages_for_tests
from swe_rl.env.mining.recipe import NEWEST_EDITION, Edition, TaskRecipe
from swe_rl.env.mining.tests_text import described_tests, examples_of
from swe_rl.env.mining.wording import ChangeWords
from swe_rl.env.patch_files import split_patch
from swe_rl.env.source_build.environment import INTERPRETERS_SETTLED
from swe_rl.env.source_build.program import BuildError, run_program
from swe_rl.env.source_build.repository import git_output
from swe_rl.env.source_build.sdist import days_after, fetch_sdist, release_time, unpack_sdist, versions_of
from swe_rl.env.source_build.tree import IDENTITY

_GIT_S = 120.0
_DAYS_AFTER = 30  # Packages that a release needs may appear so many days after it.
# These files say something of the release, and nothing of what the code does.
_ABOUT = frozenset({"PKG-INFO", "SOURCES.txt", ".cirrus.yml", ".travis.yml", "CITATION.cff", "MANIFEST.in"})
_ABOUT_FOLDERS = frozenset({"docs", "doc", ".github", ".circleci", "news", "changelog.d"})
_ABOUT_ENDINGS = frozenset({".md", ".rst", ".txt"})
_COMPARED = "two releases cannot be compared"


@dataclass(frozen=True, slots=True)
class MiningFilter:
    """Says which candidates are wanted. Empty `licences` permit any; `since` is a date or nothing.

    With `is_split` a change is split afterwards: its size and what is said of all of it are checked of its parts.
    """

    licences: tuple[str, ...]
    since: str
    max_changed_lines: int
    python: str
    test_command: str
    is_split: bool = False
    undated_until: str = ""  # A release whose archive has no date gets packages up to this time.
    edition: Edition = NEWEST_EDITION


@dataclass(frozen=True, slots=True)
class ReleasePair:
    """Names two neighbouring releases of a distribution."""

    project: str
    older: str
    newer: str

    @property
    def name(self) -> str:
        return f"{self.project}-{self.newer}"


def neighbouring_releases(project: str, max_pairs: int) -> list[ReleasePair]:
    """Returns the newest pairs of neighbouring releases, the newest first. Raises BuildError."""
    versions = versions_of(project)
    return [ReleasePair(project, older, newer) for older, newer in pairwise(versions)][: -max_pairs - 1 : -1]


def candidate_of(pair: ReleasePair, wanted: MiningFilter, archives: Path) -> TaskCandidate:
    """Returns the candidate of a pair of releases, or the reason why there is none."""
    try:
        older = fetch_sdist(f"{pair.project}-{pair.older}", archives)
        newer = fetch_sdist(f"{pair.project}-{pair.newer}", archives)
        made = release_time(newer)
        with tempfile.TemporaryDirectory(dir=archives, prefix=".mine-") as folder:
            old_tree = Path(folder) / "a"
            new_tree = Path(folder) / "b"
            unpack_sdist(older, old_tree)
            unpack_sdist(newer, new_tree)
            return _compared(pair, wanted, old_tree, new_tree, made)
    except (BuildError, InstanceError) as error:
        return TaskCandidate(pair.name, pair.project, reason=Reason.unavailable, detail=str(error))


def refusal_of_tree(tree: Path, made: datetime | None, wanted: MiningFilter) -> tuple[Reason, str] | None:
    """Returns why a release is refused for its licence, its date or the lack of tests, and None where it is not."""
    licence = licence_of(tree)
    if not is_permitted(licence, wanted.licences):
        return Reason.licence, licence or "it names none"
    if wanted.since and made is None:
        return Reason.too_old, "its archive has no date"
    if wanted.since and made is not None and made.strftime("%Y-%m-%d") < wanted.since:
        return Reason.too_old, made.strftime("%Y-%m-%d")
    if not any(is_test(str(path.relative_to(tree))) for path in tree.rglob("*.py")):
        return Reason.no_tests, ""
    return None


def _compared(
    pair: ReleasePair, wanted: MiningFilter, old_tree: Path, new_tree: Path, made: datetime | None
) -> TaskCandidate:
    """Returns what the difference of two unpacked releases gives. Raises BuildError."""

    def refused(reason: Reason, detail: str = "") -> TaskCandidate:
        return TaskCandidate(pair.name, pair.project, reason=reason, detail=detail)

    refusal = refusal_of_tree(new_tree, made, wanted)
    if refusal is not None:
        return refused(*refusal)
    change = _change_between(old_tree, new_tree, old_tree.parent / "repository.git")
    files = change.files()
    tests = [name for name in files if is_test(name)]
    fixing = [name for name in files if not is_test(name) and not is_about_release(name)]
    if not tests:
        return refused(Reason.fix_alone)
    if not fixing:
        return refused(Reason.tests_alone)
    try:
        patch = change.diff(fixing)
        test_patch = change.diff(tests)
    except InstanceError as error:
        return refused(Reason.binary, str(error))
    if wanted.is_split:
        # Catalogs and images are left out. If a test needs one, no set of the other hunks turns it.
        patch = "".join(part.text for part in split_patch(patch) if not is_binary(part.text))
    if not patch or is_binary(patch):
        return refused(Reason.binary)
    if not wanted.is_split and changed_lines(patch) > wanted.max_changed_lines:
        return refused(Reason.too_large, f"{changed_lines(patch)} lines")
    heading = f"The next release of {pair.project} after {pair.older} makes these changes:"
    words = ChangeWords(
        heading,
        entry_of(new_tree, pair.newer),
        described_tests(test_patch, new_tree, wanted.edition),
        examples_of(test_patch, new_tree),
    )
    statement = words.statement() or (heading if wanted.is_split else "")
    if not statement:
        return refused(Reason.no_statement)
    if not wanted.is_split and shows_fix(statement, patch):
        return refused(Reason.leak)
    row = base_instance(pair.project, pair.older, wanted, made, packages_for_tests(old_tree, wanted.edition))
    slug = slug_of(pair.project)
    instance = replace(
        row,
        instance_id=f"{slug}__{slug}-{pair.newer}",
        problem_statement=statement,
        patch=patch,
        test_patch=test_patch,
    )
    until = wanted.undated_until if made is None else ""
    recipe = TaskRecipe(pair.project, pair.newer, older=pair.older, until=until, edition=wanted.edition)
    licence = licence_of(new_tree)
    return TaskCandidate(pair.name, pair.project, instance, licence=licence, words=words, recipe=recipe)


def slug_of(project: str) -> str:
    """Returns the project's name in the form that ids have. All spellings that an index takes for one give one name."""
    return re.sub(r"[^a-z0-9]+", "-", project.lower())


def base_instance(
    project: str, version: str, wanted: MiningFilter, made: datetime | None, optional: tuple[str, ...]
) -> Instance:
    """Returns an instance that starts from a release, without a fix and without tests.

    `made` is the fix's date, and `optional` are packages that its tests need.
    """
    slug = slug_of(project)
    return Instance(
        instance_id=f"{slug}__{slug}-{version}",
        repo=f"index/{slug}",
        # A source distribution has no commit. Its name stands for one, in the form that git asks for.
        base_commit=hashlib.sha1(f"{project}-{version}".encode(), usedforsecurity=False).hexdigest(),
        problem_statement="",
        patch="",
        test_patch="",
        fail_to_pass=(),
        pass_to_pass=(),
        version=version,
        created_at=made.strftime("%Y-%m-%dT%H:%M:%SZ") if made else "",
        source=Source(
            sdist=f"{project}-{version}",
            python=wanted.python,
            until=_packages_until(made, wanted.python) or wanted.undated_until,
            test_command=wanted.test_command,
            optional=optional,
        ),
    )


def _packages_until(made: datetime | None, python: str) -> str:
    """Returns the time after which no package of the environment was published, or an empty text for any time.

    Packages that are older than the interpreter may not run on it, so a release that is older gets those of its time.
    """
    until = days_after(made, _DAYS_AFTER) or ""
    return max(until, INTERPRETERS_SETTLED.get(python, "")) if until else ""


def is_about_release(name: str) -> bool:
    """Tells whether a file is about the release: its metadata, its documentation, its checks elsewhere."""
    path = PurePosixPath(name)
    if path.name in _ABOUT or any(part.endswith(".egg-info") for part in path.parts):
        return True
    if path.parts[0] in _ABOUT_FOLDERS:
        return True
    return len(path.parts) == 1 and (path.suffix in _ABOUT_ENDINGS or not path.suffix)


def _change_between(old_tree: Path, new_tree: Path, repository: Path) -> CommitChange:
    """Returns the change between two trees, as two commits of a new repository. Raises BuildError."""
    commits: list[str] = []
    run_program(["git", "init", "--quiet", "--bare", "--template=", repository], what=_COMPARED, timeout_s=_GIT_S)
    for tree in (old_tree, new_tree):
        command = ["git", "-c", "core.autocrlf=false", f"--git-dir={repository}", f"--work-tree={tree}"]
        for arguments in (["add", "--all", "--force", "."], ["commit", "--quiet", "--no-gpg-sign", "-m", "release"]):
            run_program([*command, *arguments], what=_COMPARED, timeout_s=_GIT_S, cwd=tree, environment=IDENTITY)
        commits.append(git_output(repository, "rev-parse", "HEAD").strip())
    return CommitChange(repository, str(repository), commits[0], commits[1])
