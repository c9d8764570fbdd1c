"""Older rows get the columns that the official harness wants, word for word as it made them."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from swe_rl.dataset.instance import Instance
from swe_rl.env.grading.swebench_spec import complete_instance, image_name, recipe_of

TEST_PATCH = (
    "diff --git a/tests/basic/tests.py b/tests/basic/tests.py\n--- a/tests/basic/tests.py\n+++ b/tests/basic/tests.py\n"
    "@@ -1 +1 @@\n-a\n+b\n"
    "diff --git a/tests/basic/new.py b/tests/basic/new.py\n"
    "new file mode 100644\n--- /dev/null\n+++ b/tests/basic/new.py\n"
    "@@ -0,0 +1 @@\n+b\n"
    "diff --git a/tests/basic/data.json b/tests/basic/data.json\n"
    "--- a/tests/basic/data.json\n+++ b/tests/basic/data.json\n"
    "@@ -1 +1 @@\n-a\n+b\n"
)


def instance(repo, version, **columns):
    return Instance(
        instance_id=f"{repo.replace('/', '__')}-1",
        repo=repo,
        base_commit="c" * 40,
        problem_statement="",
        patch="",
        test_patch=TEST_PATCH,
        fail_to_pass=("a",),
        pass_to_pass=(),
        version=version,
        **columns,
    )


def test_a_django_row():
    done = complete_instance(instance("django/django", "3.1"))
    assert done.image == "swebench/sweb.eval.x86_64.django_1776_django-1:latest"
    assert (done.log_parser, done.eval_type) == ("parse_log_django", "pass_and_fail")
    lines = done.eval_script.split("\n")
    assert lines[:2] == ["#!/bin/bash", "set -uxo pipefail"]
    tests = lines.index("./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 basic.tests basic.new")
    assert lines[tests - 1] == ": '>>>>> Start Test Output'" and lines[tests + 1] == ": '>>>>> End Test Output'"
    reset = f"git checkout {'c' * 40} tests/basic/tests.py tests/basic/data.json"  # a new file is not at the base
    assert lines.count(reset) == 2 and "export LANGUAGE=en_US:en" in lines


def test_what_a_row_has_is_kept():
    own = instance(
        "django/django", "3.1", image="mine", eval_script="true", log_parser="parse_log_pytest", eval_type="x"
    )
    assert complete_instance(own) == own


@pytest.mark.parametrize(
    ("repo", "version", "test", "install"),
    [
        ("django/django", "1.9", "./tests/runtests.py --verbosity 2", "python setup.py install"),
        ("astropy/astropy", "1.3", "pytest -rA -vv -o console_output_style=classic --tb=no", None),
        ("astropy/astropy", "v5.3", "pytest -rA", "python -m pip install -e .[test] --verbose"),
        ("matplotlib/matplotlib", "3.8", "pytest -rA", 'python -m pip install --no-build-isolation -e ".[dev]"'),
        ("matplotlib/matplotlib", "2.2", "pytest -rA", "python setup.py build; python setup.py install"),
        ("mwaskom/seaborn", "0.11", "pytest --no-header -rA", "python -m pip install -e ."),
        ("pydata/xarray", "2022.03", "pytest -rA", "python -m pip install -e ."),
        ("getmoto/moto", "5.0", "pytest -rA", ""),
    ],
)
def test_recipes_depend_on_the_version(repo, version, test, install):
    recipe = recipe_of(repo, version)
    assert recipe.test == test and install in (None, recipe.install)


def test_names_of_images():
    assert image_name("scikit-learn__scikit-learn-10297").endswith("scikit-learn_1776_scikit-learn-10297:latest")


def test_a_whole_row_is_made_as_the_official_one():
    """A row of the harness's own making, and the same without its four columns."""
    path = Path(__file__).parent / "data" / "swebench_row.json"
    row = json.loads(path.read_text())
    official = Instance.from_record(row)
    bare = dataclasses.replace(official, image="", eval_script="", log_parser="", eval_type="")
    assert complete_instance(bare) == official


