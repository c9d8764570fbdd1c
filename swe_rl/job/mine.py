"""`job=mine` turns neighbouring releases of a package index, or the commits of a git history, into proven instances.

It fetches source distributions, splits each difference into a fix and its tests, and proves each candidate as
`job=prepare` does. What is proven goes to the file that env.dataset names, and `env=mined` trains and evaluates on it.

Invariants:
- The file holds proven instances only, and is replaced only when all candidates were tried.
- All instances of a project are in one split, which follows from the project's name alone.
- A difference that gives nothing ends nothing: it is counted by its reason in the report beside the file.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from swe_rl.config.choices import MinedTasks
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance
from swe_rl.dataset.mined_lists import list_path
from swe_rl.env.make import make_env
from swe_rl.env.mining.again import altered_rows, locked_tasks, searches_of_list, tasks_of_projects
from swe_rl.env.mining.candidate import TaskCandidate
from swe_rl.env.mining.cost import MiningCost, Phase
from swe_rl.env.mining.found import ALTERED, SHOWN, UNTRIED, Found, lines_of, report_of
from swe_rl.env.mining.history import candidate_of_commit, newest_commits
from swe_rl.env.mining.lock import LockedList, lock_of, read_list
from swe_rl.env.mining.mutants import SoundRelease, bugs_of, newest_release, read_release
from swe_rl.env.mining.release import MiningFilter, ReleasePair, candidate_of, neighbouring_releases
from swe_rl.env.mining.runs import CountedRuns
from swe_rl.env.mining.split import split_candidate
from swe_rl.env.proof.record import Proof, Standing
from swe_rl.env.source_build.program import BuildError, ended_with_the_job
from swe_rl.env.source_build.repository import clone_at, is_address
from swe_rl.env.swe.env import SweEnv, sources_folder
from swe_rl.errors import UserError, count_noun
from swe_rl.files.disk import write_text_atomic
from swe_rl.logger.counted_work import counted_work
from swe_rl.run import event_loop
from swe_rl.run.components import cache_folder, scratch_root
from swe_rl.run.mining import MiningWork, make_workspaces, search_by_tests, shown_fixes
from swe_rl.run.proving import prove_here

# Differences are fetched and compared side by side: most of the time an index is waited for.
_THREADS = 4
Search = Callable[[], TaskCandidate]


class MineError(UserError):
    """Says that there is no difference that could become a task."""


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Mines, proves and writes. Returns 1 where nothing was proven. Raises MineError, DiskError."""
    del folder, origins
    console = Console()
    target = Path(config.env.dataset).absolute()
    cost = MiningCost()
    candidates = _found(config, target, console, cost)
    rows = [candidate.instance for candidate in candidates if candidate.instance is not None]
    locked = _list_of(config)
    if locked is None:
        heldout_share = config.mine.heldout_share
    else:
        heldout_share = locked.heldout_share
    if rows:
        finds = _proven(config, candidates, rows, target, console, cost)
    else:
        finds = Found(candidates, {})
    if locked is not None:
        altered = dict.fromkeys(altered_rows(locked, finds.proven), ALTERED)
        finds = replace(finds, outcomes={**finds.outcomes, **altered})
    finds.write(target, heldout_share, cost)
    _write_list(config, finds, locked, target)
    console.print(_table(finds))
    say = partial(console.print, soft_wrap=True, markup=False, highlight=False)
    splits = finds.split_sizes(heldout_share)
    by_split = f"{splits['train']} in train, {splits['heldout']} in heldout"
    say(f"{count_noun(len(finds.proven), 'instance')} ({by_split}): {target}")
    say(f"why the others are none: {report_of(target)}")
    missing = {"train": "env.split=heldout", "heldout": "env.eval_split=train"}
    for split in [split for split, size in splits.items() if finds.proven and not size]:
        say(
            f"{split} is empty, as a project is in one split: mine more projects, or add {missing[split]} to other jobs"
        )
    return 0 if finds.proven else 1


