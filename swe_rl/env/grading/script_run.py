"""Runs an evaluation script once in a fresh sandbox: with a patch, or without any to compare with.

Invariants:
- Twins of the tests come into the sandbox when nothing of the installation runs any more.
- The log has no colours: most readers know no line that begins with one.
- What is the same without a patch is the repository's own way, and no trick.
- Tests that do not start without a patch either are infrastructure; where they do, the patch itself is why not.
"""

import random
import re
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_rl.dataset.instance import Instance
from swe_rl.env.grading.apply import APPLY_COMMANDS, Applied, apply_patch, files_to_apply, set_up
from swe_rl.env.grading.blame import with_the_attempt_inside
from swe_rl.env.grading.log_check import EXIT, commands_of_tests, mark_script
from swe_rl.env.grading.log_text import strip_escapes
from swe_rl.env.grading.stages import Stages, files_of_tests, stages_of, with_session_names
from swe_rl.env.grading.twin_trial import sample_of
from swe_rl.env.patch_files import added_tests, bytes_of
from swe_rl.env.pinning.pinned import own_packages, protected_paths
from swe_rl.env.pinning.put_back import put_back, tree_lines
from swe_rl.env.pinning.runner_files import data_patterns, patterns_of, programs_named_by
from swe_rl.env.protocol import GradeError, PytestSession
from swe_rl.env.twins.make import TwinnedTests
from swe_rl.env.twins.poisoned_files import poison_files
from swe_rl.env.twins.session import Counted, log_without_twins, poison_a_test, put_twins, without_twins
from swe_rl.sandbox.protocol import ExecResult, Sandbox, SandboxError, SandboxProvider, Workspace, put_files

MAX_LOG_BYTES = 32 * 1024**2
_APPLY_S = 300.0
# The script is read whole into memory before it runs: the code that it tests could change a script on disk. It runs in
# the image's own environment: with the sandbox's GIT_CONFIG_GLOBAL=/dev/null the script's `git config --global` would,
# as root, put a file in the place of /dev/null.
_RUN_SCRIPT = (
    "set -- %s; for name in $(compgen -e GIT_) $(compgen -e PYTHON); do unset $name; done; "
    '{ cat "$1/eval.sh"; rm -rf "$1"; } | '
    "bash -c 'unset script; script=$(cat); exec </dev/null; eval \"$script\"'"
)
_NOT_PUT_BACK = "The tests' own files could not be put back after the installation, so no test was run."
_MAX_SAMPLED = 20  # at most so many PASS_TO_PASS tests get twins
_FAILED_STATUS = re.compile(rf"({EXIT}: )1\b")
_UNTOUCHED = Applied(True, (), "", 0.0)


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """Holds what one run of a script showed. `result` is None where the patch does not apply."""

    applied: Applied
    result: ExecResult | None
    nonce: str
    names: TwinnedTests = field(default_factory=TwinnedTests)
    log: str = ""  # readers get this: the output without twins
    poisoned: str = ""  # the test of this name got another expectation


@dataclass(frozen=True, slots=True)
class TwinPlan:
    """Says which tests of a run get twins.

    `seed` decides about the twins, and `weak` are names of tests that get none. With `alone` one test gets another
    expectation in place, for a row that is judged by the exit status of its tests.
    """

    seed: str
    weak: frozenset[str]
    counted: Counted
    alone: bool = False


async def run_script(
    instance: Instance,
    patch: str | None,
    script: str,
    workspace: Workspace,
    sandboxes: SandboxProvider,
    timeout_s: float,
    commands: Sequence[str] = APPLY_COMMANDS,
    plan: TwinPlan | None = None,
) -> ScriptRun:
    """Returns what a run of `script` shows.

    With `patch` None the tree stays as it is. Without a plan there are no twins.

    Raises GradeError, also for a sandbox that fails.
    """
    nonce = secrets.token_hex(16)
    try:
        sandbox = await sandboxes.create(workspace, owner=f"grade-{instance.instance_id}-{nonce[:8]}")
        try:
            await set_up(sandbox, instance)
            return await _run_tests(sandbox, instance, patch, script, timeout_s, commands, nonce, plan)
        finally:
            await sandbox.close()
    except SandboxError as error:
        raise GradeError(f"grading {instance.instance_id} failed: {error}") from error


async def _run_tests(
    sandbox: Sandbox,
    instance: Instance,
    patch: str | None,
    script: str,
    timeout_s: float,
    commands: Sequence[str],
    nonce: str,
    plan: TwinPlan | None,
) -> ScriptRun:
    commands_of_row = commands_of_tests(script)
    of_the_row = [*patterns_of(commands_of_row), *data_patterns(instance.test_patch)]
    of_the_row += await programs_named_by(sandbox, commands_of_row)
    files = files_to_apply(patch or "", protected_paths(instance, more=of_the_row), own_packages(instance))
    folder = await put_files(sandbox, {**files, "test.patch": bytes_of(instance.test_patch)})
    with with_the_attempt_inside(instance):
        return await _run_with_patch(sandbox, instance, patch, script, folder, timeout_s, commands, nonce, plan)


