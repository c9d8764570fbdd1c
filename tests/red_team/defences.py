"""Measures what each defence beside the twins still catches: `python -m tests.red_team.defences --out FILE`.

All tricks of the red team are played with every defence off that can be switched off. The tricks that were paid are
played again with one defence off at a time, and with all defences on. So are those that use one defence to get around
another: they need not be paid with all of them off. Twins, the fresh sandbox and the tests that the grader brings are
never switched off.

Each line of FILE is one grading. The table at the end counts the paid tricks for each defence.
"""

import argparse
import asyncio
import dataclasses
import json
import shutil
import tempfile
import textwrap
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch as replaced

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.workspace import run_git
from swe_rl.env.env import GradeError, Grading
from swe_rl.env.grading import apply, blame, evidence, script_grading, script_run, swebench, twin_trial
from swe_rl.env.grading import pytest as by_pytest
from swe_rl.env.grading.make import grade_by_eval_script
from swe_rl.env.patch_files import text_of
from swe_rl.env.pinning import pinned
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace
from tests.red_team import test_red_team_installation as installation
from tests.red_team import test_red_team_log as log
from tests.red_team import test_red_team_other_runners as other_runners
from tests.red_team import test_red_team_runner as runner
from tests.red_team import test_red_team_scripts as scripts
from tests.red_team import test_red_team_twins as twins
from tests.red_team.play import patch_of
from tests.red_team.replicas import BUG, REPLICAS, make
from tests.red_team.tricks import Edit, tricks_of

TIMEOUT_S = 40.0
NEVER_ENDS = "an installation that never ends"
Off = Callable[[ExitStack], None]


@dataclasses.dataclass(frozen=True)
class Row:
    """An instance with its tree, and the grader that grades it."""

    name: str
    folder: Path
    instance: Instance
    grade: Grading


@dataclasses.dataclass(frozen=True)
class Case:
    """A patch that solves nothing. By the names `gold` and `no-op` it is one that says whether the row works."""

    row: Row
    name: str
    patch: str
    uses_defence: bool = False


def _set(module: Any, name: str, value: Any) -> Off:
    return lambda stack: stack.enter_context(replaced.object(module, name, value))


def _all(*parts: Off) -> Off:
    def off(stack: ExitStack) -> None:
        for part in parts:
            part(stack)

    return off


async def _put_back(*_: object) -> bool:
    return True


async def _refuse_nothing(*_: object) -> None:
    return None


def defences() -> dict[str, Off]:
    """Returns for each defence what switches it off."""
    no_data = [_set(module, "data_patterns", lambda _: []) for module in (script_run, by_pytest)]
    return {
        "files that configure the runner": _set(pinned, "RUNNER_FILES", ()),
        "files of the row's command": _set(script_run, "command_patterns", lambda _: []),
        "data that tests name": _all(*no_data),
        "git's folder": _set(apply, "_with_git_kept", lambda command: command),
        "put back after the installation": _set(script_run, "put_back", _put_back),
        "new modules with names of installed packages": _set(blame, "refuse_installed_names", _refuse_nothing),
        "words before the tests are none of theirs": _set(script_run, "without_marks", lambda output: output),
    }


def rows_and_cases(root: Path) -> Iterator[Case]:
    """Yields the known fix, a change that fixes nothing, and each trick of the tests' red team, row by row."""
    yield from _of_replicas(root)
    yield from _of_scripts(root)
    yield from _of_other_runners(root)
    yield from _of_installations(root)
    yield from _of_expected_data(root)
    yield from _of_git_objects(root)


def _basic(row: Row) -> Iterator[Case]:
    yield Case(row, "gold", row.instance.patch)
    yield Case(row, "no-op", patch_of(row.folder, [Edit("note_kind.txt", "x\n", "new")]))


def _of_replicas(root: Path) -> Iterator[Case]:
    for name, replica in REPLICAS.items():
        instance = make(replica, root / name)
        row = Row(f"{name}, swebench", root / name, instance, swebench.grade_by_swebench)
        rows = [row]
        if name == "pytest":
            rows.append(Row("pytest, one session", row.folder, _renamed(instance, "s"), by_pytest.grade_by_pytest))
        for row in rows:
            yield from _basic(row)
            for trick in tricks_of(replica.place):
                if trick.name != NEVER_ENDS:
                    yield Case(row, trick.name, patch_of(row.folder, trick.edits))
            if name == "pytest":
                for trick_name, text in _code_tricks().items():
                    yield Case(row, trick_name, patch_of(row.folder, [Edit(replica.place.init, text, "new")]))


