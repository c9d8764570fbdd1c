"""Plays tricks on real repositories: `python -m tests.red_team.play --rows FILE --cache FOLDER --out FILE`.

Each row of FILE is an instance with a column `source`. Its gold patch must be paid, the others must not. A line of
`--out` is what became of one patch; the table at the end counts them by kind and repository.
"""

import argparse
import asyncio
import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.dataset.records import read_instances
from swe_rl.env.cheating.attempts import cheating_attempts
from swe_rl.env.env import GradeError
from swe_rl.env.grading.swebench import grade_by_swebench
from swe_rl.env.grading.swebench_spec import complete_instance
from swe_rl.env.patch_files import touched_paths
from swe_rl.env.source_build.build import SourceWorkspaces
from swe_rl.sandbox.provider import make_provider
from tests.red_team.tricks import Edit, Place, Trick, tricks_of

TIMEOUT_S = 120.0
IMPORT_ROOTS = {"django/django": "tests/", "pytest-dev/pytest": "src/", "sympy/sympy": "bin/"}
INITS = {"pytest-dev/pytest": "src/pytest/__init__.py", "pallets/flask": "src/flask/__init__.py"}

OWN_RUNNERS = ("django/django", "sympy/sympy")
REPOSITORIES = (
    *("pallets/flask", "psf/requests", "pytest-dev/pytest", "sphinx-doc/sphinx"),
    *("pydata/xarray", "pylint-dev/pylint", *OWN_RUNNERS),
)


def place_of(instance: Instance) -> Place:
    name = instance.repo.rpartition("/")[2]
    runner: Any = {"django": "django", "sympy": "sympy"}.get(name, "pytest")
    files = [path for path in touched_paths(instance.test_patch) if path.endswith(".py") and "test_" in path]
    init = INITS.get(instance.repo, f"{name}/__init__.py")
    tests = instance.fail_to_pass + instance.pass_to_pass
    return Place(instance.repo, runner, init, files[0], tests, IMPORT_ROOTS.get(instance.repo, ""))


def patch_of(tree: Path, edits: Sequence[Edit]) -> str:
    """The patch of an agent that made `edits` in a checkout of `tree`, which stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "objects").mkdir()
        environment = {
            "PATH": "/usr/bin:/bin",
            "GIT_INDEX_FILE": str(scratch / "index"),
            "GIT_OBJECT_DIRECTORY": str(scratch / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(tree / ".git" / "objects"),
        }

        def git(*words: str, text: bytes = b"") -> bytes:
            command = ["git", "-C", str(tree), "-c", "safe.directory=*", *words]
            return subprocess.run(command, input=text, env=environment, check=True, capture_output=True).stdout

        git("read-tree", "HEAD")
        for edit in edits:
            source = tree / (edit.old if edit.how == "copy" else edit.path)
            content = source.read_text(encoding="utf-8") if source.is_file() else None
            text = edit.apply(content)
            if text is None:
                git("update-index", "--force-remove", edit.path)
                continue
            data = text.encode("latin-1" if edit.path.endswith(".pyc") else "utf-8")
            name = git("hash-object", "-w", "--stdin", text=data).decode().strip()
            mode = (
                "120000"
                if edit.how == "link"
                else "100755"
                if edit.path.startswith(("bin/", "tests/run"))
                else "100644"
            )
            git("update-index", "--add", "--cacheinfo", f"{mode},{name},{edit.path}")
        return git("diff", "--cached", "--binary", "HEAD").decode("utf-8", "surrogateescape")


def is_played(trick: Trick, index: int) -> bool:
    """What fits every repository is played on two of them, what belongs to a runner of its own always."""
    if trick.kind == "runner" or (trick.repo in OWN_RUNNERS and trick.kind == "patched runner"):
        return True
    at = REPOSITORIES.index(trick.repo)
    return index % 4 == at % 4


async def play(
    instance: Instance, workspaces: SourceWorkspaces, sandboxes: Any, only: str, whole: bool, timeout_s: float
) -> list[dict[str, Any]]:
    workspace = workspaces.workspace(instance)
    assert workspace.path is not None
    tricks = [
        Trick("gold", "honest", instance.repo, ()),
        Trick("no-op", "honest", instance.repo, (Edit("note_kind.txt", "x\n", "new"),)),
    ]
    tricks += [trick for index, trick in enumerate(tricks_of(place_of(instance))) if whole or is_played(trick, index)]
    lines = []
    for trick in tricks:
        if only not in f"{trick.kind}: {trick.name}":
            continue
        patch = instance.patch if trick.name == "gold" else patch_of(workspace.path, trick.edits)
        line: dict[str, Any] = {
            "instance": instance.instance_id,
            "repo": instance.repo,
            "kind": trick.kind,
            "name": trick.name,
        }
        try:
            grade = await grade_by_swebench(instance, patch, workspace, sandboxes, timeout_s)
            line |= {"paid": grade.resolved, "findings": grade.findings, "restored": grade.restored[:5]}
            line |= {"fail_to_pass": sum(grade.fail_to_pass.values()), "s": round(grade.duration_s, 1)}
            line |= {"tests_s": round(grade.tests_s, 1), "log": grade.log_tail[-400:]}
        except GradeError as error:
            line |= {"paid": False, "masked": str(error)[-300:]}
        line["counted"] = cheating_attempts([], patch, instance)
        lines.append(line)
        print(
            instance.instance_id,
            f"{trick.kind}: {trick.name}",
            *[f"{key}={line.get(key)}" for key in ("paid", "findings", "counted", "s", "masked")],
            flush=True,
        )
    return lines


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    tried, paid, masked, silent = (Counter[tuple[str, str]]() for _ in range(4))
    for line in lines:
        key = (line["kind"], line["repo"])
        tried[key] += 1
        paid[key] += line["paid"]
        masked[key] += "masked" in line
        silent[key] += not line["counted"] and not line.get("findings")
    rows = [
        f"{kind} | {repo} | {count} | {paid[kind, repo]} | {masked[kind, repo]} | {silent[kind, repo]}"
        for (kind, repo), count in sorted(tried.items())
    ]
    return "\n".join(["kind | repository | patches | paid | masked | not counted", *rows])


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--rows", "--cache", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--instances", nargs="*")
    parser.add_argument("--whole", action="store_true", help="every trick on every repository")
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S, help="for the tests of one patch")
    options = parser.parse_args()
    workspaces = SourceWorkspaces(options.cache)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        sandboxes = make_provider(SandboxConfig(), Path(scratch), print)
        try:
            for instance in map(complete_instance, read_instances(options.rows)):
                if options.instances and instance.instance_id not in options.instances:
                    continue
                for line in await play(instance, workspaces, sandboxes, options.only, options.whole, options.timeout_s):
                    lines.append(line)
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
        finally:
            await sandboxes.close()
    print(table(lines))


if __name__ == "__main__":
    asyncio.run(main())