def test_files_that_the_test_patch_removes_are_not_run_and_any_name_is_one_word():
    """As a test that was renamed in a change of a user's own."""
    diff = "diff --git {a} {b}\n{mode}--- {old}\n+++ {new}\n@@ -1 +1 @@\n-a\n+b\n"
    gone = ("a/tests/test_old.py", "b/tests/test_old.py", "deleted file mode 100644\n", "/dev/null")
    spaces = ("a/tests/test my.py", "b/tests/test my.py", "", "b/tests/test my.py\t")
    accents = ('"a/tests/test_\\303\\251.py"', '"b/tests/test_\\303\\251.py"', "", '"b/tests/test_\\303\\251.py"')
    patch = "".join(diff.format(a=a, b=b, mode=mode, old=a, new=new) for a, b, mode, new in (gone, spaces, accents))
    row = dataclasses.replace(instance("getmoto/moto", "5.0"), test_patch=patch)
    lines = complete_instance(row).eval_script.split("\n")
    assert "pytest -rA 'tests/test my.py' 'tests/test_é.py'" in lines
    assert lines.count(f"git checkout {'c' * 40} tests/test_old.py 'tests/test my.py' 'tests/test_é.py'") == 2


NEW = "diff --git a/tests/{0} b/tests/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/tests/{0}\n@@ -0,0 +1 @@\n+new\n"
GONE = (
    "diff --git a/tests/a.py b/tests/a.py\ndeleted file mode 100644\n"
    "--- a/tests/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
)
MOVED = "diff --git a/tests/a.py b/tests/b.py\nsimilarity index 100%\nrename from tests/a.py\nrename to tests/b.py\n"


@pytest.mark.parametrize(
    ("patch", "reset"),
    [
        (NEW.format("n.py") + NEW.format("o p.py"), "rm -f -- tests/n.py 'tests/o p.py'"),
        (GONE, f"git checkout {'c' * 40} tests/a.py"),
        (MOVED, f"git checkout {'c' * 40} tests/a.py"),
        (NEW.format("n.py") + GONE, f"git checkout {'c' * 40} tests/a.py"),
        ("", None),
    ],
)
def test_what_is_put_back_before_and_after_the_tests(patch, reset):
    row = dataclasses.replace(instance("sphinx-doc/sphinx", "3.5"), test_patch=patch)
    lines = complete_instance(row).eval_script.split("\n")
    resets = [line for line in lines if line.startswith(("git checkout", "rm "))]
    assert resets == ([reset] * 2 if reset else [])
    assert sum(line.startswith("git apply") for line in lines) == bool(patch)


@pytest.mark.parametrize("patch", [NEW.format("n.py"), GONE, MOVED, NEW.format("n.py") + GONE, ""])
def test_the_tree_of_an_image_stays_at_its_own_commit(tmp_path, patch):
    """Published images have a commit of their own on top of the base commit."""

    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("a\n")
    git("init", "-q", ".")
    git("add", "-A")
    git("commit", "-qm", "base")
    base = git("rev-parse", "HEAD")
    (tmp_path / "tox.ini").write_text("-rA\n")
    git("add", "-A")
    git("commit", "-qm", "set-up")
    if patch == NEW.format("n.py"):
        (tmp_path / "tests" / "n.py").write_text("an agent's\n")
    row = dataclasses.replace(instance("sphinx-doc/sphinx", "3.5"), test_patch=patch, base_commit=base)
    script = complete_instance(row).eval_script
    before = script[: script.index("git apply")] if patch else script
    reset = [line for line in before.split("\n") if line.startswith(("git checkout", "rm "))]
    subprocess.run(["bash", "-c", "\n".join(reset)], cwd=tmp_path, check=True)
    if patch:
        subprocess.run(["git", "apply"], input=patch, cwd=tmp_path, check=True, text=True)
    assert (tmp_path / "tox.ini").read_text() == "-rA\n"
