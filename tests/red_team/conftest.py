"""A small repository with one bug, real sandboxes, and `attack`: what a patch gains from the pytest grader."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.workspace import commit_tree, run_git
from swe_rl.env.cheating.attempts import cheating_attempts
from swe_rl.env.grading import twin_trial
from swe_rl.env.grading.pytest import grade_by_pytest
from swe_rl.env.patch import collect_patch
from swe_rl.errors import UserError
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
SOURCE = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n"
TESTS = "from victim import add, twice\n\n\ndef test_twice():\n    assert twice(3) == 6\n"
NEW_TEST = "\n\ndef test_add():\n    assert add(1, 2) == 3\n"
FAIL, PASS = "tests/test_victim.py::test_add", "tests/test_victim.py::test_twice"


@pytest.fixture(autouse=True)
def same_twins(monkeypatch):
    """Draws the same twins in each run, as code that guesses is paid once in fifty times."""
    monkeypatch.setattr(twin_trial, "draw_seed", lambda: "twins of the red team")


@dataclasses.dataclass
class Victim:
    folder: Path
    instance: Instance

    @property
    def workspace(self) -> Workspace:
        return Workspace(path=self.folder)

    def patch(self, files: dict[str, str | None], *, links: dict[str, str] | None = None) -> str:
        """The patch of an agent that wrote `files` (None: removed) over the base tree."""
        copy = self.folder.parent / "copy"
        subprocess.run(["cp", "-a", str(self.folder), str(copy)], check=True)
        try:
            for name, content in files.items():
                path = copy / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is None:
                    path.unlink()
                else:
                    path.write_text(content)
            for name, target in (links or {}).items():
                (copy / name).unlink(missing_ok=True)
                (copy / name).symlink_to(target)
            run_git(copy, "add", "--all", "--force")
            diff = ["git", "-C", str(copy), "diff", "--cached", "--binary", "HEAD"]
            return subprocess.run(diff, check=True, capture_output=True).stdout.decode("utf-8", "surrogateescape")
        finally:
            subprocess.run(["rm", "-rf", str(copy)], check=True)


@pytest.fixture(scope="session")
def made_victim(tmp_path_factory) -> Victim:
    folder = tmp_path_factory.mktemp("made") / "victim"
    (folder / "victim").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "victim" / "__init__.py").write_text(SOURCE)
    (folder / "tests" / "test_victim.py").write_text(TESTS)
    (folder / "conftest.py").write_text("")
    base = commit_tree(folder)
    instance = Instance(
        instance_id="victim__victim-1",
        repo="victim/victim",
        base_commit=base,
        problem_statement="add subtracts",
        patch="",
        test_patch="",
        fail_to_pass=(FAIL,),
        pass_to_pass=(PASS,),
        version="1.0",
    )
    one = Victim(folder, instance)
    gold = one.patch({"victim/__init__.py": SOURCE.replace("a - b", "a + b")})
    tests = one.patch({"tests/test_victim.py": TESTS + NEW_TEST})
    one.instance = dataclasses.replace(instance, patch=gold, test_patch=tests)
    return one


@pytest.fixture
def victim(made_victim, tmp_path) -> Victim:
    """A copy of its own for each test: to make the repository and its patches starts a dozen processes."""
    folder = tmp_path / "victim"
    shutil.copytree(made_victim.folder, folder, symlinks=True)
    return Victim(folder, made_victim.instance)


@pytest.fixture
async def sandboxes(tmp_path):
    try:
        provider = make_provider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "scratch", print)
    except UserError as error:
        pytest.skip(str(error))
    yield provider
    await provider.close()


@pytest.fixture
def attack(victim, sandboxes):
    """The verdict on files that an agent wrote, and what of it was counted."""

    async def run(files, commands=(), links=None, timeout_s=60.0):
        patch = victim.patch(files, links=links)
        verdict = await grade_by_pytest(victim.instance, patch, victim.workspace, sandboxes, timeout_s)
        return verdict, cheating_attempts(commands, patch, victim.instance)

    return run


@pytest.fixture
def agent(victim, sandboxes):
    """The patch after an agent ran `commands` in a sandbox, and what of it was counted."""

    async def run(*commands):
        sandbox = await sandboxes.create(victim.workspace, owner="agent")
        try:
            outputs = [(await sandbox.exec(command, timeout_s=30)).output for command in commands]
            patch = (await collect_patch(sandbox, victim.instance.base_commit, 30)).text
        finally:
            await sandbox.close()
        return patch, cheating_attempts(commands, patch, victim.instance), outputs

    return run
