"""Makes candidates of a repository's newest commits: of a merge what came in, of any other commit its own change.

Invariants:
- Only the line of first parents is walked, so a change that was merged is one candidate and not several.
- The statement is the commits' messages, without the names of persons.
"""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.commits import CommitChange, instance_of, is_test
from swe_rl.env.mining.candidate import Reason, TaskCandidate, changed_lines, is_binary
from swe_rl.env.mining.leaks import shows_fix
from swe_rl.env.mining.persons import without_persons
from swe_rl.env.mining.release import MiningFilter
from swe_rl.env.mining.wording import ChangeWords
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.repository import git_output

_SHORT = 10


def newest_commits(repository: Path, max_commits: int) -> list[str]:
    """Returns the hashes of the newest commits of the checked-out branch that have a parent. Raises BuildError."""
    command = ("log", "--first-parent", "--min-parents=1", f"--max-count={max_commits}", "--format=%H")
    return git_output(repository, *command).split()


def candidate_of_commit(repository: Path, origin: str, commit: str, wanted: MiningFilter) -> TaskCandidate:
    """Returns the candidate of a commit, or the reason why there is none.

    `origin` is the folder or the address that the row names.
    """
    name = f"{repository.name.removesuffix('.git')}-{commit[:_SHORT]}"
    source = Source(tree=origin, python=wanted.python, test_command=wanted.test_command)
    try:
        change = CommitChange.of(repository, origin, commit)
        made = datetime.fromisoformat(git_output(repository, "show", "--no-patch", "--format=%cI", commit).strip())
        reason = _refused(change, made, wanted)
        if reason is not None:
            return TaskCandidate(name, change.repo, reason=reason)
        instance = instance_of(change, without_persons(change.messages()), source)
    except InstanceError as error:
        return TaskCandidate(name, name, reason=Reason.no_statement, detail=str(error))
    except BuildError as error:
        return TaskCandidate(name, name, reason=Reason.unavailable, detail=str(error))
    instance = replace(instance, created_at=made.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    candidate = TaskCandidate(name, change.repo, instance, words=ChangeWords(entry=instance.problem_statement))
    return _checked(candidate, instance, wanted)


def _refused(change: CommitChange, made: datetime, wanted: MiningFilter) -> Reason | None:
    """Returns why a change is refused for its date or its files, or None where it is not. Raises BuildError."""
    if wanted.since and made.strftime("%Y-%m-%d") < wanted.since:
        return Reason.too_old
    are_tests = [is_test(name) for name in change.files()]
    if not any(are_tests):
        return Reason.fix_alone
    return Reason.tests_alone if all(are_tests) else None


def _checked(candidate: TaskCandidate, instance: Instance, wanted: MiningFilter) -> TaskCandidate:
    """Returns the candidate, or one without its instance where its patch or its statement will not do."""
    if is_binary(instance.patch):
        return replace(candidate, instance=None, reason=Reason.binary)
    if wanted.is_split:
        return candidate
    if changed_lines(instance.patch) > wanted.max_changed_lines:
        return replace(candidate, instance=None, reason=Reason.too_large)
    if shows_fix(instance.problem_statement, instance.patch):
        return replace(candidate, instance=None, reason=Reason.leak)
    return candidate
