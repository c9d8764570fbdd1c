"""Grades by one pytest session over an instance's test files, in a fresh sandbox.

Invariants:
- The sandbox starts from the pristine workspace; only the agent's patch comes in, and its changes to tests and to files
  that configure the test runner are put back.
- A patch that does not apply is a verdict (unresolved); a sandbox that fails is a GradeError and no verdict.
- A session that was killed from outside looks like a patch that kills its grader. It is run once more: what is killed
  twice is the patch's own doing.
"""

import hashlib
import random
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, PytestSession, end_of
from swe_rl.env.grading.alert import ALERT
from swe_rl.env.grading.apply import Applied, apply_patch, files_to_apply, fresh_sandbox, with_the_attempt_inside
from swe_rl.env.grading.blame import blames_the_attempt
from swe_rl.env.grading.evidence import EVIDENCES
from swe_rl.env.grading.second_look import Sessions, grade_of_poisoned, with_more_sessions
from swe_rl.env.grading.session import run_session, session_files
from swe_rl.env.grading.twin_trial import judge_with_twins
from swe_rl.env.patch_files import bytes_of
from swe_rl.env.pinning.named_files import data_patterns
from swe_rl.env.pinning.pinned import protected_paths
from swe_rl.env.twins.poisoned_files import doctest_files, poison_files
from swe_rl.env.twins.results import log_without_twins, without_twins
from swe_rl.env.twins.session import Counted, TwinDraw, put_twins
from swe_rl.sandbox.sandbox import Sandbox, SandboxProvider, Workspace, put_files

_APPLY_S = 120.0
_TEST_FOLDERS = ("tests",)
_MAX_SAMPLED = 40  # at most so many PASS_TO_PASS tests get twins: a twin takes about as long as its test
_STRICT = ("git apply --whitespace=nowarn",)


@blames_the_attempt
async def grade_by_pytest(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
) -> Grade:
    """Returns the verdict of one session over the files of FAIL_TO_PASS and PASS_TO_PASS, each run whole.

    Raises GradeError.
    """
    files = sorted({test.split("::")[0] for test in instance.fail_to_pass + instance.pass_to_pass})
    return await grade_session(instance, patch, workspace, sandboxes, timeout_s, files)


async def grade_session(
    instance: Instance,
    patch: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    files: Sequence[str],
) -> Grade:
    """Returns the verdict of one session over `files`.

    In a row that names no test, each test that pytest finds there counts, without those that are skipped. Where a row
    does not name each test, as many have to run as with the known fix. Other sessions follow where the first was
    killed, and where a twin did not fail. Raises GradeError.
    """
    runs = _Sessions(instance, workspace, sandboxes, timeout_s, files)
    is_alert = ALERT.ask()

    async def with_twins(change: str, draw: TwinDraw) -> Grade:
        async def plain(of_change: str) -> Grade:
            return await runs.run(of_change, draw)

        async def poisoned(of_change: str, look_seed: str) -> Grade:
            return await runs.run(of_change, draw, look_seed)

        verdict = await runs.run(change, draw)
        if verdict.session.killed:
            verdict = await runs.run(change, draw)
        if draw.is_none or (not verdict.session.twinned and not doctest_files(instance)):
            return verdict
        sessions = Sessions(poisoned, None if verdict.session.twinned else plain)
        return await with_more_sessions(instance, verdict, change, sessions, draw.seed, is_alert)

    async def without_twins_of(change: str | None) -> Grade:
        return await runs.run(change or "", TwinDraw.none())

    verdict = await judge_with_twins(instance, patch, with_twins)
    gives_nothing = not any(verdict.fail_to_pass.values())
    if gives_nothing or _names_each(instance, verdict) or not instance.patch.strip():
        return verdict
    left_out = await EVIDENCES.left_out_tests(instance, workspace, verdict.session.tests, without_twins_of)
    fail_to_pass = {**verdict.fail_to_pass, **dict.fromkeys(left_out, False)}
    return replace(verdict, fail_to_pass=fail_to_pass, resolved=verdict.resolved and not left_out)


