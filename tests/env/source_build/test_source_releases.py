"""The release nearest to a base commit: between the one that lacks the fix and the one that has it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.dataset.instance import Instance, Source
from swe_rl.env.source_build import fetch_program, sdist
from swe_rl.env.source_build.program import BuildError, run_program
from swe_rl.env.source_build.releases import FORWARD, MAX_FETCHED, REVERSE, nearer_releases
from swe_rl.env.source_build.sdist import versions_of
from tests.env.source_build.test_source_tree import BASE, FIX, TESTS, archive
from tests.support.command import ROOT, warm
from tests.support.package_index import ask_only

PIP = ("pip._internal.commands.index", "pip._internal.network.session", "pip._internal.index.package_finder")
FETCH = "import sys; from swe_rl.env.source_build.fetch_program import main; sys.exit(main(*sys.argv[1:]))"

OLD = {"lib.py": "def f():\n    return 0\n"}  # nothing fits
BEFORE = {"lib.py": "def f():\n    return 1\n"}
AFTER = {"lib.py": "def f():\n    return 2\n", "t.py": "def test_f(): pass\n"}
RELEASES = {  # days in the order of their releases; 0.15.2 was made of an older tree after the fix
    "0.14.0": (OLD, 1),
    "0.15.0": (BEFORE, 3),
    "0.15.1": (BEFORE, 5),
    "0.16.0": (AFTER, 7),
    "0.16.1": (AFTER, 8),
    "0.15.2": (BEFORE, 9),
    "0.17.0rc1": (AFTER, 9),
    "0.17.0": (AFTER, 10),
    "0.18.0": (AFTER, 11),
}


def fetched(argv, *, what, **more):
    """As `run_program`, in a fork of a process that has pip imported: alone, each of a test's many fetches takes half a
    second. tests/env/source_build/test_source_tree.py fetches as a run does."""
    if fetch_program.__file__ not in argv:
        return run_program(argv, what=what, **more)
    words = argv[argv.index(fetch_program.__file__) + 1 :]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = warm(PIP).start(list(words), Path.cwd(), environ, FETCH).completed(60)
    if done.returncode:
        raise BuildError(f"{what}: {done.stderr}")
    return done.stdout


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index of this machine, as pip sees it."""
    monkeypatch.setattr(sdist, "run_program", fetched)
    for version, (files, day) in RELEASES.items():
        setup = {"setup.py": "raise SystemExit('was run')\n", **files}
        archive(tmp_path / "index", setup, f"b-{version}", time=1_600_000_000 + day * 86_400)
    ask_only(monkeypatch, tmp_path / "index", tmp_path / "nothing")
    versions_of.cache_clear()
    yield tmp_path / "index"
    versions_of.cache_clear()


def row(version, fix, created_at=""):
    source = Source(f"b-{version}", fix, "3.9")
    return Instance("a__b-1", "a/b", BASE, "s", FIX, TESTS, ("x",), (), source=source, created_at=created_at)


def nearer(instance, tmp_path):
    return [(release.sdist, release.fix) for release in nearer_releases(instance, tmp_path / "sdists")]


@pytest.mark.slow
def test_releases_on_both_sides_of_the_base_commit_come_first(tmp_path, index):
    assert versions_of("b") == ("0.14.0", "0.15.0", "0.15.1", "0.15.2", "0.16.0", "0.16.1", "0.17.0", "0.18.0")
    assert nearer(row("0.17.0", REVERSE), tmp_path) == [
        ("b-0.16.0", REVERSE),
        ("b-0.15.1", FORWARD),
        ("b-0.15.0", FORWARD),
    ]
    assert nearer(row("0.15.0", FORWARD), tmp_path)[0] == ("b-0.16.0", REVERSE)  # and back from a release too old
    assert nearer(row("0.14.0", FORWARD), tmp_path)[:2] == [("b-0.16.0", REVERSE), ("b-0.15.0", FORWARD)]


def test_a_date_in_the_row_says_which_is_nearest_and_the_named_one_is_the_bound(tmp_path, index):
    made = "2020-09-18T12:00:00Z"  # day 5
    assert nearer(row("0.17.0", REVERSE, made), tmp_path)[0] == ("b-0.15.1", FORWARD)
    late = "2020-09-24T12:00:00Z"  # day 11: nothing is nearer than the named one
    assert nearer(row("0.18.0", REVERSE, late), tmp_path) == []


def test_what_has_no_distribution_or_no_listing_has_no_other_release(tmp_path, index):
    assert nearer(replace(row("0.17.0", REVERSE), source=None), tmp_path) == []
    assert nearer(replace(row("0.17.0", REVERSE), source=Source(tree="b", python="3.9")), tmp_path) == []
    with pytest.raises(BuildError, match="b-0.99 cannot be had"):
        nearer(row("0.99", REVERSE), tmp_path)
    (index / "b-0.16.0.tar.gz").write_text("torn")
    assert ("b-0.16.0", REVERSE) not in nearer(row("0.17.0", REVERSE), tmp_path)
    assert len(list((tmp_path / "sdists").glob("b-*"))) <= MAX_FETCHED + 2
