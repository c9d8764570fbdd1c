"""Runs an evaluation script in fresh sandboxes: with a patch, or without any to compare with.

Invariants:
- Twins of the tests come into the sandbox when nothing of the installation runs any more.
- The log has no colours: most readers know no line that begins with one.
- Nothing that is printed before the tests counts as the words of the tests.
"""

import random
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import PytestSession
from swe_rl.env.grading.apply import (
    APPLY_COMMANDS,
    Applied,
    apply_patch,
    files_to_apply,
    fresh_sandbox,
    with_the_attempt_inside,
)
from swe_rl.env.grading.log_check import EXIT, commands_of_tests, region_of, with_status, without_marks
from swe_rl.env.grading.log_text import failing_lines, strip_escapes
from swe_rl.env.grading.stages import Stages, files_of_tests, stages_of, with_session_names
from swe_rl.env.patch_files import added_tests, bytes_of
from swe_rl.env.pinning.named_files import command_patterns, data_patterns
from swe_rl.env.pinning.pinned import protected_paths
from swe_rl.env.pinning.put_back import put_back, tree_lines
from swe_rl.env.twins.make import TwinnedTests
from swe_rl.env.twins.poisoned_files import poison_files, write_files_anew
from swe_rl.env.twins.results import log_without_twins, without_twins
from swe_rl.env.twins.session import Counted, TwinDraw, put_twins
from swe_rl.sandbox.sandbox import ExecResult, Sandbox, SandboxProvider, Workspace, put_files, run_whole

MAX_LOG_BYTES = 32 * 1024**2
_APPLY_S = 300.0
# The script runs in the image's own environment: with the sandbox's GIT_CONFIG_GLOBAL=/dev/null its
# `git config --global` would, as root, put a file in the place of /dev/null.
_AS_THE_IMAGE = (
    "for name in $(compgen -e GIT_) $(compgen -e PYTHON); do unset $name; done; unset name; exec </dev/null\n"
)
_NOT_PUT_BACK = "The tests' own files could not be put back after the installation, so no test was run."
_MAX_SAMPLED = 20  # at most so many PASS_TO_PASS tests get twins
# Beside these lines pytest's status 1 has another reason than failed tests, or some tests did not run.
_MORE_THAN_FAILURES = re.compile(r"^(?:!+ |FAIL |ERROR:)|stopping after", re.MULTILINE)
_FAILED_STATUS = re.compile(rf"({EXIT}: )1\b")
_UNTOUCHED = Applied(True, (), "", 0.0)


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """Holds what one run of a script showed. `result` is None where the patch does not apply."""

    applied: Applied
    result: ExecResult | None
    names: TwinnedTests = field(default_factory=TwinnedTests)
    log: str = ""  # readers get this: the output without twins
    tests_began: bool = True  # else nothing of the output is a result
    poisoned: str = ""  # the tests of these files have to fail


@dataclass(frozen=True, slots=True)
class TwinPlan:
    """Says which tests of a run get twins.

    `seed` decides about the twins, and `weak` are names of tests that get none. With `is_poisoned` no function of a
    test with twins expects what right code gives. Where no test has any, the files of tests are changed to fail.
    """

    seed: str
    weak: frozenset[str]
    counted: Counted
    is_poisoned: bool = False