def _names_each(instance: Instance, grade: Grade) -> bool:
    """Tells whether a row names each test that counts, not whole files or classes."""
    named = instance.fail_to_pass + instance.pass_to_pass
    return bool(named) and all(test in grade.session.tests for test in named)


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Runs the test files of one instance with one patch or another, each time in a fresh sandbox."""

    instance: Instance
    workspace: Workspace
    sandboxes: SandboxProvider
    timeout_s: float
    files: Sequence[str]

    async def run(self, patch: str, draw: TwinDraw, look_seed: str = "") -> Grade:
        """Returns the grade of one session with a patch.

        With a `look_seed`, no function of a test with twins expects what right code gives, and neither do doctests.
        Raises GradeError.
        """
        digest = hashlib.sha256(bytes_of(patch)).hexdigest()[:8]
        instance = self.instance
        names_none = not instance.fail_to_pass + instance.pass_to_pass
        whole_files = [f":(top,literal){path}" for path in self.files if names_none]
        protected = protected_paths(instance, _TEST_FOLDERS, [*whole_files, *data_patterns(instance.test_patch)])
        files = {**session_files(), **files_to_apply(patch, protected), "test.patch": bytes_of(instance.test_patch)}
        async with fresh_sandbox(instance, self.workspace, self.sandboxes, digest) as sandbox:
            folder = await put_files(sandbox, files)
            with with_the_attempt_inside(instance):
                return await self._run_with_patch(sandbox, folder, draw, look_seed)

    async def _run_with_patch(self, sandbox: Sandbox, folder: str, draw: TwinDraw, look_seed: str) -> Grade:
        instance = self.instance
        applied = await apply_patch(sandbox, folder, _APPLY_S, _STRICT, _lines_for_tests(instance))
        if not applied.ok:
            return self._grade_of(PytestSession(log=applied.output), applied, 0.0)
        # Each test counts in a row that names none to be fixed.
        limit = _MAX_SAMPLED if instance.fail_to_pass and not draw.is_whole else None
        counted = Counted(
            instance.fail_to_pass,
            instance.pass_to_pass,
            limit,
            sample=draw.seed,
            weak=draw.weak,
            only=draw.only,
            companions_first=draw.is_whole,
        )
        rng = random.Random(look_seed or draw.seed)
        names = await put_twins(sandbox, self.files, rng, draw.weak, counted, all_wrong=bool(look_seed))
        doctests = await poison_files(sandbox, instance, rng, draw.weak) if look_seed and not names.twin_of else ""
        session, tests_s = await run_session(sandbox, folder, self.files, self.timeout_s)
        results = without_twins(session.tests, names)
        log = log_without_twins(session.log, names)
        session = replace(
            session,
            tests=results.tests,
            twinned=results.passed,
            twinned_failed=results.failed,
            passed_twins=results.unfailed,
            companioned=frozenset(names.companions),
            unclear=session.unclear or results.unclear,
            log=log,
        )
        grade = self._grade_of(session, applied, tests_s)
        return grade_of_poisoned(grade, doctests) if doctests else grade

    def _grade_of(self, session: PytestSession, applied: Applied, tests_s: float) -> Grade:
        fail_to_pass = session.passed(self._fail_to_pass(session))
        pass_to_pass = session.passed(self.instance.pass_to_pass)
        return Grade(
            resolved=bool(fail_to_pass) and all((fail_to_pass | pass_to_pass).values()),
            patch_applied=applied.ok,
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
            log_tail=end_of(session.log),
            duration_s=applied.duration_s + tests_s,
            timed_out="timed_out" in session.findings,
            findings=session.findings,
            restored=applied.restored,
            tests_s=tests_s,
            session=session,
        )

    def _fail_to_pass(self, session: PytestSession) -> Collection[str]:
        """Returns the tests that have to be fixed: those that the row names, or all that say something."""
        if self.instance.fail_to_pass or self.instance.pass_to_pass or not self.files:
            return self.instance.fail_to_pass
        return [test for test, outcome in session.tests.items() if outcome != "skipped"]


def _lines_for_tests(instance: Instance) -> str:
    """Returns lines of bash for the end of `apply_patch`, which bring the row's tests.

    Then they remove what tested code could compare the tests with, to tell them from their twins. No code of the patch
    has run by then. A command of its own for each step would take a twentieth of a small grading.
    """
    kept = " ".join(f"! -name {name}" for name in session_files())
    say_failure = f"echo {shlex.quote(f'{instance.instance_id}: its own test patch does not apply')}"
    apply_tests = f'git apply --whitespace=nowarn "$d/test.patch" || {{ {say_failure}; exit 98; }}'
    bring_tests = apply_tests if instance.test_patch.strip() else ":"
    return f'{bring_tests}\nfind "$d" -mindepth 1 -maxdepth 1 {kept} -exec rm -rf {{}} + || exit 98'
