"""`job=mine` from two made-up releases to proven rows: trees and tests are real, environments are not built."""

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.config.compose import compose
from swe_rl.config.schema import MineConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.dataset.mined_lists import list_path
from swe_rl.env.env import Grade, SuiteRun
from swe_rl.env.mining.again import tasks_of_projects
from swe_rl.env.mining.candidate import Reason
from swe_rl.env.mining.found import ALTERED, SHOWN, report_of, split_of
from swe_rl.env.mining.licence import is_permitted
from swe_rl.env.mining.lock import lock_of, read_list
from swe_rl.env.mining.release import slug_of
from swe_rl.env.proof.measure import TIMED_OUT
from swe_rl.env.proof.record import book_of
from swe_rl.env.source_build import sdist
from swe_rl.env.source_build.origin import origin_of
from swe_rl.env.source_build.tree import make_tree
from swe_rl.env.swe.env import SweEnv
from swe_rl.files.disk import read_json
from swe_rl.job import mine
from swe_rl.run import mining, proving
from swe_rl.sandbox.sandbox import Workspace
from tests.support.package_index import ask_only

FIRST = "def total(numbers):\n    return numbers[0] + sum(numbers[1:])\n"
METADATA = "Metadata-Version: 2.4\nName: summer\nLicense-Expression: MIT\n"
FILLER = "".join(f"\n\ndef unused_{number}():\n    return {number}\n" for number in range(6))
OLD = {
    "PKG-INFO": METADATA,
    "CHANGES.md": "# 1.0\n\nFirst.\n",
    "summer.py": f"{FIRST}{FILLER}\n\ndef low(a, b):\n    return a\n",
    "tests/test_summer.py": "from summer import low, total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n",
}
TESTS = OLD["tests/test_summer.py"] + (
    '\n\ndef test_empty():\n    """Nothing has a total."""\n    assert total([]) == 0\n'
    "\n\ndef test_low_of_two():\n    assert low(2, 1) == 1\n"
)
NEW = {
    "PKG-INFO": METADATA,
    "CHANGES.md": "# 1.1\n\n* The total of an empty list is 0\n* The low end is found\n\n# 1.0\n\nFirst.\n",
    "summer.py": f"def total(numbers):\n    return sum(numbers)\n{FILLER}\n\ndef low(a, b):\n    return min(a, b)\n",
    "tests/test_summer.py": TESTS,
}
RUNNER = """
import importlib.util, json, sys
results = {}
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("tests_of_it", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, ".")
    spec.loader.exec_module(module)
    for name in dir(module):
        if name.startswith("test"):
            try:
                getattr(module, name)()
                results[f"{path}::{name}"] = True
            except Exception:
                results[f"{path}::{name}"] = False
print(json.dumps(results))
"""


