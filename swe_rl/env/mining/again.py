"""Makes the candidates of a list of mined tasks again, and the list of tasks that were proven.

Invariants:
- Nothing is searched: which hunks and which place of a bug is in the list, so no test runs before the proofs.
- What cannot be made as it was is a candidate without an instance, under the id that the list has.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.mining.candidate import Reason, TaskCandidate
from swe_rl.env.mining.lock import LockedList, LockedTask, hash_of_row
from swe_rl.env.mining.mutants import SoundRelease, bug_again, read_release
from swe_rl.env.mining.recipe import Edition, TaskRecipe
from swe_rl.env.mining.release import MiningFilter, ReleasePair, candidate_of, slug_of
from swe_rl.env.mining.split import part_of
from swe_rl.env.source_build.origin import hash_of_file
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.sdist import cached_sdist, fetch_sdist

# A list was filtered by size when it was made.
_ANY_SIZE = 10**9


def searches_of_list(locked: LockedList, wanted: MiningFilter, archives: Path) -> Iterator[Callable[[], TaskCandidate]]:
    """Yields calls that make the candidates again, in the list's order. Releases are read once for all of them."""
    wanted = replace(wanted, python=locked.python, test_command=locked.test_command, is_split=True)

    @cache
    def change(project: str, older: str, newer: str, until: str, edition: Edition) -> TaskCandidate:
        wanted_then = replace(wanted, undated_until=until, edition=edition)
        return candidate_of(ReleasePair(project, older, newer), wanted_then, archives)

    @cache
    def release(project: str, version: str, until: str, edition: Edition) -> SoundRelease:
        return read_release(project, version, replace(wanted, undated_until=until, edition=edition), archives)

    def made(task: LockedTask) -> TaskCandidate:
        recipe = task.recipe
        refused = TaskCandidate(task.instance_id, recipe.project, reason=Reason.unavailable)
        try:
            other = [name for name, digest in task.archives.items() if _hash_of(name, archives) != digest]
        except (BuildError, InstanceError) as error:
            return replace(refused, detail=str(error))
        if other:
            return replace(refused, reason=Reason.other_archive, detail=", ".join(other))
        if recipe.older:
            whole = change(recipe.project, recipe.older, recipe.release, recipe.until, recipe.edition)
            candidate = _part_again(whole, recipe)
        else:
            sound = release(recipe.project, recipe.release, recipe.until, recipe.edition)
            whole = sound.candidate
            candidate = bug_again(sound, recipe) if whole.instance is not None else None
        if candidate is None or candidate.instance is None:
            said = candidate or whole
            return replace(refused, reason=said.reason or Reason.other_archive, detail=said.detail)
        return candidate

    return (partial(made, task) for task in locked.tasks)


def tasks_of_projects(locked: LockedList, projects: Sequence[str]) -> LockedList:
    """Returns the list with the tasks of these projects, and all of it where none is named.

    Raises InstanceError for a project of which the list has no task.
    """
    if not projects:
        return locked
    known = {slug_of(task.recipe.project) for task in locked.tasks}
    wanted = {slug_of(name): name for name in projects}
    unknown = [name for slug, name in wanted.items() if slug not in known]
    if unknown:
        raise InstanceError(
            f"mine.projects: the list that mine.lock names has no task of {', '.join(unknown)}; it has tasks of "
            f"{', '.join(sorted(known))}"
        )
    return replace(locked, tasks=[task for task in locked.tasks if slug_of(task.recipe.project) in wanted])


def _part_again(whole: TaskCandidate, recipe: TaskRecipe) -> TaskCandidate | None:
    if whole.instance is None or not recipe.hunks:
        return whole
    return part_of(whole, whole.instance, recipe.hunks, recipe.tests, _ANY_SIZE)


def _hash_of(name: str, archives: Path) -> str:
    return hash_of_file(fetch_sdist(name, archives))


def altered_rows(locked: LockedList, proven: Iterable[Instance]) -> list[str]:
    """Returns the ids of proven rows that are not as the list has them."""
    hashes = {task.instance_id: task.sha256 for task in locked.tasks}
    return [row.instance_id for row in proven if hashes.get(row.instance_id) != hash_of_row(row)]


def locked_tasks(candidates: Sequence[TaskCandidate], proven: Iterable[Instance], archives: Path) -> list[LockedTask]:
    """Returns the list's entries for the proven candidates that releases can make again."""
    rows = {row.instance_id: row for row in proven}
    tasks: list[LockedTask] = []
    for candidate in candidates:
        recipe = candidate.recipe
        row = rows.get(candidate.instance.instance_id) if candidate.instance is not None else None
        if row is None or recipe is None:
            continue
        names = [f"{recipe.project}-{version}" for version in (recipe.older, recipe.release) if version]
        paths = {name: cached_sdist(name, archives) for name in names}
        hashes = {name: hash_of_file(path) for name, path in paths.items() if path is not None}
        tasks.append(LockedTask(row.instance_id, recipe, hash_of_row(row), hashes, candidate.licence))
    return tasks