@dataclass(frozen=True, slots=True)
class RowScript:
    """Holds what all runs of a row's script have in common. `commands` apply a patch."""

    instance: Instance
    script: str
    workspace: Workspace
    sandboxes: SandboxProvider
    timeout_s: float
    commands: Sequence[str] = APPLY_COMMANDS

    async def run(self, patch: str | None, plan: TwinPlan | None = None) -> ScriptRun:
        """Returns what a run in a fresh sandbox shows.

        With `patch` None the tree stays as it is. Without a plan there are no twins.

        Raises GradeError, also for a sandbox that fails.
        """
        instance = self.instance
        async with fresh_sandbox(instance, self.workspace, self.sandboxes, secrets.token_hex(4)) as sandbox:
            of_the_row = [*command_patterns(commands_of_tests(self.script)), *data_patterns(instance.test_patch)]
            files = files_to_apply(patch or "", protected_paths(instance, more=of_the_row))
            folder = await put_files(sandbox, {**files, "test.patch": bytes_of(instance.test_patch)})
            with with_the_attempt_inside(instance):
                return await self._run_with_patch(sandbox, folder, patch, plan)

    async def _run_with_patch(
        self, sandbox: Sandbox, folder: str, patch: str | None, plan: TwinPlan | None
    ) -> ScriptRun:
        applied = _UNTOUCHED
        stages = stages_of(self.script, secrets.token_hex(8))
        setup = stages.setup if stages else ""
        if patch is not None:
            applied = await apply_patch(sandbox, folder, _APPLY_S, self.commands, tree_lines(self.instance, setup))
            if not applied.ok:
                return ScriptRun(applied, None)

        async def put_back_again() -> bool:
            return await put_back(sandbox, folder, applied.output, self.instance, setup)

        if stages is None:
            result = await _execute_script(sandbox, with_status(self.script), self.timeout_s)
            staged = ScriptRun(_UNTOUCHED, result, log=result.output)
        else:
            staged = await self._run_in_stages(sandbox, stages, plan, put_back_again)
        return replace(staged, applied=applied)

    async def _run_in_stages(
        self,
        sandbox: Sandbox,
        stages: Stages,
        plan: TwinPlan | None,
        put_back_again: Callable[[], Awaitable[bool]],
    ) -> ScriptRun:
        """Runs the first stage, puts the grader's files back, and runs the tests.

        `put_back_again` undoes what the first stage did to the grader's files, and tells whether it could. Raises
        SandboxError.
        """
        first = await _execute_script(sandbox, stages.setup, self.timeout_s)
        if first.timed_out or not stages.came_to_an_end(first.output):
            return ScriptRun(_UNTOUCHED, first, log=first.output, tests_began=False)
        if not await put_back_again():
            said = f"{stages.without_end(first.output)}\n{_NOT_PUT_BACK}\n"
            return ScriptRun(_UNTOUCHED, replace(first, output=said), log=said, tests_began=False)
        names = TwinnedTests()
        poisoned = ""
        tests = stages.tests
        if plan is None:
            await write_files_anew(sandbox, self.instance)
        else:
            paths = await files_of_tests(sandbox, self.instance, tests)
            rng = random.Random(plan.seed)
            names = await put_twins(sandbox, paths, rng, plan.weak, plan.counted, all_wrong=plan.is_poisoned)
            tests = with_session_names(tests, names)
            if plan.is_poisoned and not names.twin_of:
                poisoned = await poison_files(sandbox, self.instance, rng, plan.weak)
                if not poisoned:  # tests that expect what they did before would say nothing new
                    return ScriptRun(_UNTOUCHED, first, log=first.output, tests_began=False)
        left_s = max(1.0, self.timeout_s - first.duration_s)
        # Twins may take as long as their tests.
        second = await _execute_script(sandbox, with_status(tests), 2.0 * left_s if names.twin_of else left_s)
        # Code of the patch ran in the first stage, so its words are none of the tests'.
        printed = without_marks(stages.without_end(first.output))
        result = replace(second, output=printed + second.output, duration_s=first.duration_s + second.duration_s)
        log = printed + (log_without_twins(second.output, names) if names.twin_of else second.output)
        return ScriptRun(_UNTOUCHED, result, names=names, log=log, poisoned=poisoned)


async def _execute_script(sandbox: Sandbox, script: str, timeout_s: float) -> ExecResult:
    """Runs a script. No file of the sandbox holds it meanwhile: tested code could change one. Raises SandboxError."""
    result = await run_whole(sandbox, _AS_THE_IMAGE + script, timeout_s, max_output_bytes=MAX_LOG_BYTES)
    return replace(result, output=strip_escapes(result.output))


def counted_tests(instance: Instance, draw: TwinDraw) -> Counted:
    """Returns which of a row's tests get twins in a grading.

    A row that names no tests means those that its test patch brings.
    """
    return Counted(
        instance.fail_to_pass or tuple(added_tests(instance.test_patch)),
        instance.pass_to_pass,
        max_sampled=None if draw.is_whole else _MAX_SAMPLED,
        sample=draw.seed,
        weak=draw.weak,
        only=draw.only,
        companions_first=draw.is_whole,
        by_docstring=instance.log_parser == "parse_log_django",
    )


def log_as_expected(run: ScriptRun) -> str:
    """Returns the log as a reader expects it: without twins, and without the exit status that they alone cause."""
    return _FAILED_STATUS.sub(r"\g<1>0", run.log) if run.names.twin_of else run.log


def status_without_companions(output: str, status: int | None, names: TwinnedTests) -> int | None:
    """Returns the exit status that a lone pytest would have had without twins and copies.

    Returns None where its output does not tell: twins are the reason for the status 1 only if each of them failed, and
    none of them fails where the status is 0.
    """
    if status not in (0, 1):
        return status
    region = region_of(output)
    companions = names.twin_of.keys() | names.copy_of.keys()
    failed: set[str] = set()
    for line in failing_lines(region):
        of_line = companions & set(re.findall(r"\w+", line))
        if not of_line:
            return 1
        failed |= of_line
    if status == 0:
        return None if failed else 0
    is_told = names.twin_of.keys() <= failed and not _MORE_THAN_FAILURES.search(region)
    return 0 if is_told else None


def session_of(statuses: Mapping[str, str], run: ScriptRun) -> PytestSession:
    """Returns what a log's statuses, by the names that tests have in the session, say of its tests and twins."""
    words = {"ERROR": "failed", "XFAIL": "xfailed", "XPASS": "xpassed"}
    outcomes = {test: words.get(status, status.lower()) for test, status in statuses.items()}
    results = without_twins(outcomes, run.names)
    return PytestSession(
        results.tests,
        twinned=results.passed,
        twinned_failed=results.failed,
        passed_twins=results.unfailed,
        companioned=frozenset(run.names.companions),
        unclear=results.unclear,
    )