def run_tests(row, patch, folder, cache):
    """Returns the results of the row's tests, run in a tree of its own by this interpreter."""
    make_tree(row, origin_of(row, cache), folder)
    for change in (patch, row.test_patch):
        subprocess.run(["git", "apply", "-"], cwd=folder, input=change.encode(), check=True, capture_output=True)
    command = [sys.executable, "-B", "-S", "-c", RUNNER, "tests/test_summer.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}


class NoSandboxes:
    async def close(self):
        pass


@pytest.fixture
def mined(tmp_path, monkeypatch):
    """Publishes two releases, and returns the exit status, the rows and the report of `job=mine`."""
    index = tmp_path / "index"
    index.mkdir()
    for version, files in (("1.0", OLD), ("1.1", NEW)):
        with tarfile.open(index / f"summer-{version}.tar.gz", "w:gz") as archive:
            for name, text in files.items():
                member = tarfile.TarInfo(f"summer-{version}/{name}")
                member.size = len(text.encode())
                member.mtime = 1_700_000_000
                archive.addfile(member, io.BytesIO(text.encode()))
    ask_only(monkeypatch, index, tmp_path / "nothing")
    sdist.versions_of.cache_clear()
    book_of.cache_clear()
    archives = tmp_path / "cache" / "workspaces" / "sources" / "sdists"
    runs = []

    async def suite(self, row, patch, sandboxes, timeout_s):
        runs.append(patch)
        return SuiteRun(run_tests(row, patch, tmp_path / f"tree-{len(runs)}", archives))

    async def grade(self, row, patch, sandboxes, timeout_s):
        passed = (await suite(self, row, patch, sandboxes, timeout_s)).passed
        sides = [{name: passed.get(name, False) for name in names} for names in (row.fail_to_pass, row.pass_to_pass)]
        return Grade(all([*sides[0].values(), *sides[1].values()]), True, *sides)

    monkeypatch.setattr(SweEnv, "run_tests", suite)
    monkeypatch.setattr(SweEnv, "grade", grade)
    monkeypatch.setattr(SweEnv, "workspace", lambda self, row: Workspace())
    for module in (mining, proving):
        monkeypatch.setattr(module, "make_provider", lambda *_, **__: NoSandboxes())

    def mined(*overrides):
        target = tmp_path / "mined.jsonl"
        source = [] if any("mine.lock" in word for word in overrides) else ["mine.projects=[summer]"]
        words = ["job=mine", "env=mined", *source, f"env.dataset={target}", "env.proof_runs=1"]
        config = compose([*words, f"paths.cache={tmp_path}/cache", f"paths.scratch={tmp_path}", *overrides]).config
        status = mine.run(config, None)
        return status, [json.loads(line) for line in target.read_text().splitlines()], read_json(report_of(target))

    yield mined
    sdist.versions_of.cache_clear()
    book_of.cache_clear()


def test_a_release_is_split_into_tasks_that_are_proven(mined):
    status, rows, report = mined("mine.tasks=hunks")
    assert status == 0 and report["counts"] == {"proven": 2}
    by_test = {row["FAIL_TO_PASS"][0].rpartition("::")[2]: row for row in rows}
    assert set(by_test) == {"test_empty", "test_low_of_two"} and all(len(row["FAIL_TO_PASS"]) == 1 for row in rows)
    empty = by_test["test_empty"]
    assert "sum(numbers)" in empty["patch"] and "min(" not in empty["patch"]
    assert "empty list is 0" in empty["problem_statement"] and "low" not in empty["problem_statement"]
    low = by_test["test_low_of_two"]["problem_statement"]
    assert (
        "- low of two" in low
        and "```python\nassert low(2, 1) == 1\n```" in low
        and "assert" not in empty["problem_statement"]
    )
    assert empty["PASS_TO_PASS"] == ["tests/test_summer.py::test_total"] and empty["licence"] == "MIT"
    assert all("1 hunks; of " in difference["why"] for difference in report["differences"])
    assert mined("mine.tasks=hunks")[1] == rows


@pytest.mark.slow
def test_a_bug_in_the_newest_release_is_a_proven_task(mined):
    status, rows, report = mined("mine.tasks=bugs", "mine.newest=1")
    assert status == 0 and report["counts"] == {"proven": 1}
    (row,) = rows
    assert row["FAIL_TO_PASS"] == ["tests/test_summer.py::test_low_of_two"] and row["instance_id"].count("-bug-") == 1
    assert "+    return min(a, b)" in row["patch"] and "test_low_of_two" in row["test_patch"]
    assert "low of two" in row["problem_statement"] and row["source"]["fix"].startswith("reverse")


@pytest.mark.slow
def test_a_budget_that_is_too_small_is_named(mined, capsys):
    status, rows, report = mined("mine.tasks=hunks", "mine.max_runs=4")
    assert status == 1 and rows == []
    assert list(report["counts"]) == ["mine.max_runs or mine.max_run_s ended before its smallest change was found"]
    assert "4 runs of tests" in report["differences"][0]["why"]


@pytest.mark.parametrize(
    "tasks", ["hunks", *(pytest.param(tasks, marks=pytest.mark.slow) for tasks in ("bugs", "changes"))]
)
def test_a_list_makes_the_same_rows_again_and_searches_nothing(mined, tmp_path, tasks):
    _, rows, _ = mined(f"mine.tasks={tasks}", "mine.newest=1")
    written = lock_of(tmp_path / "mined.jsonl").read_text()
    assert [task["licence"] for task in json.loads(written)["tasks"]] == ["MIT"] * len(rows)
    assert rows and "numbers" not in written and "Nothing has a total" not in written
    copy = tmp_path / "copy.lock.json"
    copy.write_text(written)
    book_of.cache_clear()
    (tmp_path / "cache" / "proofs.jsonl").unlink(missing_ok=True)
    status, again, report = mined(f"mine.lock={copy}", "mine.max_runs=1")
    assert status == 0 and again == rows and report["counts"] == {"proven": len(rows)}
    assert lock_of(tmp_path / "mined.jsonl").read_text() == written


@pytest.mark.slow
def test_a_list_whose_rows_come_out_otherwise_is_not_used(mined, tmp_path):
    mined("mine.tasks=hunks")
    copy = tmp_path / "copy.lock.json"
    content = json.loads(lock_of(tmp_path / "mined.jsonl").read_text())
    first, second = content["tasks"]
    first["sha256"] = "0" * 64
    second["archives"]["summer-1.0"] = "0" * 64
    copy.write_text(json.dumps(content))
    status, rows, report = mined(f"mine.lock={copy}")
    assert status == 1 and rows == []
    assert report["counts"] == {ALTERED: 1, str(Reason.other_archive): 1}


@pytest.mark.slow
def test_a_list_that_is_read_keeps_the_tasks_that_could_not_be_made(mined, tmp_path):
    mined("mine.tasks=hunks")
    place = lock_of(tmp_path / "mined.jsonl")
    content = json.loads(place.read_text())
    content["tasks"][0]["archives"]["summer-1.0"] = "0" * 64
    place.write_text(json.dumps(content))
    _, rows, _ = mined(f"mine.lock={place}")
    assert len(rows) == 1
    assert json.loads(place.read_text()) == content


def test_of_a_list_only_the_named_projects_are_made():
    shipped = read_list(list_path("small"))
    of_one = tasks_of_projects(shipped, ["XmlToDict"])
    assert of_one.tasks and {task.recipe.project for task in of_one.tasks} == {"xmltodict"}
    assert tasks_of_projects(shipped, []) == shipped and of_one.heldout_share == shipped.heldout_share
    with pytest.raises(InstanceError, match=r"no task of nothing-like-it; it has tasks of .*tabulate"):
        tasks_of_projects(shipped, ["xmltodict", "nothing-like-it"])


@pytest.mark.slow
def test_a_project_that_a_list_does_not_have_is_refused_by_the_job(mined, tmp_path):
    mined("mine.tasks=changes")
    copy = tmp_path / "copy.lock.json"
    copy.write_text(lock_of(tmp_path / "mined.jsonl").read_text())
    assert mined(f"mine.lock={copy}", "mine.projects=[summer]")[0] == 0
    with pytest.raises(InstanceError, match="no task of winter"):
        mined(f"mine.lock={copy}", "mine.projects=[winter]")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no list of mined tasks"),
        ("[]", "no list of mined tasks"),
        ('{"version": 2}', "version 2"),
        ('{"version": 1, "python": "3.11", "test_command": "t", "heldout_share": 0.1, "tasks": [{}]}', "no list"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_list_is_named(tmp_path, text, words):
    path = tmp_path / "a.lock.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InstanceError, match=words) as raised:
        read_list(list_path(str(path)))
    assert str(path) in str(raised.value)


def test_the_shipped_list_can_be_read_and_its_projects_are_in_one_split_each():
    shipped = read_list(list_path("small"))
    names = [task.instance_id for task in shipped.tasks]
    assert names == sorted(set(names)) and all(task.archives and len(task.sha256) == 64 for task in shipped.tasks)
    licences = MineConfig().licences
    assert all(is_permitted(task.licence, licences) for task in shipped.tasks)
    recipes = [task.recipe for task in shipped.tasks]
    assert len({replace(recipe, tests=()) for recipe in recipes}) == len(recipes) and len(names) == len(recipes)
    assert len({task.sha256 for task in shipped.tasks}) == len(names)
    splits = {"train": set(), "heldout": set()}
    for task in shipped.tasks:
        splits[split_of(f"index/{slug_of(task.recipe.project)}", shipped.heldout_share)].add(task.recipe.project)
    assert splits["train"] and splits["heldout"] and not splits["train"] & splits["heldout"]
    assert {name.partition("__")[0] for name in names} == {slug_of(name) for side in splits.values() for name in side}
    sizes = [sum(task.recipe.project in side for task in shipped.tasks) for side in splits.values()]
    page = (Path(__file__).parents[3] / "docs" / "mining.md").read_text()
    num_projects = len(splits["train"] | splits["heldout"])
    said = " ".join(page.split())
    assert f"{len(names)} instances of {num_projects} projects" in said
    assert f"{sizes[0]} in `train` and {sizes[1]} in `heldout`" in said


@pytest.mark.slow
def test_the_rows_of_a_list_have_the_split_that_the_list_says(mined, tmp_path):
    _, rows, _ = mined("mine.tasks=hunks", "mine.heldout_share=0.0")
    assert {row["split"] for row in rows} == {"train"}
    content = json.loads(lock_of(tmp_path / "mined.jsonl").read_text())
    copy = tmp_path / "copy.lock.json"
    copy.write_text(json.dumps(content | {"heldout_share": 1.0}))
    _, again, _ = mined(f"mine.lock={copy}", "mine.heldout_share=0.0")
    assert {row["split"] for row in again} == {"heldout"}


@pytest.mark.slow
def test_what_is_built_and_what_is_tested_is_counted_apart(mined, tmp_path, monkeypatch):
    tree = tmp_path / "seen"
    tree.mkdir()

    def built(self, row):
        until_s = time.thread_time() + 0.3
        while time.thread_time() < until_s:
            pass
        return Workspace(path=tree)

    monkeypatch.setattr(SweEnv, "workspace", built)
    _, rows, report = mined("mine.tasks=hunks")
    cost = report["cost"]
    assert list(cost["phases"]) == ["compare", "build", "search", "prove"]
    assert cost["phases"]["build"]["cpu_s"] >= 0.6 and cost["phases"]["prove"]["cpu_s"] > 0
    assert cost["build_cpu_s_per_instance"] >= 0.3 and cost["tests_cpu_s_per_instance"] > 0
    assert "made in 0 s" not in report["differences"][0]["why"] or cost["phases"]["build"]["wall_s"] > 0.5


@pytest.mark.slow
def test_a_fix_that_stands_in_a_file_of_the_tree_is_no_task(mined, tmp_path, monkeypatch):
    tree = tmp_path / "seen"
    (tree / "build").mkdir(parents=True)
    (tree / "build" / "summer.txt").write_text("def low(a, b):\n    return min(a, b)\n")
    monkeypatch.setattr(SweEnv, "workspace", lambda self, row: Workspace(path=tree))
    status, rows, report = mined("mine.tasks=hunks")
    assert status == 0 and [row["FAIL_TO_PASS"][0].rpartition("::")[2] for row in rows] == ["test_empty"]
    (refused,) = [item for item in report["differences"] if item["outcome"] != "proven"]
    assert refused["outcome"] == SHOWN and refused["why"].endswith("build/summer.txt")


@pytest.mark.slow
def test_a_proof_whose_tests_are_too_slow_is_named_so(mined, monkeypatch):
    async def slow(self, row, patch, sandboxes, timeout_s):
        return SuiteRun({}, timed_out=True)

    monkeypatch.setattr(SweEnv, "run_tests", slow)
    status, rows, report = mined("mine.tasks=changes")
    assert status == 1 and rows == [] and report["counts"] == {TIMED_OUT: 1}
    assert list(mined("mine.tasks=hunks")[2]["counts"]) == [str(Reason.timed_out)]
    assert list(mined("mine.tasks=bugs")[2]["counts"]) == [str(Reason.timed_out)]


def test_other_indexes_of_this_machine_are_not_asked(mined, tmp_path, monkeypatch):
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_FIND_LINKS", "UV_INDEX"):
        monkeypatch.setenv(name, (tmp_path / "other").as_uri())
    ask_only(monkeypatch, tmp_path / "index", tmp_path / "nothing")
    settings = {name for name in os.environ if name.startswith(("PIP_", "UV_"))}
    assert settings == {"PIP_CONFIG_FILE", "PIP_FIND_LINKS", "PIP_INDEX_URL"}
    assert os.environ["PIP_FIND_LINKS"] == str(tmp_path / "index")
