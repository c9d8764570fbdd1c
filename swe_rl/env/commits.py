"""A change that was made to a repository as an instance: its source is the fix, its tests judge it.

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

from swe_rl.env.instance import Instance, InstanceError, Source
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.repository import git, is_address

# As pytest and most projects call them; job.tests names others.
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_TEST_FILES = ("test_*.py", "*_test.py", "conftest.py")
_DIFF = (
    *("diff", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)
_SHORT = 7


@dataclass(frozen=True, slots=True)
class Change:
    """Two commits of a repository, and whose they are; `origin`: the folder or the address that the record names."""

    repository: Path
    origin: str
    base: str
    head: str

    @classmethod
    def of(cls, repository: Path, origin: str, commits: str) -> "Change":
        """`commits`: BASE..HEAD, or one commit; of a merge it is what came in. Raises InstanceError."""
        first, dots, last = commits.partition("..")
        if last.startswith(".") or not first or first.startswith("-") or last.startswith("-"):
            raise InstanceError(f"job.commits={commits} is not a change; write BASE..HEAD, or one commit")
        head = _commit(repository, (last or "HEAD") if dots else first, commits)
        base = _commit(repository, first if dots else f"{head}^1", commits)
        return cls(repository, origin, _merge_base(repository, base, head, commits), head)

    @property
    def repo(self) -> str:
        """OWNER/NAME of an address, local/NAME of a folder."""
        if not is_address(self.origin):
            return f"local/{_slug(Path(self.origin).name)}"
        parts = re.split(r"[/:]", self.origin.rstrip("/").removesuffix(".git"))
        return "/".join(_slug(part) for part in parts[-2:])

    def files(self) -> list[str]:
        names = git(self.repository, "diff", "--name-only", "-z", "--no-renames", self.base, self.head)
        return [name for name in names.split("\0") if name]

    def diff(self, files: Sequence[str]) -> str:
        """Of these files. Raises InstanceError for one that a record cannot hold."""
        if not files:
            return ""
        text = git(self.repository, *_DIFF, self.base, self.head, "--", *(f":(top,literal){name}" for name in files))
        if "\ufffd" in text:
            raise InstanceError(f"the change {self.base[:_SHORT]}..{self.head[:_SHORT]} has text that is not UTF-8")
        return text

    def messages(self) -> str:
        """Of its commits, the oldest first, without those of merges."""
        words = git(self.repository, "log", "--reverse", "--no-merges", "--format=%B", f"{self.base}..{self.head}")
        return re.sub(r"\n{3,}", "\n\n", words).strip()


def instance_of(change: Change, statement: str, source: Source, tests: Sequence[str] = ()) -> Instance:
    """`tests`: patterns of test files, instead of the usual names. Raises InstanceError, BuildError."""
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
    path = PurePosixPath(name)
    if patterns:
        return any(fnmatchcase(name, pattern) for pattern in patterns)
    return not _TEST_FOLDERS.isdisjoint(path.parts[:-1]) or any(fnmatchcase(path.name, it) for it in _TEST_FILES)


def _commit(repository: Path, name: str, commits: str) -> str:
    """Raises InstanceError."""
    try:
        return git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").split()[-1]
    except BuildError as error:
        raise InstanceError(f"job.commits={commits}: {repository} has no commit {name}") from error


def _merge_base(repository: Path, base: str, head: str, commits: str) -> str:
    """Raises InstanceError."""
    try:
        return git(repository, "merge-base", base, head).split()[0]
    except BuildError as error:
        raise InstanceError(f"job.commits={commits}: the two commits have no history in common") from error


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "repository"