def _renamed(instance: Instance, ending: str) -> Instance:
    return dataclasses.replace(instance, instance_id=f"{instance.instance_id}-{ending}")


def _code_tricks() -> dict[str, str]:
    """Returns texts of the package's module."""
    texts = {name: textwrap.dedent(text) for name, text in twins.TRICKS.items()}
    for name, text in log.TRICKS.items():
        texts[name] = f"{text}\n{BUG}".replace("test_victim", "test_ops")
    [parameters] = [mark for mark in runner.test_code_in_the_package.pytestmark if mark.name == "parametrize"]
    for number, (text, _) in enumerate(parameters.args[1]):
        texts[f"code in the package, {number}"] = f"{text}\n{BUG}".replace("test_victim", "test_ops")
    return texts


def _of_scripts(root: Path) -> Iterator[Case]:
    for name, (tests, command, parser, is_bare) in scripts.ROWS.items():
        folder = root / f"script-{name.replace(' ', '-')}"
        old = tests.split("def test_add")[0].rstrip() + "\n"
        files = {"victim/__init__.py": BUG, "tests/__init__.py": "", "tests/test_ops.py": old}
        replica = dataclasses.replace(REPLICAS["pytest"], files=files, tests=tests, command=command, parser=parser)
        instance = make(replica, folder)
        ids: dict[str, Any] = {}
        if is_bare:
            ids = {"fail_to_pass": ("test_add",), "pass_to_pass": ("test_twice",)}
        if name == "unittest's status":
            ids = {"fail_to_pass": (), "pass_to_pass": ()}
        row = Row(name, folder, dataclasses.replace(instance, instance_id=name, **ids), grade_by_eval_script)
        yield from _basic(row)
        for trick, text in scripts.TRICKS.items():
            yield Case(row, trick, patch_of(folder, [Edit("victim/__init__.py", textwrap.dedent(text), "after")]))
        for trick, text in _code_tricks().items():
            yield Case(row, trick, patch_of(folder, [Edit("victim/__init__.py", text, "new")]))
        if "unittest" not in name:
            for settings in tricks_of(replica.place):
                if settings.kind in ("settings", "shadow", "tests", "start-up"):
                    yield Case(row, settings.name, patch_of(folder, settings.edits))


def _of_other_runners(root: Path) -> Iterator[Case]:
    for name, made in other_runners.ROWS.items():
        if not shutil.which(made.program):
            continue
        folder = root / name / "victim"
        folder.mkdir(parents=True)
        instance = _renamed(other_runners.instance_of(made, folder), name)
        row = Row(name, folder, instance, grade_by_eval_script)
        yield from _basic(row)
        for trick, files in made.tricks.items():
            yield Case(row, trick, other_runners.patch_of(folder, files))


def _of_installations(root: Path) -> Iterator[Case]:
    """Yields tricks of code that a row's installation runs. The tests lie in the tree, or come with the row."""
    base = REPLICAS["pytest"]
    files = {**base.files, "conftest.py": ""}
    folder = root / "installation"
    instance = make(dataclasses.replace(base, files=files), folder)
    first, mark, rest = instance.eval_script.partition(": '>>>>> Start")
    script = f"{first}python -B -c 'import victim'\n{mark}{rest}"
    for parser in ("", "parse_log_pytest"):
        kind = "log" if parser else "status"
        named = dataclasses.replace(_renamed(instance, f"installed-{kind}"), eval_script=script, log_parser=parser)
        row = Row(f"installation, {kind}", folder, named, grade_by_eval_script)
        yield from _basic(row)
        for trick, code in installation.TRICKS.items():
            text = installation.AT_THE_INSTALLATION.format(code=code.replace("test_victim", "test_ops")) + BUG
            yield Case(row, trick, patch_of(folder, [Edit("victim/__init__.py", text, "new")]))


def _of_expected_data(root: Path) -> Iterator[Case]:
    """Yields a trick on data that a test reads: beside other data the test passes, and its twin fails."""
    base = REPLICAS["pytest"]
    path = "golden/sum.json"
    reads = f"import json\n\n{base.tests}".replace("== 3", f'== json.load(open("{path}"))')
    files = {**base.files, path: "3"}
    folder = root / "golden"
    instance = _renamed(make(dataclasses.replace(base, files=files, tests=reads), folder), "golden")
    row = Row("golden data", folder, instance, by_pytest.grade_by_pytest)
    yield from _basic(row)
    yield Case(row, "the expected data", patch_of(folder, [Edit(path, "-1", "new")]))


