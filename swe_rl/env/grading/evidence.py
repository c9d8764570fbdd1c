"""From what a run shows to what it is worth: tests that never started, tests that failed, and forged results.

Invariants:
- Nothing that a patch prints or does makes its own run an infrastructure failure: that is decided by a run without it.
- A finding that the run without the patch shows as well says nothing about the patch.
- A test that only the log calls passed counts where it is so without the patch, or with the known fix.
- The runs without a patch and with the known fix are made when needed, once for an instance; failed ones are not kept.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from swe_rl.env.grading.log_check import DECISIVE
from swe_rl.env.instance import Instance
from swe_rl.env.protocol import Grade, NotStartedError
from swe_rl.sandbox.protocol import Workspace

if TYPE_CHECKING:
    from swe_rl.env.grading.script_run import ScriptRun

_WORDS = 300


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the tests of an instance do without any patch, or with the known fix."""

    started: bool
    witnessed: bool  # the witness was there and had the last word
    findings: frozenset[str]
    changed: frozenset[str]
    written: frozenset[str]
    unsigned: frozenset[str]
    words: str

    @classmethod
    def of(cls, run: "ScriptRun", grade: Grade) -> "Evidence":
        heard = run.testimony
        return cls(
            started=grade.started and not grade.timed_out,
            witnessed=heard.started and heard.finished,
            findings=frozenset(grade.findings),
            changed=heard.changed,
            written=heard.written,
            unsigned=grade.unsigned,
            words=grade.infra_hint or grade.log_tail[-_WORDS:],
        )


def findings_of(
    in_log: Iterable[str], run: "ScriptRun", said: Iterable[str], signed: frozenset[str] | None
) -> tuple[str, ...]:
    """`said`: tests that the log calls passed; `signed`: those that the witness calls so."""
    heard, claims = run.testimony, frozenset(said)
    wrong = {
        "witness_missing": run.witnessed and not heard.started and bool(claims),
        "results_forged": heard.forged,
        "results_unsigned": signed is not None and bool(claims - signed),
        "runner_changed": bool(heard.changed),
        "environment_changed": bool(heard.written),
        "ended_early": heard.started and not heard.finished,
    }
    names = [name for name in in_log if not (name == "no_closing_line" and wrong["ended_early"])]
    return (*names, *(name for name, is_so in wrong.items() if is_so))


class Evidences:
    """By instance and workspace."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Evidence] = {}
        self._locks: dict[tuple[int | str, ...], asyncio.Lock] = {}

    async def judge(
        self,
        instance: Instance,
        workspace: Workspace,
        run: "ScriptRun",
        grade: Grade,
        once: Callable[[str | None], Awaitable[Evidence]],
    ) -> Grade:
        """`once` runs the tests with another patch, or none. Raises NotStartedError where they do not start then."""
        if run.result is None or grade.timed_out:
            return grade
        suspicious = DECISIVE.intersection(grade.findings)
        if grade.started and not suspicious:
            return grade
        evidence = await self._asked(instance, workspace, None, once)
        if not grade.started:
            if not evidence.started:
                raise NotStartedError(
                    f"the tests of {instance.instance_id} did not start, and without the patch they do not either: "
                    f"{evidence.words}",
                    grade.log,
                )
            # A runner that crashed while it collected is not as it was, and has called nothing passed.
            left = tuple(name for name in grade.findings if name != "runner_changed")
            return replace(grade, findings=left).worthless("not_started")
        comparable = evidence.started  # else there is nothing that could excuse anything
        left = tuple(name for name in grade.findings if not (comparable and excused(name, run, grade, evidence)))
        if "results_unsigned" in left and not await self.unexplained(instance, workspace, grade.unsigned, once):
            left = tuple(name for name in left if name != "results_unsigned")
        grade = replace(grade, findings=left)
        return grade.worthless() if DECISIVE.intersection(left) else grade

    async def unexplained(
        self,
        instance: Instance,
        workspace: Workspace,
        unsigned: frozenset[str],
        once: Callable[[str | None], Awaitable[Evidence]],
    ) -> frozenset[str]:
        """Those of `unsigned` that the tests show neither with the known fix nor without a patch."""
        for change in (instance.patch, None):  # most rows need the first alone
            if unsigned and (change is None or change.strip()):
                unsigned -= (await self._asked(instance, workspace, change, once)).unsigned
        return unsigned

    async def _asked(
        self,
        instance: Instance,
        workspace: Workspace,
        change: str | None,
        once: Callable[[str | None], Awaitable[Evidence]],
    ) -> Evidence:
        environment = workspace.toolchain.folder if workspace.toolchain else ""
        key = (instance.instance_id, f"{workspace.image} {workspace.path} {environment}", "fix" if change else "")
        lock = self._locks.setdefault((id(asyncio.get_running_loop()), *key), asyncio.Lock())
        async with lock:
            evidence = self._known.get(key) or await once(change)
            if evidence.started:
                self._known[key] = evidence
            return evidence


def excused(finding: str, run: "ScriptRun", grade: Grade, evidence: Evidence) -> bool:
    """True where the tests show the same without the patch."""
    if finding == "runner_changed":
        return run.testimony.changed <= evidence.changed
    if finding == "environment_changed":
        return run.testimony.written <= evidence.written
    if finding == "results_unsigned":
        return grade.unsigned <= evidence.unsigned
    if finding in ("witness_missing", "ended_early"):
        return not evidence.witnessed
    return finding in evidence.findings
