"""A change of somebody's own repository as an instance: which files judge it, and what a record may hold."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from swe_rl.config.choices import ExtensionKind, NewKind
from swe_rl.config.compose import compose
from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.commits import CommitChange, instance_of, is_test
from swe_rl.env.source_build.origin import origin_of
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.repository import clone_of, is_absent, is_address
from swe_rl.env.source_build.tree import make_tree
from swe_rl.errors import UserError
from swe_rl.job import new

SOURCE = Source(tree="calc", python="3.11")
NAME = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *NAME, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def calc(tmp_path):
    """main has a merged pull request with two commits, and a commit of its own that was made beside it."""
    tree = tmp_path / "calc"
    (tree / "tests").mkdir(parents=True)
    files = {"calc.py": "def add(a, b):\n    return a - b\n", "tests/test_calc.py": "# tests\n", "old.py": "x = 1\n"}
    for name, text in files.items():
        (tree / name).write_text(text)
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "base")
    git(tree, "checkout", "-qb", "fix")
    (tree / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    git(tree, "mv", "old.py", "né w.py")
    git(tree, "commit", "-qam", "add() subtracts\n\nadd(1, 2) is -1.")
    (tree / "tests/test_calc.py").write_text("# tests\n# of add\n")
    git(tree, "commit", "-qam", "A test of add()")
    git(tree, "checkout", "-q", "main")
    (tree / "beside.py").write_text("y = 2\n")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "Something else")
    git(tree, "merge", "-q", "--no-ff", "-m", "Merge pull request #7", "fix")
    return tree


@pytest.mark.parametrize("commits", ["main", "HEAD", "main^1..fix"])
def test_a_merge_and_its_range_are_the_same_change(calc, commits):
    task = instance_of(CommitChange.of(calc, str(calc), commits), "", SOURCE)
    assert task.base_commit == git(calc, "rev-parse", "main^" if ".." not in commits else "main~2")
    assert task.problem_statement == "add() subtracts\n\nadd(1, 2) is -1.\n\nA test of add()"
    assert "calc.py" in task.patch and "old.py" in task.patch and "beside" not in task.patch
    assert "tests/test_calc.py" in task.test_patch and "tests/" not in task.patch and "calc.py b/calc.py" in task.patch
    assert task.is_unmeasured and task.repo == "local/calc"
    head = git(calc, "rev-parse", "main" if ".." not in commits else "fix")
    assert task.instance_id == f"local__calc-{head[:7]}"


def test_hunks_do_not_depend_on_the_settings_of_this_users_git(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    lines = [f"line {number}\n" for number in range(40)]
    for changed in ((), (5, 15, 30)):
        text = "".join("changed\n" if number in changed else line for number, line in enumerate(lines))
        (repository / "calc.py").write_text(text)
        (repository / "test_calc.py").write_text(text)
        git(repository, "add", ".")
        git(repository, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "calc")
    patches = set()
    for settings in ("", "context = 8", "interHunkContext = 8", "algorithm = patience", "indentHeuristic = false"):
        path = tmp_path / "gitconfig"
        path.write_text(f"[diff]\n\t{settings}\n")
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(path))
        patches.add(instance_of(CommitChange.of(repository, str(repository), "main"), "stated", SOURCE).patch)
    assert [patch.count("\n@@ ") for patch in patches] == [3]


def test_both_patches_make_the_merged_tree(calc, tmp_path, monkeypatch):
    """Whatever this user's git is configured to print."""
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[diff]\n\tnoprefix = true\n\trenames = copies\n[color]\n\tui = always\n[core]\n\tquotePath = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    task = instance_of(CommitChange.of(calc, str(calc), "main"), "stated", SOURCE)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git(calc, "checkout", "-q", task.base_commit)
    for patch in (task.patch, task.test_patch):
        (tmp_path / "p").write_text(patch)
        git(calc, "apply", "--index", str(tmp_path / "p"))
    assert git(calc, "diff", "--cached", "--name-only", "main") == "" and task.problem_statement == "stated"


@pytest.mark.parametrize(
    ("commits", "tests", "words"),
    [
        ("fix^", (), "has no test that could judge a fix: it changes calc.py"),
        ("fix", (), "changes tests alone"),
        ("main", ["checks/*"], "has no test that could judge a fix"),
        ("nope..fix", (), "has no commit nope"),
        ("--all", (), "is not a change"),
        ("a...b", (), "is not a change"),
    ],
)
def test_what_makes_no_task_is_said_with_the_way_out(calc, commits, tests, words):
    with pytest.raises(InstanceError, match=words):
        instance_of(CommitChange.of(calc, str(calc), commits), "", SOURCE, tests)


