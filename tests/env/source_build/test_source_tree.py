"""The base tree of a distribution: the fix is out, one commit, nothing else to be found in it."""

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.source_build import origin as origin_module
from swe_rl.env.source_build.origin import Origin, origin_of
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.sdist import days_after, fetch_sdist, release_time, split_name, unpack_sdist
from swe_rl.env.source_build.tree import let_tox_report, make_tree
from tests.support.package_index import ask_only

FIX = (
    "diff --git a/lib.py b/lib.py\n--- a/lib.py\n+++ b/lib.py\n"
    "@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2\n"
)
TESTS = (
    "diff --git a/t.py b/t.py\nnew file mode 100644\n--- /dev/null\n+++ b/t.py\n@@ -0,0 +1 @@\n+def test_f(): pass\n"
)
BASE = "0192aac24123735b3eaf9b08df46429bb770c283"
FILES = {
    "lib.py": "def f():\n    return 2\n",
    "t.py": "def test_f(): pass\n",
    "PKG-INFO": "Name: b\n",
    "b.egg-info/PKG-INFO": "Name: b\n",
    "tox.ini": "[testenv]\ndeps =\n    pytest\ncommands =\n    pytest --durations 25 {posargs}\n",
}
INSTANCE = Instance(
    "a__b-1",
    "a/b",
    BASE,
    "It fails.",
    FIX,
    TESTS,
    ("t.py::test_f",),
    (),
    source=Source("B-1.0rc1", "reverse-apply patch and test_patch to get the base", "3.9"),
)


def archive(folder, files=FILES, name="b-1.0rc1", time=1_600_000_000):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for inside, text in files.items():
            member = tarfile.TarInfo(f"{name}/{inside}")
            member.size, member.mtime = len(text), time
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def origin(path):
    return Origin("b", "1.0rc1", "b-1.0rc1", path)


def git(folder, *arguments):
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_fix_and_its_tests_are_taken_back(tmp_path):
    make_tree(INSTANCE, origin(archive(tmp_path)), tmp_path / "tree")
    tree = tmp_path / "tree"
    assert "return 1" in (tree / "lib.py").read_text() and not (tree / "t.py").exists()
    assert git(tree, "status", "--porcelain") == ""
    assert git(tree, "ls-files").split() == ["lib.py", "tox.ini"]
    assert (tree / "b.egg-info" / "PKG-INFO").is_file()  # the installed link reads it


def test_there_is_one_commit_and_the_base_commits_name_means_it(tmp_path):
    make_tree(INSTANCE, origin(archive(tmp_path)), tmp_path / "tree")
    tree = tmp_path / "tree"
    assert git(tree, "rev-list", "--all", "--count") == "1" and git(tree, "reflog") == ""
    assert git(tree, "count-objects", "-v").startswith("count:") and git(tree, "fsck", "--unreachable") == ""
    (tree / "lib.py").write_text("changed\n")
    assert "+changed" in git(tree, "diff", BASE)
    git(tree, "checkout", BASE, "lib.py")
    assert "return 1" in (tree / "lib.py").read_text()
    assert git(tree, "show").endswith("base")  # not every file


def test_it_is_the_same_commit_every_time(tmp_path):
    for name in ("one", "two"):
        make_tree(INSTANCE, origin(archive(tmp_path)), tmp_path / name)
    assert git(tmp_path / "one", "rev-parse", "HEAD") == git(tmp_path / "two", "rev-parse", "HEAD")


def test_a_release_before_the_fix_is_the_base_itself(tmp_path):
    files = {"lib.py": "def f():\n    return 1\n"}
    forward = replace(INSTANCE, source=Source("b-1.0rc1", "applies forward", "3.9"))
    make_tree(forward, origin(archive(tmp_path, files)), tmp_path / "tree")
    assert "return 1" in (tmp_path / "tree" / "lib.py").read_text()


def test_a_patch_that_does_not_fit_is_an_error_that_leaves_nothing(tmp_path):
    path = archive(tmp_path, {"lib.py": "other\n"})
    for source in (INSTANCE.source, Source("b-1.0rc1", "applies forward", "3.9")):
        with pytest.raises(InstanceError, match="a__b-1: .*patch does not fit"):
            make_tree(replace(INSTANCE, source=source), origin(path), tmp_path / "trees" / "tree")
    assert list((tmp_path / "trees").iterdir()) == []


def test_tox_reports_each_test_where_the_script_runs_it(tmp_path):
    script = ": '>>>>> Start Test Output'\ntox --current-env -epy39 -v -- t.py\n"
    make_tree(replace(INSTANCE, eval_script=script), origin(archive(tmp_path)), tmp_path / "tree")
    assert "    pytest\ncommands =\n    pytest -rA --durations" in (tmp_path / "tree" / "tox.ini").read_text()
    (tmp_path / "tox.ini").write_text("commands =\n    {envpython} -X dev -m pytest {posargs}\n")
    let_tox_report(tmp_path)
    assert "-m pytest -rA {posargs}" in (tmp_path / "tox.ini").read_text()


def test_sympys_missing_program_is_there(tmp_path):
    sympy = replace(INSTANCE, source=Source("sympy-1.9", "applies forward", "3.9"))
    make_tree(sympy, origin(archive(tmp_path, {"lib.py": "def f():\n    return 1\n"})), tmp_path / "tree")
    script = tmp_path / "tree" / "bin" / "test"
    assert script.stat().st_mode & 0o111 and "sympy.test" in script.read_text()
    compile(script.read_text(), "test", "exec")


