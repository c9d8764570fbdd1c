"""Candidates of two neighbouring releases, from a package index of this machine as pip sees it."""

import io
import tarfile
from dataclasses import replace

import pytest

from swe_rl.env.mining.again import searches_of_list
from swe_rl.env.mining.candidate import Reason, TaskCandidate
from swe_rl.env.mining.cost import MiningCost
from swe_rl.env.mining.found import UNTRIED, Found, lines_of, report_of, split_of
from swe_rl.env.mining.lock import LockedList, LockedTask
from swe_rl.env.mining.recipe import TaskRecipe
from swe_rl.env.mining.release import MiningFilter, ReleasePair, candidate_of, neighbouring_releases, slug_of
from swe_rl.env.source_build import sdist
from swe_rl.env.source_build.build import tree_folder
from swe_rl.env.source_build.origin import hash_of_file, origin_of
from swe_rl.env.source_build.tree import make_tree
from swe_rl.files.disk import read_json
from tests.support.package_index import ask_only

WANTED = MiningFilter(("MIT",), "", 40, "3.11", "pytest -rA")
METADATA = "Metadata-Version: 2.4\nName: summer\nLicense-Expression: MIT\n"
OLD = {
    "PKG-INFO": METADATA,
    "CHANGES.md": "# 1.0\n\nFirst.\n",
    "summer.py": "def total(numbers):\n    return numbers[0] + sum(numbers[1:])\n",
    "tests/test_summer.py": "from summer import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n",
}
NEW_TEST = '\n\ndef test_empty():\n    """Nothing has a total."""\n    assert total([]) == 0\n'
NEW = {
    "PKG-INFO": METADATA,
    "CHANGES.md": "# 1.1\n\n* The total of an empty list is 0 (by @somebody)\n\n# 1.0\n\nFirst.\n",
    "summer.py": "def total(numbers):\n    return sum(numbers)\n",
    "tests/test_summer.py": OLD["tests/test_summer.py"]
    + '\n\ndef test_empty():\n    """Nothing has a total."""\n    assert total([]) == 0\n',
}


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Publishes releases, and returns the candidate of the newest two."""
    index = tmp_path / "index"
    index.mkdir()
    ask_only(monkeypatch, index, tmp_path / "nothing")
    sdist.versions_of.cache_clear()

    def candidate(old, new, wanted=WANTED, from_index=False, made_s=1_700_000_000):
        cache = tmp_path / "cache"
        cache.mkdir(exist_ok=True)
        folder = index if from_index else cache  # what is in the cache is not fetched: a fetch starts pip
        for version, files in (("1.0", old), ("1.1", new)):
            with tarfile.open(folder / f"summer-{version}.tar.gz", "w:gz") as archive:
                for name, text in files.items():
                    member = tarfile.TarInfo(f"summer-{version}/{name}")
                    data = text if isinstance(text, bytes) else text.encode()
                    member.size = len(data)
                    member.mtime = made_s
                    archive.addfile(member, io.BytesIO(data))
        pair = ReleasePair("summer", "1.0", "1.1")
        if from_index:
            assert neighbouring_releases("summer", 5) == [pair]
        return candidate_of(pair, wanted, cache)

    yield candidate
    sdist.versions_of.cache_clear()


def test_a_release_that_brings_a_fix_and_its_test_is_a_candidate(publish, tmp_path):
    found = publish(OLD, NEW, from_index=True)
    row = found.instance
    assert row.instance_id == "summer__summer-1.1" and found.licence == "MIT" and row.is_unmeasured
    assert "The total of an empty list is 0\n" in row.problem_statement
    assert "- Nothing has a total." in row.problem_statement and "somebody" not in row.problem_statement
    assert "summer.py" in row.patch and "CHANGES" not in row.patch and "test_empty" in row.test_patch
    assert (row.source.sdist, row.source.until, row.created_at[:10]) == (
        "summer-1.0",
        "2023-12-14T22:13:20Z",
        "2023-11-14",
    )
    assert publish(OLD, NEW) == found  # the same archives give the same row
    origin = origin_of(row, tmp_path / "cache")
    tree = tree_folder(row, origin, tmp_path / "built")
    tree.parent.mkdir(parents=True)
    make_tree(row, origin, tree)
    assert (tree / "summer.py").read_text() == OLD["summer.py"] and "1.1" not in (tree / "CHANGES.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (OLD, NEW | {"PKG-INFO": "Name: summer\nLicense-Expression: GPL-3.0-only\n"}, Reason.licence),
        (OLD, NEW | {"tests/test_summer.py": OLD["tests/test_summer.py"]}, Reason.fix_alone),
        (OLD, NEW | {"summer.py": OLD["summer.py"]}, Reason.tests_alone),
        (OLD, {name: text for name, text in NEW.items() if "test" not in name}, Reason.no_tests),
        (OLD, NEW | {"summer.py": "\n".join(f"x{i} = {i}" for i in range(60))}, Reason.too_large),
        (OLD, NEW | {"data.bin": b"\x00\x01\xff" * 50}, Reason.binary),
        (OLD, NEW | {"CHANGES.md": "# 1.1\n\n- `return sum(numbers)`, as it should\n"}, Reason.leak),
        (OLD, NEW | {"CHANGES.md": "# 1.1\n\n- `total(numbers)` is the sum of all numbers\n"}, None),
        (
            OLD,
            NEW
            | {
                "summer.py": "def total(numbers):\n    return sum(number for number in numbers)\n",
                "CHANGES.md": "# 1.1\n\n    return sum(number for number in numbers)\n",
            },
            Reason.leak,
        ),
    ],
)
def test_what_gives_no_candidate_says_why(publish, old, new, reason):
    found = publish(old, new)
    assert found.reason is reason and (found.instance is None) == (reason is not None)


def test_a_file_that_is_no_text_is_left_out_of_a_change_that_is_split(publish):
    new = NEW | {"data.bin": b"\x00\x01\xff" * 50}
    row = publish(OLD, new, replace(WANTED, is_split=True)).instance
    assert "summer.py" in row.patch and "data.bin" not in row.patch
    alone = OLD | {"data.bin": b"\x00\x01\xff" * 50, "tests/test_summer.py": NEW["tests/test_summer.py"]}
    assert publish(OLD, alone, replace(WANTED, is_split=True)).reason is Reason.binary


def test_a_release_older_than_the_interpreter_gets_packages_that_run_on_it(publish):
    row = publish(OLD, NEW, replace(WANTED, python="3.12")).instance
    assert row.created_at[:10] == "2023-11-14" and row.source.until == "2024-04-02T00:00:00Z"
    assert publish(OLD, NEW, replace(WANTED, python="3.10")).instance.source.until == "2023-12-14T22:13:20Z"


def test_a_project_is_in_one_split_however_it_is_spelled():
    assert {slug_of(name) for name in ("Zope.Interface", "zope_interface", "zope-interface")} == {"zope-interface"}


def test_a_file_with_other_ends_of_lines_is_changed_as_it_is(publish, tmp_path):
    old = OLD | {"summer.py": OLD["summer.py"].replace("\n", "\r\n")}
    row = publish(old, NEW | {"summer.py": NEW["summer.py"].replace("\n", "\r\n")}).instance
    assert "\r\n" in row.patch
    tree = tmp_path / "tree"
    make_tree(row, origin_of(row, tmp_path / "cache"), tree)  # which refuses a patch that does not fit
    assert b"\r\n" in (tree / "summer.py").read_bytes()


def test_what_a_model_may_have_read_is_left_out(publish):
    assert publish(OLD, NEW, MiningFilter(("MIT",), "2024-01-01", 40, "3.11", "pytest")).reason is Reason.too_old
    assert publish(OLD, NEW, MiningFilter(("MIT",), "2023-01-01", 40, "3.11", "pytest")).instance is not None


def test_a_release_without_a_date_has_the_packages_of_the_day_and_its_recipe_says_so(publish, tmp_path):
    today = replace(WANTED, undated_until="2026-11-29T00:00:00Z")
    found = publish(OLD, NEW, today, made_s=0)
    assert found.instance.source.until == found.recipe.until == "2026-11-29T00:00:00Z"
    assert found.instance.created_at == "" and TaskRecipe.from_record(found.recipe.to_record()) == found.recipe
    hashes = {f"summer-{version}": _hash(tmp_path / "cache", version) for version in ("1.0", "1.1")}
    task = LockedTask(found.instance.instance_id, found.recipe, "", hashes)
    later = replace(WANTED, undated_until="2027-01-01T00:00:00Z")
    (search,) = searches_of_list(LockedList("3.11", "pytest -rA", 0.25, [task]), later, tmp_path / "cache")
    assert search().instance == found.instance
    assert publish(OLD, NEW, replace(today, since="2023-01-01"), made_s=0).reason is Reason.too_old
    assert publish(OLD, NEW, today).recipe.until == ""


def _hash(cache, version):
    return hash_of_file(cache / f"summer-{version}.tar.gz")


def test_an_archive_that_is_torn_ends_nothing(publish, tmp_path):
    publish(OLD, NEW)
    for path in (tmp_path / "cache").glob("*.tar.gz"):
        path.write_text("torn")
    found = candidate_of(ReleasePair("summer", "1.0", "1.1"), WANTED, tmp_path / "cache")
    assert found.reason is Reason.unavailable and "cannot be" in found.detail


def test_what_was_found_is_written_with_a_report_of_the_rest(publish, tmp_path):
    candidate = publish(OLD, NEW)
    others = [TaskCandidate("a-1", "a", reason=Reason.no_tests), TaskCandidate("b-1", "b", reason=Reason.no_tests)]
    row = candidate.instance
    target = tmp_path / "mined.jsonl"
    Found([candidate, *others], {row.instance_id: row}).write(target, 1.0, MiningCost())
    assert '"split": "heldout"' in target.read_text() and '"licence": "MIT"' in target.read_text()
    assert read_json(report_of(target))["counts"] == {"it has no tests": 2, "proven": 1}
    failed = Found([candidate], {row.instance_id: "flaky"})
    assert failed.proven == [] and failed.counts() == [("its proof failed", 1)]
    assert Found([candidate], {row.instance_id: UNTRIED}).counts() == [(UNTRIED, 1)]
    assert lines_of([]) == ""
    assert Found([candidate], {row.instance_id: row}).split_sizes(1.0) == {"train": 0, "heldout": 1}


def test_a_projects_split_follows_from_its_name():
    projects = [f"project-{number}" for number in range(2000)]
    heldout = [project for project in projects if split_of(project, 0.25) == "heldout"]
    assert 400 < len(heldout) < 600 and heldout == [
        name for name in projects if split_of(name.upper(), 0.25) == "heldout"
    ]
    assert {split_of(project, 0.0) for project in projects} == {"train"}
