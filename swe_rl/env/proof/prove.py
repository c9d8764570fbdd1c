"""Runs the gold patch and a change that fixes nothing, before anybody is trained or measured on an instance.

Invariants:
- Both patches are graded as an agent's patch would be: in the same sandboxes, by the same grader.
- What infrastructure broke is tried once more, and then it is no verdict on the instance: it stays untried.
- Nothing of an instance ends the proofs of the others.
- All instances are tried as they are before an environment is mended: a long mend keeps nobody else waiting.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any

from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.env import Grade, GradeError, GradesInPlace, NotStartedError, SuiteRun
from swe_rl.env.grading.twin_trial import is_tried, weak_tests
from swe_rl.env.patch import NOOP_PATCH
from swe_rl.env.proof.measure import RUNS, TIMED_OUT, MeasuredFix, measure_fix
from swe_rl.env.proof.mend import GoldFailure, MendingWay, find_ways, release_ways, spread_releases, wants_network
from swe_rl.env.proof.record import Proof, ProofTrial, Provable
from swe_rl.env.proof.shared_runs import SharedRuns
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.sdist import Release
from swe_rl.errors import one_line
from swe_rl.sandbox.sandbox import SandboxError, SandboxProvider

MAX_TRIALS = 12  # At most so many environments are made for one instance.
MAX_MEND_S = 900.0  # After so many seconds no further environment is begun.
_SHOWN_TESTS = 3
_LOG_CHARS = 600
_NEVER_RAN = -1
_UNSTARTED, _UNMADE = 1e9, 1e10  # These ranks are beyond any number of failing tests.
_PYTEST = re.compile(r"(^|\s)(pytest|tox|py\.test)\s")


class UntriedError(BuildError):
    """Says that infrastructure kept a proof from being made; nothing is known of the instance."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Holds what one run of the gold patch in one environment gave."""

    instance: Instance
    grade: Grade | None
    error: str = ""
    unstarted: str | None = None  # Tests that do not start in this environment printed this.
    is_unfit: bool = False  # Its patches do not fit the release that its row names.
    is_lost: bool = False  # Its sandbox failed twice.

    @property
    def resolved(self) -> bool:
        return self.grade is not None and self.grade.resolved

    @property
    def failing(self) -> list[str]:
        tests = self.grade.fail_to_pass | self.grade.pass_to_pass if self.grade else {}
        return [name for name, passed in tests.items() if not passed]

    @property
    def rank(self) -> float:
        """Returns how far the run is from resolved."""
        if self.grade is not None:
            return float(len(self.failing))
        return _UNSTARTED if self.unstarted is not None else _UNMADE

    @property
    def log(self) -> str:
        if self.grade is None:
            return self.unstarted or self.error
        return self.grade.log or self.grade.log_tail

    def trial(self, change: str) -> ProofTrial:
        if self.grade is None:
            return ProofTrial(change, one_line(self.error), _NEVER_RAN)
        words = "resolved" if self.resolved else f"{len(self.failing)} tests fail"
        return ProofTrial(change, words, len(self.failing))


@dataclass(frozen=True, slots=True)
class Unmended:
    """Holds an instance whose gold patch fails in the environment of its row, and may pass in another one."""

    instance: Instance
    run: _Run
    took_s: float


