"""Runs a user's own grader, which judges a change in place of `env.grading`.

Invariants:
- A grader that raises, hangs or returns no Grade causes a GradeError: the attempt is tried again, then masked.
- Its verdicts are not remembered: only a suite of ours is known to say the same again.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable
from typing import Protocol

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.ranges import LARGEST_REWARD
from swe_rl.config.schema import EnvConfig, GraderConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, GradeError, Grading
from swe_rl.errors import SweRlError
from swe_rl.extension.find import Foreign
from swe_rl.extension.make import describe_failure, describe_value, is_usable_reward, make_extension
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace

# A grading may take so many times its limit, because its sandbox is waited for and started first.
_PATIENCE = 3.0
GRACE_S = 60.0


class Grader(Protocol):
    """Gives the verdict on a change, in every environment that is part of swe_rl."""

    @abstractmethod
    async def grade(
        self, instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
    ) -> Grade:
        """Returns the verdict on `patch`: what the agent changed since the base commit, as git writes it.

        Nothing in the patch is to be trusted. The grader runs what it runs in a fresh sandbox of `workspace`, which it
        closes. `timeout_s` is the time for the tests themselves. Whatever it raises is a failure of infrastructure, and
        so is to take three times as long and a minute.
        """
        ...


class ForeignGrader:
    """Calls a user's own grader within a time limit."""

    def __init__(self, grader: Grader, maker: Foreign, *, grace_s: float = GRACE_S) -> None:
        self._grader = grader
        self._maker = maker
        self._grace_s = grace_s

    async def grade(
        self, instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider, timeout_s: float
    ) -> Grade:
        """Returns the verdict of the grader. Raises GradeError where it gives none."""
        verdict = self._grader.grade(instance, patch, workspace, sandboxes, timeout_s)
        return await await_grade(verdict, instance, self._maker, timeout_s, self._grace_s)


async def await_grade(
    verdict: Awaitable[Grade], instance: Instance, maker: Foreign, timeout_s: float, grace_s: float = GRACE_S
) -> Grade:
    """Returns what a user's own method `grade` comes to.

    Raises GradeError where it raises, takes too long or returns no Grade. Errors of ours keep their type.
    """
    limit_s = _PATIENCE * timeout_s + grace_s
    try:
        grade = await asyncio.wait_for(verdict, limit_s)
    except SweRlError:
        raise
    except TimeoutError as error:
        said = f"{maker}: its method grade did not end within {limit_s:g} s"
        raise GradeError(f"{instance.instance_id}: {said}") from error
    except Exception as error:
        raise GradeError(f"{instance.instance_id}: {describe_failure(maker, 'grade', error)}") from error
    if not isinstance(grade, Grade):
        raise GradeError(f"{maker}: its method grade must return swe_rl.api.Grade, not {grade!r:.80}")
    if grade.score is not None and not is_usable_reward(grade.score):
        raise GradeError(
            f"{instance.instance_id}: {maker}: its method grade gave the score {describe_value(grade.score)}, not a "
            f"finite number (the largest size is {LARGEST_REWARD:g})"
        )
    return grade


def make_grader(config: GraderConfig, env: EnvConfig) -> Grading | None:
    """Returns the user's own grader, or None where `env.grading` says who grades.

    Raises ExtensionError, and UserError for a name that nobody has.
    """
    ours = {"default": "swe_rl.env.grading.foreign.no_grader"}
    grader, maker = make_extension(ExtensionKind.grader, config, {"config": env}, ours)
    return None if maker is None else ForeignGrader(grader, maker).grade


def no_grader() -> None:
    """Stands for `grader=default`: the grader that `env.grading` names."""