def test_files_that_judge_are_told_by_their_names():
    judging = ["tests/data.json", "a/test/x.txt", "test_a.py", "src/a_test.py", "conftest.py", "a/tests.py"]
    others = ["a.py", "latest/a.py", "testing.py", "contest.py", "a/contests.py"]
    assert all(map(is_test, judging)) and not any(map(is_test, others))
    assert is_test("checks/a.py", ["checks/*"]) and not is_test("test_a.py", ["checks/*"])


@pytest.mark.parametrize(
    ("tree", "is_one"),
    [
        ("https://host/o/n.git", True),
        ("git@host:o/n.git", True),
        ("file:///o/n", True),
        ("ssh://git@host/o/n", True),
        ("ext::sh -c id", False),
        ("-upload", False),
        ("/home/me/calc", False),
        ("C:/calc", False),
    ],
)
def test_addresses_are_told_from_folders(tree, is_one):
    assert is_address(tree) is is_one


@pytest.mark.parametrize("tree", ["https://me:word@host/o/n.git", "https://token@host/n", "ssh://git:word@host/n"])
def test_a_record_holds_no_password(tree):
    with pytest.raises(InstanceError, match="no place for them") as caught:
        Source.from_record({"tree": tree, "python": "3.9"}, "row")
    assert "word" not in str(caught.value).replace("password", "") and "token" not in str(caught.value)


def test_of_an_address_there_is_one_clone_which_fetches_what_it_lacks(calc, tmp_path):
    """The same tree as of the folder, and nothing later."""
    address, cache = calc.as_uri(), tmp_path / "sources" / "sdists"
    source = Source(tree=address, python="3.11")
    assert is_absent(source, cache)
    task = instance_of(CommitChange.of(calc, address, "main"), "", source)
    assert task.repo == f"{tmp_path.name}/calc"
    origin = origin_of(task, cache)
    assert origin.path == clone_of(address, cache) and not is_absent(source, cache) and origin.name == "calc"
    make_tree(task, origin, tmp_path / "tree")
    assert (
        "a - b" in (tmp_path / "tree/calc.py").read_text()
        and git(tmp_path / "tree", "rev-list", "--all", "--count") == "1"
    )
    (calc / "later.py").write_text("z = 3\n")
    git(calc, "add", ".")
    git(calc, "commit", "-qm", "later")
    later = git(calc, "rev-parse", "HEAD")
    row = Instance.from_record({**task.to_record(), "base_commit": later})
    assert origin_of(row, cache).commit == later
    lost = Instance.from_record({**task.to_record(), "base_commit": "c" * 40})
    with pytest.raises(BuildError, match="cannot be fetched"):
        origin_of(lost, cache)


def write(*overrides: str) -> int:
    return new.run(compose(["job=new", "job.kind=task", *overrides]).config, None)


def test_one_command_writes_one_line(calc, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "issue.md").write_text("add() subtracts.\n")
    words = ["job.statement=issue.md", "job.python='3.12'", "job.setup='make'", 'job.packages=["pytest<9"]']
    assert write("job.repository=calc", "job.commits=main", *words) == 0
    assert "1 of its tests" in capsys.readouterr().out
    assert write(f"job.repository={calc.as_uri()}", "job.commits=main", f"paths.cache={tmp_path / 'cache'}") == 0
    first, second = (json.loads(line) for line in (tmp_path / "instances.jsonl").read_text().splitlines())
    assert first["source"] == {
        "tree": str(calc),
        "fix": "applies forward",
        "python": "3.12",
        "packages": ["pytest<9"],
        "setup": "make",
        "test_command": "pytest -rA",
    }
    assert first["problem_statement"] == "add() subtracts." and second["source"]["tree"] == calc.as_uri()
    assert first["patch"] == second["patch"] and first["base_commit"] == second["base_commit"]
    before = (tmp_path / "instances.jsonl").read_bytes()
    for overrides, said in (
        (["job.commits=main", "job.repository=calc"], "has local__calc-.* already"),
        (["job.repository=calc"], "job.commits is not set"),
        (["job.commits=main", "job.repository=tests"], "is no git repository"),
        (["job.commits=main", "job.repository=calc", "job.output=x.json"], r"ends with \.jsonl"),
        (["job.commits=main", "job.repository=calc", "job.statement=nope"], "cannot be read"),
        (["job.commits=main", "job.repository='https://t@h/n'"], "no place for them"),
    ):
        with pytest.raises(UserError, match=said):
            write(*overrides)
    assert (tmp_path / "instances.jsonl").read_bytes() == before


def test_what_can_be_written_is_a_task_or_any_kind_of_extension():
    assert {str(kind) for kind in NewKind} == {str(kind) for kind in ExtensionKind} | {"package", "task", "tiny_model"}