@pytest.mark.parametrize(
    ("text", "parts"),
    [("Django-3.0", ("Django", "3.0")), ("pytest-6.0.0rc1", ("pytest", "6.0.0rc1")), ("a-b-1", ("a-b", "1"))],
)
def test_names_of_distributions(text, parts):
    assert split_name(text) == parts


@pytest.mark.parametrize("text", ["django", "django-", "django-latest"])
def test_other_names_are_refused(text):
    with pytest.raises(InstanceError, match="is not NAME-VERSION"):
        split_name(text)


def test_an_archive_in_the_cache_is_not_fetched_again_however_it_is_spelled(tmp_path):
    path = archive(tmp_path, name="My_Package-1.0")
    assert fetch_sdist("my-package-1.0", tmp_path) == path


@pytest.mark.slow
def test_nothing_of_a_distribution_is_run_to_fetch_it(tmp_path, monkeypatch):
    """`pip download` would run this setup.py for the distribution's name."""
    ran = tmp_path / "ran"
    setup = f"open({str(ran)!r}, 'w').close()\nraise SystemExit('not on this Python')\n"
    archive(tmp_path / "index", {"setup.py": setup, "PKG-INFO": "Metadata-Version: 1.0\n"}, "my_package-1.2")
    archive(tmp_path / "index", {"setup.py": setup}, "my_package-1.3")
    ask_only(monkeypatch, tmp_path / "index", tmp_path / "nothing")
    path = fetch_sdist("My-Package-1.2", tmp_path / "cache")
    assert path == tmp_path / "cache" / "My-Package-1.2.tar.gz" and tarfile.is_tarfile(path) and not ran.exists()
    with pytest.raises(BuildError, match=r"My-Package-9\.9 cannot be had from the package index.*there is no source"):
        fetch_sdist("My-Package-9.9", tmp_path / "cache")
    assert fetch_sdist("My-Package-1.2.0", tmp_path / "cache").name == "My-Package-1.2.0.tar.gz"  # the same to an index
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_tree_may_come_from_an_archive_or_a_folder_of_this_machine(tmp_path):
    packed = archive(tmp_path)
    folder = tmp_path / "folder"
    unpack_sdist(packed, folder)
    for given in ({"archive": str(packed)}, {"tree": str(folder)}):
        source = Source(fix="reverse-apply both", python="3.9", **given)
        instance = replace(INSTANCE, version="2.1", source=source)
        made = origin_of(instance, tmp_path / "cache")
        make_tree(instance, made, tmp_path / made.key)
        assert made.version == "2.1" and "return 1" in (tmp_path / made.key / "lib.py").read_text()
    before = origin_of(instance, tmp_path / "cache").key
    (folder / "lib.py").write_text("changed\n")
    origin_module.hash_of_file.cache_clear()
    assert origin_of(instance, tmp_path / "cache").key != before
    with pytest.raises(InstanceError, match="a__b-1: source.tree=.* is no folder of this machine"):
        origin_of(replace(instance, source=Source(tree=str(tmp_path / "no"), python="3.9")), tmp_path)


def test_of_a_git_repository_the_base_commit_is_taken_and_nothing_later(tmp_path, monkeypatch):
    repository = tmp_path / "clone"
    repository.mkdir()
    git(repository, "init", "--quiet")
    commits = []
    for text in ("def f():\n    return 1\n", "def f():\n    return 2\n"):
        (repository / "lib.py").write_text(text)
        git(repository, "add", ".")
        git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "x")
        commits.append(git(repository, "rev-parse", "HEAD"))
    (repository / "lib.py").write_text("not committed\n")
    instance = replace(INSTANCE, base_commit=commits[0], source=Source(tree=str(repository), python="3.9"))
    made = origin_of(instance, tmp_path / "cache")
    make_tree(instance, made, tmp_path / "tree")
    assert "return 1" in (tmp_path / "tree" / "lib.py").read_text() and made.released() is not None
    assert git(tmp_path / "tree", "rev-list", "--all", "--count") == "1"
    with pytest.raises(InstanceError, match=f"a git repository without base_commit={BASE}"):
        origin_of(replace(instance, base_commit=BASE), tmp_path)
    for owner, name in ((tarfile, "open"), (Path, "unlink")):  # the folder takes no change any more
        monkeypatch.setattr(owner, name, read_only)
    with pytest.raises(BuildError, match=r"commit \w+ cannot be unpacked \(read-only\)"):
        make_tree(instance, made, tmp_path / "again")


def read_only(*_, **__):
    raise PermissionError("read-only")


def test_packages_are_taken_from_the_time_of_the_release(tmp_path):
    assert days_after(release_time(archive(tmp_path, time=1_600_000_000)), 60) == "2020-11-12T12:26:40Z"
    assert days_after(release_time(archive(tmp_path, time=0)), 60) is None
    assert release_time(archive(tmp_path, time=1_580_601_600)) is None, "hatchling gives all files this date"


def test_a_broken_archive_is_named(tmp_path):
    (tmp_path / "b-1.0.tar.gz").write_bytes(b"nothing")
    with pytest.raises(BuildError, match=r"b-1\.0\.tar\.gz cannot be unpacked"):
        unpack_sdist(tmp_path / "b-1.0.tar.gz", tmp_path / "tree")
    two = archive(tmp_path / "two")
    with tarfile.open(two, "w:gz") as tar:
        for name in ("x/a", "y/b"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    with pytest.raises(BuildError, match="exactly one folder"):
        unpack_sdist(two, tmp_path / "tree")