def _found(config: Config, target: Path, console: Console, cost: MiningCost) -> list[TaskCandidate]:
    """Returns the candidates of everything that is looked at. Raises UserError."""
    archives = _archives(config)
    archives.mkdir(parents=True, exist_ok=True)
    locked = _list_of(config)
    if locked is not None:
        with ended_with_the_job(), cost.counting(Phase.compare):
            return _searched(list(searches_of_list(locked, _filter(config), archives)), console)
    if config.mine.tasks is MinedTasks.bugs:
        with ended_with_the_job(), cost.counting(Phase.compare):
            releases = _sound_releases(config, archives, console)
        works = [MiningWork(release.candidate, partial(_bugs, config, release)) for release in releases]
        return _searched_by_tests(config, works, target, console, cost)
    with ended_with_the_job(), cost.counting(Phase.compare):
        candidates = _searched(_searches(config, archives, console), console)
    if config.mine.tasks is MinedTasks.changes:
        return candidates
    works = [MiningWork(candidate, partial(_hunks, config, candidate)) for candidate in candidates]
    return _searched_by_tests(config, works, target, console, cost)


async def _hunks(
    config: Config, candidate: TaskCandidate, instance: Instance, runs: CountedRuns
) -> list[TaskCandidate]:
    parts = await split_candidate(replace(candidate, instance=instance), runs, config.mine.max_changed_lines)
    return [_without_script(part) for part in parts]


async def _bugs(config: Config, release: SoundRelease, instance: Instance, runs: CountedRuns) -> list[TaskCandidate]:
    return [_without_script(bug) for bug in await bugs_of(release, instance, runs, config.mine.newest)]


def _without_script(candidate: TaskCandidate) -> TaskCandidate:
    """Returns the candidate with a row as it is written: its script and its image are made when it is read."""
    if candidate.instance is None:
        return candidate
    return replace(candidate, instance=replace(candidate.instance, eval_script="", log_parser="", image=""))


def _searched_by_tests(
    config: Config, works: Sequence[MiningWork], target: Path, console: Console, cost: MiningCost
) -> list[TaskCandidate]:
    """Returns what running tests makes of candidates; those without an instance stay as they are. Raises UserError."""
    runnable = [work for work in works if work.candidate.instance is not None]
    rest = [work.candidate for work in works if work.candidate.instance is None]
    rows = [work.candidate.instance for work in runnable if work.candidate.instance is not None]
    if not rows:
        return rest
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    env, read = _env_of(config, rows, target)
    searched = event_loop.run_job(search_by_tests(read, env, runnable, scratch_root(config), say, cost))
    return [*searched, *rest]


def _filter(config: Config) -> MiningFilter:
    mine = config.mine
    return MiningFilter(
        licences=tuple(mine.licences),
        since=mine.since or "",
        max_changed_lines=mine.max_changed_lines,
        python=mine.python or f"{sys.version_info.major}.{sys.version_info.minor}",
        test_command=mine.test_command,
        is_split=mine.tasks is MinedTasks.hunks,
        undated_until=datetime.now(UTC).strftime("%Y-%m-%dT00:00:00Z"),
    )


def _sound_releases(config: Config, archives: Path, console: Console) -> list[SoundRelease]:
    """Returns the newest release of each project that has one. Raises MineError."""
    releases: list[SoundRelease] = []
    with counted_work(console, "reading releases", len(config.mine.projects)) as count_item:
        for project in config.mine.projects:
            try:
                releases.append(read_release(project, newest_release(project), _filter(config), archives))
            except BuildError as error:
                print(f"mine.projects: {error}", file=sys.stderr, flush=True)
            count_item()
    if not releases:
        raise _no_release(config)
    return releases


def _no_release(config: Config) -> MineError:
    names = ", ".join(config.mine.projects)
    return MineError(
        f"mine.projects: the package index has not enough releases with source distributions of {names} (one for "
        "mine.tasks=bugs, else two). Look at the names, and at pip's settings: job=mine asks the index that pip asks."
    )


def _searches(config: Config, archives: Path, console: Console) -> list[Search]:
    """Returns what makes a candidate of each difference. Raises MineError, BuildError."""
    mine = config.mine
    wanted = _filter(config)
    if mine.repository is not None:
        name = mine.repository
        if is_address(name):
            repository = clone_at(name, "", archives)
        else:
            repository = Path(name).resolve()
        origin = name if is_address(name) else str(repository)
        commits = newest_commits(repository, mine.newest)
        return [partial(candidate_of_commit, repository, origin, commit, wanted) for commit in commits]
    searches: list[Search] = []
    with counted_work(console, "listing releases", len(mine.projects)) as count_item:
        for project in mine.projects:
            searches += [partial(candidate_of, pair, wanted, archives) for pair in _pairs(project, mine.newest)]
            count_item()
    if not searches:
        raise _no_release(config)
    return searches


