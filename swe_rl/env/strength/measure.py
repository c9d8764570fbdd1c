"""Measures how many wrong patches the tests of one instance reject.

Invariants:
- A wrong patch is graded as an agent's would be: same sandboxes, same grader.
- The gold patch is graded first. Where it is not resolved, nothing is said about the tests.
- After the budget is spent no further wrong patch is begun. One that it cuts off got no verdict.
- A wrong patch that takes much longer than the gold patch is rejected, as it would be for an agent.
"""

import asyncio
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.env import Grade, GradeError, GradesInPlace
from swe_rl.env.grading.apply import set_up
from swe_rl.env.patch_files import bytes_of, text_of
from swe_rl.env.proof.record import Provable
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.strength.meter import Meter
from swe_rl.env.strength.record import MutantTally, Strength, Survivor, WrongKind
from swe_rl.env.strength.wrong import Sides, WrongPatch, code_paths, wrong_patches
from swe_rl.sandbox.sandbox import Sandbox, SandboxError, SandboxProvider, put_files

_APPLY_S = 120.0
# This comes on top of the gold patch's time: starting takes some seconds, whatever the tests do.
_LEAST_S = 10.0
# A wrong patch may take so many times as long as the gold patch.
_TIMES_GOLD = 5.0


class UnmeasuredError(BuildError):
    """Says that infrastructure kept a measurement from being made."""


@dataclass(frozen=True, slots=True)
class StrengthMeasure:
    """Measures the strength of the tests of instances.

    `mutants` is the number of mutants that are graded of each instance. `tick` is called after each graded patch.
    """

    env: Provable
    sandboxes: SandboxProvider
    mutants: int
    budget_s: float
    timeout_s: float
    tick: Callable[[], None] = lambda: None

    async def measure(self, instance: Instance, siblings: Sequence[str] = ()) -> Strength:
        """Returns what the tests of an instance make of its wrong patches.

        Raises UnmeasuredError where the gold patch got no verdict or is not resolved.
        """
        try:
            wrong = await self._wrong_patches(instance, siblings)
            if isinstance(wrong, str):
                return _date_strength(Strength({}, reason=wrong))
            limit_s = await self._limit_s(instance)
            return _date_strength(await self._graded(instance, wrong, limit_s))
        except (GradeError, SandboxError, InstanceError) as error:
            raise UnmeasuredError(f"its strength could not be measured: {error}") from error

    async def _wrong_patches(self, instance: Instance, siblings: Sequence[str]) -> list[WrongPatch] | str:
        """Returns the wrong patches in the order in which they are graded, or the reason why there is none."""
        if isinstance(self.env, GradesInPlace):
            return "its solution is a script and no patch: no wrong variant of it can be made"
        files = await self._files(instance)
        made = wrong_patches(instance, files, self.mutants)
        attempts = [WrongPatch(WrongKind.sibling, "an attempt of an earlier run", patch, patch) for patch in siblings]
        emptied = [patch for patch in made if patch.kind is WrongKind.empty_function]
        mutants = [patch for patch in made if patch.kind is WrongKind.mutant]
        return [*emptied, *attempts, *mutants] or "no wrong variant of its gold patch can be made"

    async def _files(self, instance: Instance) -> dict[str, Sides]:
        """Returns the code that the gold patch changes, without it and with it, by path. A sandbox applies the patch.

        Raises GradeError where the gold patch does not apply, and SandboxError.
        """
        paths = code_paths(instance.patch)
        if not paths:
            return {}
        workspace = await asyncio.to_thread(self.env.workspace, instance)
        sandbox = await self.sandboxes.create(workspace, owner=f"strength-{instance.instance_id}")
        try:
            await set_up(sandbox, instance)
            before = {path: None if is_new else await _read_text(sandbox, path) for path, is_new in paths.items()}
            folder = await put_files(sandbox, {"gold.patch": bytes_of(instance.patch)})
            command = f"git apply --whitespace=nowarn {shlex.quote(folder)}/gold.patch"
            applied = await sandbox.exec(command, timeout_s=_APPLY_S)
            if applied.exit_code:
                raise GradeError(f"its gold patch does not apply: {applied.output[-300:]}")
            after = {path: await _read_text(sandbox, path) for path in paths}
        finally:
            await sandbox.close()
        return {path: Sides(before[path], text) for path, text in after.items()}

    async def _limit_s(self, instance: Instance) -> float:
        """Returns how long the grading of a wrong patch may take.

        Raises UnmeasuredError where the gold patch fails.
        """
        grade = await self.env.grade(instance, instance.patch, self.sandboxes, self.timeout_s)
        if not grade.resolved:
            raise UnmeasuredError("its gold patch does not resolve it just now")
        return min(self.timeout_s, _LEAST_S + _TIMES_GOLD * max(grade.tests_s, grade.duration_s))

    async def _graded(self, instance: Instance, wrong: Sequence[WrongPatch], limit_s: float) -> Strength:
        """Grades the wrong patches one after another until the budget is spent, and returns the counts."""
        meter = Meter(self.sandboxes)
        counts = {kind.value: [0, 0] for kind in WrongKind if any(patch.kind is kind for patch in wrong)}
        survivors: list[Survivor] = []
        no_verdict = not_tried = 0
        for number, patch in enumerate(wrong):
            left_s = self.budget_s - meter.cpu_s
            if left_s <= 0:
                not_tried = len(wrong) - number
                break
            grade = await self._grade(instance, patch, meter, min(limit_s, max(left_s, _LEAST_S)))
            self.tick()
            is_cut_off = grade is not None and grade.timed_out and left_s < limit_s
            if grade is None or is_cut_off:
                no_verdict += grade is None
                not_tried += is_cut_off
                continue
            counts[patch.kind.value][0] += 1
            if grade.resolved:
                counts[patch.kind.value][1] += 1
                survivors.append(Survivor(patch.kind, patch.what, patch.change))
        by_kind = {kind: MutantTally(*count) for kind, count in counts.items()}
        reason = "" if any(tally.graded for tally in by_kind.values()) else "no wrong patch got a verdict"
        return Strength(by_kind, tuple(survivors), not_tried, no_verdict, round(meter.cpu_s, 1), reason)

    async def _grade(self, instance: Instance, patch: WrongPatch, meter: Meter, limit_s: float) -> Grade | None:
        """Returns the grade of a wrong patch, or None where there is no verdict.

        There is none where the grading itself failed, and none where the patch did not apply.
        """
        try:
            grade = await self.env.grade(instance, patch.patch, meter, limit_s)
        except (GradeError, SandboxError):
            return None
        return grade if grade.patch_applied else None


async def _read_text(sandbox: Sandbox, path: str) -> str:
    return text_of(await sandbox.read_file(path))


def _date_strength(strength: Strength) -> Strength:
    return replace(strength, made_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
