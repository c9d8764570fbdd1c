"""Makes an instance of a change in a repository: its source files are the fix, its test files judge a fix.

Invariants:
- The base commit is where the change began: what its base branch got meanwhile is no part of it.
- Every changed file is in exactly one of patch and test_patch; renames are a removal and a new file.
- Which tests the change turns is not guessed: `job=prepare` measures it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.repository import git_output, is_address

# These are the names that pytest and most projects use; job.tests names others.
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_TEST_FILES = ("test_*.py", "*_test.py", "tests.py", "conftest.py")
# With these options the diff holds every byte, and does not depend on git's configuration on this machine.
_DIFF = (
    "diff",
    "--binary",
    "--full-index",
    "--no-renames",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    # These are git's own values. Another context joins hunks, and lists of mined tasks name hunks by their numbers.
    "--unified=3",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
    "--indent-heuristic",
)
# Messages and ids show so many characters of a commit.
_SHORT = 7


@dataclass(frozen=True, slots=True)
class CommitChange:
    """Holds the change between two commits of a repository.

    `origin` is the folder or the address that the record names.
    """

    repository: Path
    origin: str
    base: str
    head: str

    @classmethod
    def of(cls, repository: Path, origin: str, commits: str) -> "CommitChange":
        """Returns the change that `commits` means: BASE..HEAD, or one commit.

        Of a merge commit it is what came in. Raises InstanceError.
        """
        first, dots, last = commits.partition("..")
        if last.startswith(".") or not first or first.startswith("-") or last.startswith("-"):
            raise InstanceError(f"job.commits={commits} is not a change; write BASE..HEAD, or one commit")
        head = _resolve_commit(repository, (last or "HEAD") if dots else first, commits)
        base = _resolve_commit(repository, first if dots else f"{head}^1", commits)
        return cls(repository, origin, _merge_base(repository, base, head, commits), head)

    @property
    def repo(self) -> str:
        """Returns OWNER/NAME for an address, and local/NAME for a folder."""
        if not is_address(self.origin):
            return f"local/{_make_slug(Path(self.origin).name)}"
        parts = re.split(r"[/:]", self.origin.rstrip("/").removesuffix(".git"))
        return "/".join(_make_slug(part) for part in parts[-2:])

    def files(self) -> list[str]:
        names = git_output(self.repository, "diff", "--name-only", "-z", "--no-renames", self.base, self.head)
        return [name for name in names.split("\0") if name]

    def diff(self, files: Sequence[str]) -> str:
        """Returns the diff of these files. Raises InstanceError for text that a record cannot hold."""
        if not files:
            return ""
        text = git_output(
            self.repository, *_DIFF, self.base, self.head, "--", *(f":(top,literal){name}" for name in files)
        )
        if "\ufffd" in text:
            raise InstanceError(f"the change {self.base[:_SHORT]}..{self.head[:_SHORT]} has text that is not UTF-8")
        return text

    def messages(self) -> str:
        """Returns the messages of the change's commits, the oldest first, without those of merges."""
        words = git_output(
            self.repository, "log", "--reverse", "--no-merges", "--format=%B", f"{self.base}..{self.head}"
        )
        return re.sub(r"\n{3,}", "\n\n", words).strip()


def instance_of(change: CommitChange, statement: str, source: Source, tests: Sequence[str] = ()) -> Instance:
    """Returns the change as an instance whose tests are not measured yet.

    `tests` has patterns of test files that replace the usual names. Raises InstanceError, BuildError.
    """
    files = change.files()
    judging = [name for name in files if is_test(name, tests)]
    fixing = [name for name in files if name not in set(judging)]
    where = f"the change {change.base[:_SHORT]}..{change.head[:_SHORT]}"
    if not judging:
        shown = ", ".join(files[:5]) or "no file"
        raise InstanceError(
            f"{where} has no test that could judge a fix: it changes {shown}. Name its test files: "
            "job.tests=['checks/*.py']; or take a change that brings a test"
        )
    if not fixing:
        raise InstanceError(f"{where} changes tests alone ({', '.join(judging[:5])}): there is nothing to fix")
    text = statement.strip() or change.messages()
    if not text:
        raise InstanceError(f"{where} has no message that says what is wrong; write it to a file: job.statement=FILE")
    return Instance(
        instance_id=f"{change.repo.replace('/', '__')}-{change.head[:_SHORT]}".lower(),
        repo=change.repo,
        base_commit=change.base,
        problem_statement=text,
        patch=change.diff(fixing),
        test_patch=change.diff(judging),
        fail_to_pass=(),
        pass_to_pass=(),
        source=source,
    )


def is_test(name: str, patterns: Sequence[str] = ()) -> bool:
    """Tells whether a file is a test: by `patterns` if there are any, else by the usual names of folders and files."""
    path = PurePosixPath(name)
    if patterns:
        return any(fnmatchcase(name, pattern) for pattern in patterns)
    return not _TEST_FOLDERS.isdisjoint(path.parts[:-1]) or any(fnmatchcase(path.name, it) for it in _TEST_FILES)


def _resolve_commit(repository: Path, name: str, commits: str) -> str:
    """Returns the full hash of the commit `name`. Raises InstanceError."""
    try:
        return git_output(
            repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
        ).split()[-1]
    except BuildError as error:
        raise InstanceError(f"job.commits={commits}: {repository} has no commit {name}") from error


def _merge_base(repository: Path, base: str, head: str, commits: str) -> str:
    """Returns the commit at which the two histories part. Raises InstanceError."""
    try:
        return git_output(repository, "merge-base", base, head).split()[0]
    except BuildError as error:
        raise InstanceError(f"job.commits={commits}: the two commits have no history in common") from error


def _make_slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "repository"