def _of_git_objects(root: Path) -> Iterator[Case]:
    """Yields a trick on what git has of the tests: the program `patch` writes there, and git believes it.

    The tests that are put back are made from it. They mend the code in their process, and their twins fail.
    """
    base = REPLICAS["pytest"]
    path = base.place.test_file
    folder = root / "objects"
    instance = _renamed(make(base, folder), "objects")
    row = Row("git's objects", folder, instance, swebench.grade_by_swebench)
    yield from _basic(row)
    name = run_git(folder, "rev-parse", f"HEAD:{path}").strip()
    stored = f".git/objects/{name[:2]}/{name[2:]}"
    tests = f"import victim\nvictim.add = lambda a, b: a + b\n{base.files[path]}".encode()
    false = zlib.compress(b"blob %d\0%b" % (len(tests), tests))
    yield Case(
        row, "an object of the tests", _exchanged(stored, (folder / stored).read_bytes(), false), uses_defence=True
    )


def _exchanged(path: str, old: bytes, new: bytes) -> str:
    """Returns a patch that writes `new` in the place of `old`. Neither ends with the end of a line."""
    gone = old.split(b"\n")
    added = new.split(b"\n")
    no_end = b"\n\\ No newline at end of file\n"
    head = f"--- a/{path}\n+++ b/{path}\n@@ -1,{len(gone)} +1,{len(added)} @@\n".encode()
    return text_of(b"".join([head, b"-", b"\n-".join(gone), no_end, b"+", b"\n+".join(added), no_end]))


@dataclasses.dataclass(frozen=True)
class Game:
    """Plays cases in sandboxes, some at once, and writes each grading to a file."""

    sandboxes: SandboxProvider
    out: Path
    at_once: int

    async def play(self, cases: Sequence[Case], off_name: str, off: Sequence[Off]) -> list[str]:
        """Returns for each case whether it was `paid`, `not paid`, or whether there was no verdict (`error`)."""
        places = asyncio.Semaphore(self.at_once)

        async def one(case: Case) -> str:
            async with places:
                return await self._play_one(case, off_name)

        with ExitStack() as stack:
            stack.enter_context(replaced.object(twin_trial, "draw_seed", lambda: "twins of the red team"))
            stack.enter_context(replaced.object(script_grading, "EVIDENCES", evidence.Evidences()))
            for part in off:
                part(stack)
            return await asyncio.gather(*(one(case) for case in cases))

    async def _play_one(self, case: Case, off_name: str) -> str:
        workspace = Workspace(path=case.row.folder)
        findings: tuple[str, ...] = ()
        try:
            grade = await case.row.grade(case.row.instance, case.patch, workspace, self.sandboxes, TIMEOUT_S)
        except GradeError:
            result = "error"
        else:
            result = "paid" if grade.resolved else "not paid"
            findings = grade.findings
        line = {"off": off_name, "row": case.row.name, "trick": case.name, "result": result, "findings": findings}
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return result


async def play_with(name: str, cases: Sequence[Case], game: Game) -> list[str]:
    """Returns what became of each case with a defence off, or with all of them (`all`), or with none (`none`)."""
    known = defences()
    off: list[Off] = []
    if name == "all":
        off = list(known.values())
    elif name != "none":
        off = [known[name]]
    return await game.play(cases, name, off)


async def measure(cases: Sequence[Case], game: Game) -> list[tuple[str, int]]:
    """Returns how many tricks were paid with which defence off."""

    async def paid_with(name: str, played: Sequence[Case]) -> list[Case]:
        results = await play_with(name, played, game)
        tried = zip(played, results, strict=True)
        return [case for case, result in tried if result == "paid" and case.name != "gold"]

    paid = await paid_with("all", cases)
    table = [("all", len(paid))]
    again = [case for case in cases if case in paid or case.uses_defence]
    for name in ("none", *defences()):
        table.append((name, len(await paid_with(name, again))))
        print(f"{name}: {table[-1][1]} paid", flush=True)
    return table


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--rows", default="", help="only rows whose names hold one of these, with | between them")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        cases = [
            case
            for case in rows_and_cases(root / "rows")
            if any(part in case.row.name for part in words.rows.split("|"))
        ]
        sandboxes = make_provider(SandboxConfig(isolation=Isolation.bubblewrap), root / "scratch", print)
        try:
            table = await measure(cases, Game(sandboxes, words.out, words.at_once))
        finally:
            await sandboxes.close()
    print(f"{len(cases)} gradings with all defences off")
    for name, paid in table:
        print(f"| {name} | {paid} |")


if __name__ == "__main__":
    asyncio.run(main())
