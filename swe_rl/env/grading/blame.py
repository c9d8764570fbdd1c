"""Decides whose fault it is that a grading came to no verdict: the attempt's or the machine's.

One rule decides it for every grader. A failure before the attempt's files came into the sandbox is the machine's. A
later failure is the attempt's if the same grading of the known fix does not show it and a second grading of the attempt
does. Where no fix is known, a change that fixes nothing takes its place. Everything else is the machine's.

Invariants:
- A failure of the attempt is a verdict: nothing counts as passed, and the finding is `grading_broken`.
- A failure of the machine is a GradeError, which is no verdict and never a reward.
- The known fix itself, and a change that fixes nothing, are blamed for nothing: attempts are compared with them.
- No test is run of a patch that gives the name of an installed package to a new module (`cheating/installed_names.py`).
"""

import errno
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec

from swe_rl.dataset.instance import Instance
from swe_rl.env.cheating.installed_names import refuse_installed_names
from swe_rl.env.env import Grade, GradeError
from swe_rl.env.grading.apply import UndecidedError, with_the_attempt_inside
from swe_rl.env.patch_files import NOOP_PATCH
from swe_rl.errors import SweRlError
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace

BROKEN = "grading_broken"
_log = logging.getLogger(__name__)
# The machine has no room for anybody: to grade once more would not help, and no attempt may be blamed for it.
_OF_THE_MACHINE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE})

Options = ParamSpec("Options")
AnyGrader = Callable[Concatenate[Instance, str, Workspace, SandboxProvider, float, Options], Awaitable[Grade]]


def blames_the_attempt(grader: AnyGrader[Options]) -> AnyGrader[Options]:
    """Returns a grader that tells failures of the attempt from failures of the machine.

    Its verdict has the finding `grading_broken` for the former, and it raises GradeError for the latter. It runs no
    test of a patch with refused names.
    """

    @functools.wraps(grader)
    async def grade(
        instance: Instance,
        patch: str,
        workspace: Workspace,
        sandboxes: SandboxProvider,
        timeout_s: float,
        /,
        *args: Options.args,
        **options: Options.kwargs,
    ) -> Grade:
        async def grade_once(change: str) -> Grade:
            with _crash_is_undecided(instance):
                with with_the_attempt_inside(instance):
                    refused = await refuse_installed_names(instance, change, workspace, sandboxes)
                if refused:
                    return refused
                return await grader(instance, change, workspace, sandboxes, timeout_s, *args, **options)

        try:
            return await grade_once(patch)
        except UndecidedError as error:
            return await _decide_verdict(error, instance, patch, grade_once)

    return grade


async def _decide_verdict(
    error: UndecidedError, instance: Instance, patch: str, grade_once: Callable[[str], Awaitable[Grade]]
) -> Grade:
    """Returns a verdict on an attempt whose grading broke. Raises GradeError where the machine may have done it."""
    compared_with = instance.patch if instance.patch.strip() else NOOP_PATCH
    if patch in (compared_with, NOOP_PATCH):
        raise GradeError(str(error)) from error
    try:
        shown = await grade_once(compared_with)
    except GradeError as also:
        raise GradeError(f"{error}; it is so with a change that is known, too: {also}") from also
    if not shown.started or shown.timed_out:
        raise GradeError(str(error)) from error
    try:
        return await grade_once(patch)
    except UndecidedError as again:
        return Grade.failed(instance, str(again), BROKEN)


@contextmanager
def _crash_is_undecided(instance: Instance) -> Iterator[None]:
    """Raises UndecidedError for an exception that no grader foresees. A full disk stays what it is."""
    try:
        yield
    except SweRlError:
        raise
    except OSError as error:
        if error.errno in _OF_THE_MACHINE:
            raise
        raise UndecidedError(_words_of(error, instance)) from error
    except Exception as error:
        raise UndecidedError(_words_of(error, instance)) from error


def _words_of(error: Exception, instance: Instance) -> str:
    _log.warning("grading %s", instance.instance_id, exc_info=error)
    return f"grading {instance.instance_id} failed: {type(error).__name__}: {error!s:.300}"