@dataclass(slots=True)
class Prover:
    """Proves instances one by one. `runs` is how often the gold patch is graded where it passes once."""

    env: Provable
    sandboxes: SandboxProvider
    runs: int
    timeout_s: float
    mends: bool = True
    say: Callable[[str], None] = lambda _: None  # It is told what is tried where gold fails.
    _releases: dict[Instance, Sequence[Release]] = field(default_factory=dict)
    # It maps an origin to ways that mended another instance.
    _helped: dict[str, list[MendingWay]] = field(default_factory=dict)
    _shared: SharedRuns = field(default_factory=SharedRuns)

    async def prove(self, instance: Instance) -> Proof:
        """Returns the proof of an instance, mended where that helps. Raises UntriedError."""
        result = await self.first(instance)
        return await self.mend(result) if isinstance(result, Unmended) else result

    async def first(self, instance: Instance) -> Proof | Unmended:
        """Returns the proof in the environment of the row, or what a mend may help. Raises UntriedError."""
        began_s = time.monotonic()
        if instance.is_unmeasured:
            return _date_proof(await self._of_measured(instance), time.monotonic() - began_s)
        try:
            run = await self._gold(instance)
            if run.is_lost:
                raise UntriedError(run.error)
            if not run.resolved and self._may_mend(instance, run):
                return Unmended(instance, run, time.monotonic() - began_s)
            proof = await self._proof(instance, run, [run.trial("")])
        except InstanceError as error:
            unfit = _Run(instance, None, str(error), is_unfit=True)
            releases = await asyncio.to_thread(self._nearer, instance) if self._may_mend(instance, unfit) else ()
            if releases:
                return Unmended(instance, unfit, time.monotonic() - began_s)
            proof = self._refuted(instance, str(error), [])
        return _date_proof(proof, time.monotonic() - began_s)

    async def _of_measured(self, instance: Instance) -> Proof:
        """Returns a proof with measured tests. The environment is not mended: its owner says what is in it."""
        try:
            tests = await self._measured(instance)
            if tests.reason:
                proof = self._refuted(instance, tests.reason, [])
                return replace(proof, gold=tests.verdicts, flaky=tests.flaky, log_tail=tests.log[-_LOG_CHARS:])
            row = replace(instance, fail_to_pass=tests.fail_to_pass, pass_to_pass=tests.pass_to_pass)
            run = await self._gold(row)
            proof = await self._proof(instance, run, [run.trial("")])
        except (InstanceError, BuildError) as error:
            if isinstance(error, UntriedError):
                raise
            return self._refuted(instance, str(error), [])
        flaky = tuple(sorted({*proof.flaky, *tests.flaky}))
        return replace(proof, flaky=flaky, fail_to_pass=tests.fail_to_pass, pass_to_pass=tests.pass_to_pass)

    async def _measured(self, instance: Instance) -> MeasuredFix:
        """Returns which tests judge the instance. Raises InstanceError, BuildError, UntriedError."""
        await asyncio.to_thread(self.env.workspace, instance)
        runs = max(RUNS, self.runs)

        async def run_with(patch: str) -> list[SuiteRun]:
            return [await self._tests(instance, patch) for _ in range(runs)]

        before = await run_with(NOOP_PATCH)
        return measure_fix(before, await self._shared.with_gold(instance, partial(run_with, instance.patch)))

    async def _tests(self, instance: Instance, patch: str) -> SuiteRun:
        """Returns one run of the suite; infrastructure may break once. Raises UntriedError."""
        error = ""
        for _ in range(2):
            try:
                return await self.env.run_tests(instance, patch, self.sandboxes, self.timeout_s)
            except (GradeError, SandboxError) as failure:
                error = str(failure)
        raise UntriedError(error)

    async def mend(self, unmended: Unmended) -> Proof:
        """Returns the proof after other environments were tried, one after the other. Raises UntriedError."""
        began_s = time.monotonic() - unmended.took_s
        trials = [unmended.run.trial("")]
        try:
            best = await self._mended(unmended.instance, unmended.run, trials)
            proof = await self._proof(unmended.instance, best, trials)
        except InstanceError as error:
            proof = self._refuted(unmended.instance, str(error), trials)
        return _date_proof(proof, time.monotonic() - began_s)

    async def _proof(self, instance: Instance, best: _Run, trials: list[ProofTrial]) -> Proof:
        if not best.resolved:
            return self._refuted(instance, _explain_failure(best, trials), trials, best)
        gold = [best, *[await self._gold(best.instance) for _ in range(self.runs - 1)]]
        noop = await self._graded(best.instance, NOOP_PATCH)
        if self._is_mute(noop.grade):  # Its machine may have had no memory just then.
            noop = await self._graded(best.instance, NOOP_PATCH)
        if noop.grade is None:
            raise UntriedError(noop.error)
        return await self._judged(instance, gold, noop.grade, trials)

    async def _judged(self, instance: Instance, gold: Sequence[_Run], noop: Grade, trials: list[ProofTrial]) -> Proof:
        flaky = sorted({test for run in gold for test in run.failing})
        reason = ""
        if any(not run.resolved for run in gold):
            solved = sum(run.resolved for run in gold)
            reason = f"{solved} of {len(gold)} runs of its gold patch resolve it; flaky: {_list_tests(flaky)}"
        elif noop.resolved:
            reason = "a change that fixes nothing resolves it"
        elif self._is_mute(noop):
            words = "they did not end in time" if noop.timed_out else last_words(noop.log)
            reason = f"without a solution its tests give no verdict: {words}"
        tests, made_of = self.env.digests(instance)
        used = gold[0].instance
        is_twinned = any(run.grade and run.grade.session.twinned for run in gold)
        return Proof(
            instance.instance_id,
            not reason,
            reason,
            tests,
            made_of,
            await asyncio.to_thread(self.env.environment_digest, used),
            gold=tuple("resolved" if run.resolved else "unresolved" for run in gold),
            noop="resolved" if noop.resolved else "unresolved",
            flaky=tuple(flaky),
            source=used.source.to_record() if used.source and used.source != instance.source else None,
            trials=tuple(trials),
            untwinned=not reason and not is_twinned,
            weak_twins=tuple(sorted(weak_tests(used))) if is_twinned else None,
            twins_tried=is_tried(used),
        )

    def _is_mute(self, noop: Grade | None) -> bool:
        """Tells whether an untouched sandbox gave no verdict; a run asks one where an agent's sandbox gave none."""
        return noop is not None and isinstance(self.env, GradesInPlace) and (noop.timed_out or not noop.started)

    def _refuted(self, instance: Instance, reason: str, trials: list[ProofTrial], run: _Run | None = None) -> Proof:
        tests, made_of = self.env.digests(instance)
        log = run.log[-_LOG_CHARS:] if run is not None else ""
        gold = ("unresolved",) if run and run.grade and not run.grade.timed_out else ()
        details = {"gold": gold, "failing": tuple(run.failing) if run else (), "log_tail": log, "trials": tuple(trials)}
        return Proof(instance.instance_id, False, reason, tests, made_of, "", **details)  # type: ignore[arg-type]

    def _may_mend(self, instance: Instance, run: _Run) -> bool:
        if not self.mends or instance.source is None or wants_network(run.log):
            return False
        return bool(instance.source.sdist) or not _names_others(run)

    async def _mended(self, instance: Instance, best: _Run, trials: list[ProofTrial]) -> _Run:
        """Returns the best run. Whatever brings it nearer is kept, and the next way starts from there."""
        tried = {best.instance.source}
        until_s = time.monotonic() + MAX_MEND_S
        spoiled: list[frozenset[str]] = []
        while len(trials) < MAX_TRIALS and not best.resolved and time.monotonic() < until_s:
            if wants_network(best.log):
                break  # This is seen only once its tests start.
            way = await asyncio.to_thread(self._next_way, instance, best, tried, spoiled)
            if way is None:
                break
            tried.add(way.source)
            self.say(f"{instance.instance_id}: gold fails ({trials[-1].outcome}); tried again {way.change}")
            run = await self._gold(replace(instance, source=way.source))
            trials.append(run.trial(way.change))
            if run.rank > best.rank:
                spoiled += _added_packages(best.instance.source, way.source)
            best = run if run.rank < best.rank else best
            if run.resolved and instance.source and instance.source.origin == way.source.origin:
                self._helped.setdefault(instance.source.origin, []).insert(0, MendingWay(trials[-1].change, way.source))
        return best

    def _next_way(
        self, instance: Instance, best: _Run, tried: set[Source | None], spoiled: Sequence[frozenset[str]]
    ) -> MendingWay | None:
        source = best.instance.source
        assert source is not None
        try:
            released = self.env.released(best.instance)
        except (InstanceError, BuildError):
            return None  # There is nothing to make an environment of.
        nearer = partial(self._nearer, instance)
        if best.is_unfit or _names_others(best):
            candidates = release_ways(source, nearer())
        else:
            failure = GoldFailure(best.log, len(best.failing), _runs_pytest(best.instance), spoiled)
            candidates = chain(self._helped.get(source.origin, []), find_ways(source, released, failure, nearer))
        return next((way for way in candidates if way.source not in tried), None)

    def _nearer(self, instance: Instance) -> Sequence[Release]:
        """Returns nearer releases, looked for once, and none where the package index cannot be asked."""
        if instance not in self._releases:
            try:
                self._releases[instance] = self.env.nearer(instance)
            except (InstanceError, BuildError) as error:
                self.say(f"{instance.instance_id}: nearer releases cannot be looked for: {one_line(str(error))}")
                self._releases[instance] = ()
        return self._releases[instance]

    async def _gold(self, instance: Instance) -> _Run:
        return await self._graded(instance, instance.patch)

    async def _graded(self, instance: Instance, patch: str) -> _Run:
        """Returns a patch's run; infrastructure may break once. Raises InstanceError where nothing can be made."""
        lost = _Run(instance, None)
        for _ in range(2):
            try:
                await asyncio.to_thread(self.env.workspace, instance)
            except BuildError as failure:
                return _Run(instance, None, str(failure))
            try:
                return _Run(instance, await self.env.grade(instance, patch, self.sandboxes, self.timeout_s))
            except NotStartedError as failure:  # The grader tried it without the patch as well.
                return _Run(instance, None, str(failure), failure.log)
            except (GradeError, SandboxError) as failure:
                lost = _Run(instance, None, str(failure), is_lost=isinstance(failure, SandboxError))
        return lost


