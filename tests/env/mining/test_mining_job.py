"""`job=mine` from two made-up releases to proven rows: trees and tests are real, environments are not built."""

import io
import json
import subprocess
import sys
import tarfile

import pytest

from swe_rl.config.compose import compose
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.mining.candidate import Reason
from swe_rl.env.mining.found import ALTERED, report_of, split_of
from swe_rl.env.mining.lock import list_path, lock_of, read_list
from swe_rl.env.proof.record import book_of
from swe_rl.env.protocol import Grade, SuiteRun
from swe_rl.env.source_build import sdist
from swe_rl.env.source_build.origin import origin_of
from swe_rl.env.source_build.tree import make_tree
from swe_rl.env.swe.env import SweEnv
from swe_rl.files.disk import read_json
from swe_rl.job import mine
from swe_rl.run import mining, proving

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
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "nothing").as_uri())
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
    monkeypatch.setattr(SweEnv, "workspace", lambda self, row: None)
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
    assert empty["PASS_TO_PASS"] == ["tests/test_summer.py::test_total"] and empty["licence"] == "MIT"
    assert all("1 hunks; of " in difference["why"] for difference in report["differences"])
    assert mined("mine.tasks=hunks")[1] == rows


def test_a_bug_in_the_newest_release_is_a_proven_task(mined):
    status, rows, report = mined("mine.tasks=bugs", "mine.newest=1")
    assert status == 0 and report["counts"] == {"proven": 1}
    (row,) = rows
    assert row["FAIL_TO_PASS"] == ["tests/test_summer.py::test_low_of_two"] and row["instance_id"].count("-bug-") == 1
    assert "+    return min(a, b)" in row["patch"] and "test_low_of_two" in row["test_patch"]
    assert "low of two" in row["problem_statement"] and row["source"]["fix"].startswith("reverse")


def test_a_budget_that_is_too_small_is_named(mined, capsys):
    status, rows, report = mined("mine.tasks=hunks", "mine.max_runs=4")
    assert status == 1 and rows == []
    assert list(report["counts"]) == ["mine.max_runs or mine.max_run_s ended before its smallest change was found"]
    assert "4 runs of tests" in report["differences"][0]["why"]


@pytest.mark.parametrize("tasks", ["hunks", "bugs", "changes"])
def test_a_list_makes_the_same_rows_again_and_searches_nothing(mined, tmp_path, tasks):
    _, rows, _ = mined(f"mine.tasks={tasks}", "mine.newest=1")
    written = lock_of(tmp_path / "mined.jsonl").read_text()
    assert rows and "numbers" not in written and "Nothing has a total" not in written
    copy = tmp_path / "copy.lock.json"
    copy.write_text(written)
    book_of.cache_clear()
    (tmp_path / "cache" / "proofs.jsonl").unlink(missing_ok=True)
    status, again, report = mined(f"mine.lock={copy}", "mine.max_runs=1")
    assert status == 0 and again == rows and report["counts"] == {"proven": len(rows)}
    assert lock_of(tmp_path / "mined.jsonl").read_text() == written


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


def test_a_list_that_is_read_keeps_the_tasks_that_could_not_be_made(mined, tmp_path):
    mined("mine.tasks=hunks")
    place = lock_of(tmp_path / "mined.jsonl")
    content = json.loads(place.read_text())
    content["tasks"][0]["archives"]["summer-1.0"] = "0" * 64
    place.write_text(json.dumps(content))
    _, rows, _ = mined(f"mine.lock={place}")
    assert len(rows) == 1
    assert json.loads(place.read_text()) == content


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
    splits = [split_of(f"index/{task.recipe.project}", shipped.heldout_share) for task in shipped.tasks]
    assert (splits.count("train"), splits.count("heldout")) == (26, 4), "docs/mining.md says so"