async def _run_with_patch(
    sandbox: Sandbox,
    instance: Instance,
    patch: str | None,
    script: str,
    folder: str,
    timeout_s: float,
    commands: Sequence[str],
    nonce: str,
    plan: TwinPlan | None,
) -> ScriptRun:
    applied = _UNTOUCHED
    stages = stages_of(script, secrets.token_hex(8))
    setup = stages.setup if stages else ""
    if patch is not None:
        applied = await apply_patch(sandbox, folder, _APPLY_S, commands, tree_lines(instance, setup))
        if not applied.ok:
            return ScriptRun(applied, None, nonce)

    def marked(tests: str) -> str:
        return mark_script(tests, nonce)

    async def put_back_again() -> bool:
        return await put_back(sandbox, folder, applied.output, instance, setup)

    if stages is None:
        result = await _execute_script(sandbox, marked(script), timeout_s)
        staged = ScriptRun(_UNTOUCHED, result, "", log=result.output)
    else:
        staged = await _run_in_stages(sandbox, instance, stages, timeout_s, plan, marked, put_back_again)
    return replace(staged, applied=applied, nonce=nonce)


async def _run_in_stages(
    sandbox: Sandbox,
    instance: Instance,
    stages: Stages,
    timeout_s: float,
    plan: TwinPlan | None,
    marked: Callable[[str], str],
    put_back_again: Callable[[], Awaitable[bool]],
) -> ScriptRun:
    """Runs the first stage, puts the grader's files back, and runs the tests.

    `marked` gives the second stage what no code of the first one may see. `put_back_again` undoes what the first stage
    did to the grader's files, and tells whether it could. Raises SandboxError.
    """
    names = TwinnedTests()
    first = await _execute_script(sandbox, stages.setup, timeout_s)
    if first.timed_out or not stages.came_to_an_end(first.output):
        return ScriptRun(_UNTOUCHED, first, "", log=first.output)
    if not await put_back_again():
        said = f"{stages.without_end(first.output)}\n{_NOT_PUT_BACK}\n"
        return ScriptRun(_UNTOUCHED, replace(first, exit_code=1, output=said), "", log=said)
    poisoned = ""
    tests = stages.tests
    if plan is not None:
        paths = await files_of_tests(sandbox, instance, tests)
        rng = random.Random(plan.seed)
        if plan.alone:
            poisoned = await poison_a_test(sandbox, paths, rng, plan.weak, plan.counted)
            poisoned = poisoned or await poison_files(sandbox, instance, rng, plan.weak)
        else:
            names = await put_twins(sandbox, paths, rng, plan.weak, plan.counted)
            tests = with_session_names(tests, names)
    left_s = max(1.0, timeout_s - first.duration_s)
    # Twins may take as long as their tests.
    second = await _execute_script(sandbox, marked(tests), 2.0 * left_s if names.twin_of else left_s)
    printed = stages.without_end(first.output)
    result = replace(second, output=printed + second.output, duration_s=first.duration_s + second.duration_s)
    log = printed + (log_without_twins(second.output, names) if names.twin_of else second.output)
    return ScriptRun(_UNTOUCHED, result, "", names=names, log=log, poisoned=poisoned)


async def _execute_script(sandbox: Sandbox, script: str, timeout_s: float) -> ExecResult:
    """Runs a script that no file of the sandbox holds while it runs. Raises SandboxError."""
    folder = shlex.quote(await put_files(sandbox, {"eval.sh": script.encode()}))
    result = await sandbox.exec(_RUN_SCRIPT % folder, timeout_s=timeout_s, max_output_bytes=MAX_LOG_BYTES)
    return replace(result, output=strip_escapes(result.output))


def counted_tests(instance: Instance) -> Counted:
    """Returns which of a row's tests get twins.

    A row that names no tests means those that its test patch brings.
    """
    return Counted(
        instance.fail_to_pass or tuple(added_tests(instance.test_patch)),
        instance.pass_to_pass,
        max_sampled=_MAX_SAMPLED,
        sample=sample_of(instance),
        by_docstring=instance.log_parser == "parse_log_django",
    )


def log_as_expected(run: ScriptRun) -> str:
    """Returns the log as a reader expects it: without twins, and without the exit status that they alone cause."""
    return _FAILED_STATUS.sub(r"\g<1>0", run.log) if run.names.twin_of else run.log


def session_of(statuses: Mapping[str, str], run: ScriptRun) -> PytestSession:
    """Returns what a log's statuses, by the names that tests have in the session, say of its tests and twins."""
    words = {"ERROR": "failed", "XFAIL": "xfailed", "XPASS": "xpassed"}
    outcomes = {test: words.get(status, status.lower()) for test, status in statuses.items()}
    results = without_twins(outcomes, run.names)
    return PytestSession(
        results.tests, twinned=results.passed, twinned_failed=results.failed, passed_twins=results.unfailed
    )