def _pairs(project: str, newest: int) -> Sequence[ReleasePair]:
    """Returns the project's pairs of releases, and none where the index does not answer for it."""
    try:
        return neighbouring_releases(project, newest)
    except BuildError as error:
        print(f"mine.projects: {error}", file=sys.stderr, flush=True)
        return ()


def _searched(searches: Sequence[Search], console: Console) -> list[TaskCandidate]:
    """Returns a candidate for each search, in their order."""
    work = counted_work(console, "comparing versions", len(searches))
    with work as count_item, ThreadPoolExecutor(_THREADS) as threads:
        candidates: list[TaskCandidate] = []
        for candidate in threads.map(lambda search: search(), searches):
            candidates.append(candidate)
            count_item()
    return candidates


def _proven(
    config: Config,
    candidates: Sequence[TaskCandidate],
    rows: Sequence[Instance],
    target: Path,
    console: Console,
    cost: MiningCost,
) -> Found:
    """Returns the candidates with the rows as they were proven, or why they were not. Raises UserError."""
    env, read = _env_of(config, rows, target)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    instances = list(env.chosen(read.env.split))
    with cost.counting(Phase.build):
        event_loop.run_job(make_workspaces(env, instances, say))
    shown = event_loop.run_job(shown_fixes(env, instances))
    todo = [row for row in instances if row.instance_id not in shown and not env.is_settled(row)]
    with cost.counting(Phase.prove):
        event_loop.run_job(prove_here(read, env, todo, scratch_root(config), say))
    outcomes = {row.instance_id: _outcome(row, env, shown.get(row.instance_id, "")) for row in instances}
    proofs = [env.book.of(name) for name in outcomes]
    return Found(candidates, outcomes, {proof.instance_id: proof.took_s for proof in proofs if proof is not None})


def _list_of(config: Config) -> LockedList | None:
    """Returns the wanted tasks of the list that mine.lock names, and None where it names none. Raises InstanceError."""
    if config.mine.lock is None:
        return None
    return tasks_of_projects(read_list(list_path(config.mine.lock)), config.mine.projects)


def _write_list(config: Config, finds: Found, locked: LockedList | None, target: Path) -> None:
    """Writes the list from which the proven instances can be made again. Raises DiskError.

    The list that this job reads is not written: tasks whose index does not answer today would be gone from it.
    """
    place = lock_of(target)
    if config.mine.lock is not None and list_path(config.mine.lock).resolve() == place.resolve():
        return
    settings = locked or LockedList(
        _filter(config).python, config.mine.test_command, config.mine.heldout_share, tasks=()
    )
    tasks = locked_tasks(finds.candidates, finds.proven, _archives(config))
    if tasks:
        write_text_atomic(place, replace(settings, tasks=tasks).text())


def _archives(config: Config) -> Path:
    """Returns the folder of the source distributions."""
    return sources_folder(cache_folder(config) / "workspaces") / "sdists"


def _env_of(config: Config, rows: Sequence[Instance], target: Path) -> tuple[SweEnv, Config]:
    """Writes rows beside the target. Returns the environment that reads them, and its configuration."""
    candidates = target.with_name(f"{target.stem}.candidates.jsonl")
    write_text_atomic(candidates, lines_of(rows))
    read = replace(config.env, dataset=str(candidates), name="jsonl")
    env = make_env(read, cache_folder(config) / "workspaces", config.sandbox.kind, config.grader)
    assert isinstance(env, SweEnv)
    return env, replace(config, env=read)


def _outcome(instance: Instance, env: SweEnv, shown_in: str) -> Instance | str:
    """Returns the instance as it was proven, or why it is none. `shown_in` is a file that shows an agent the fix."""
    if shown_in:
        return f"{SHOWN}: {shown_in}"
    proof: Proof | None = env.book.of(instance.instance_id)
    standing, reason = env.standing(instance)
    if standing is Standing.proven and proof is not None:
        return proof.applied(instance)
    if standing is Standing.refuted:
        return reason
    return UNTRIED


def _table(finds: Found) -> Table:
    """Returns how many differences had which outcome, the most frequent first."""
    table = Table("number", "outcome", title=count_noun(len(finds.candidates), "difference"), title_justify="left")
    for word, count in finds.counts():
        table.add_row(str(count), word)
    return table