def _added_packages(before: Source | None, after: Source) -> list[frozenset[str]]:
    """Returns the optional packages that a way adds, and nothing for a way that changes anything else."""
    if before is None or replace(after, optional=before.optional) != before:
        return []
    return [frozenset(after.optional) - set(before.optional)]


def _date_proof(proof: Proof, took_s: float) -> Proof:
    return replace(proof, took_s=round(took_s, 1), made_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def _runs_pytest(instance: Instance) -> bool:
    script = instance.eval_script.partition("Start Test Output")[2]
    return not script or bool(_PYTEST.search(script))


def _names_others(run: _Run) -> bool:
    """Tells whether the row names tests that do not exist, which no other environment brings about."""
    return not _runs_pytest(run.instance) and _all_passed(run.log)


def _all_passed(log: str) -> bool:
    """Tells whether all tests passed: the official scripts end with the tests' own exit status."""
    return "Test Exit Code: 0" in log


def _explain_failure(run: _Run, trials: Sequence[ProofTrial]) -> str:
    tried = f" (tried as well: {'; '.join(trial.change for trial in trials[1:])})" if len(trials) > 1 else ""
    if run.grade is None:
        return f"{one_line(run.error)}{tried}"
    if not run.grade.patch_applied:
        return f"its gold patch does not apply: {last_words(run.log)}"
    if run.grade.timed_out:
        return f"{TIMED_OUT} with its gold patch{tried}"
    why = f"{len(run.failing)} tests fail: {_list_tests(run.failing)}"
    if run.grade.score is not None:
        why = f"{why}, and it scores {run.grade.score:g}"
    if _all_passed(run.log):
        why = (
            f"all tests pass, but {len(run.failing)} that its row names are not among them: {_list_tests(run.failing)}"
        )
    network = "; its tests look for another machine, and sandboxes have no network" if wants_network(run.log) else ""
    return f"with its gold patch {why}{network}{tried}"


def _list_tests(tests: Sequence[str]) -> str:
    return ", ".join(tests[:_SHOWN_TESTS]) + (", ..." if len(tests) > _SHOWN_TESTS else "")


def last_words(log: str, chars: int = 200) -> str:
    """Returns the end of a log on one line."""
    return one_line(log.strip()[-chars:])


async def prove_all(
    prover: Prover, instances: Sequence[Instance], done: Callable[[Instance, Proof | UntriedError], None], places: int
) -> None:
    """Proves instances, `places` at a time, those that need mending last. What else is raised ends all of them.

    Instances of one release wait for the same environment, so the first of each release come first.
    """
    room = asyncio.Semaphore(places)
    unmended: list[Unmended] = []

    async def tried(instance: Instance, work: Callable[[], Awaitable[Proof | Unmended]]) -> None:
        async with room:
            try:
                result: Proof | Unmended | UntriedError = await work()
            except UntriedError as error:
                result = error
        if isinstance(result, Unmended):
            unmended.append(result)
        else:
            done(instance, result)

    await _run_all(tried(instance, partial(prover.first, instance)) for instance in spread_releases(instances))
    await _run_all(tried(left.instance, partial(prover.mend, left)) for left in unmended)


async def _run_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all works. Raises what one of them raised first, which ended the others: its own words matter."""
    first: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
    if first is not None:
        raise first
