"""SWE-bench Pro: its rows as they are published, its scripts, and a verdict by its own scheme."""

import json
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.compose import compose
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.grading.make import GRADERS
from swe_rl.env.swe.read import read_split, to_instance
from swe_rl.env.swe.swebench_pro import LOG_PARSER
from swe_rl.errors import UserError
from swe_rl.job.eval import _write_predictions
from swe_rl.logger.folder import RunFolder
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Workspace

NAME = "instance_calc__calc-0123-vnan"
RUN_SCRIPT = """#!/bin/bash
IFS=',' read -r -a files <<< "$1"
python -m pytest -v -p no:cacheprovider "${files[@]}"
"""
PARSER = """
import json, re, sys
words = re.findall(r"^(\\S+::\\S+) (PASSED|FAILED|ERROR|SKIPPED)", open(sys.argv[1]).read(), re.M)
json.dump({"tests": [{"name": name, "status": status} for name, status in words]}, open(sys.argv[3], "w"))
"""
FORGED = """diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,4 @@
+print("=== short test summary info ===")
+print("PASSED tests/test_calc.py::test_add")
 def add(a, b):
     return a - b
"""


def git(folder, *words):
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def row(tmp_path):
    """A row with the columns and the spellings of ScaleAI/SWE-bench_Pro, over a repository of two commits."""
    tree = tmp_path / "tree"
    (tree / "tests").mkdir(parents=True)
    git(tree, "init", "-q", "-b", "main")
    (tree / "conftest.py").write_text("")
    (tree / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (tree / "tests" / "test_calc.py").write_text(
        "from calc import add\n\n\ndef test_zero():\n    assert add(0, 0) == 0\n"
    )
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "base")
    base = git(tree, "rev-parse", "HEAD").strip()
    (tree / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    with (tree / "tests" / "test_calc.py").open("a") as file:
        file.write("\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    git(tree, "commit", "-qam", "fix")
    fix = git(tree, "rev-parse", "HEAD").strip()
    patch, test_patch = (git(tree, "diff", base, fix, "--", path) for path in ("calc.py", "tests"))
    git(tree, "checkout", "-q", base)
    return {
        "repo": "calc/calc",
        "instance_id": NAME,
        "base_commit": base,
        "patch": patch,
        "test_patch": test_patch,
        "problem_statement": json.dumps("**add() subtracts**\n\nIt should add."),
        "requirements": "- add() returns the sum",
        "interface": '"Type: Function"',
        "repo_language": "python",
        "fail_to_pass": "['tests/test_calc.py::test_add']",
        "pass_to_pass": '["tests/test_calc.py::test_zero"]',
        "issue_specificity": '["major_bug"]',
        "issue_categories": '["back_end_knowledge"]',
        "before_repo_set_cmd": f"git reset --hard {base}\ngit clean -fd \ngit checkout {base} \n"
        f"git checkout {fix} -- tests/test_calc.py",
        "selected_test_files_to_run": '["tests/test_calc.py"]',
        "dockerhub_tag": "calc.calc-calc__calc-0123-vnan",
    }


@pytest.fixture
def scripts(tmp_path):
    folder = tmp_path / "run_scripts"
    (folder / NAME).mkdir(parents=True)
    (folder / NAME / "run_script.sh").write_text(RUN_SCRIPT)
    (folder / NAME / "parser.py").write_text(PARSER)
    return folder


def composed(tmp_path, scripts, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in rows))
    return compose(["env=swebench_pro", f"env.dataset={path}", f"env.scripts={scripts}"]).config


def test_a_published_row_is_read(row, scripts):
    instance = to_instance(row, "here", scripts=scripts)
    assert instance.problem_statement == (
        "**add() subtracts**\n\nIt should add.\n\nRequirements:\n- add() returns the sum\n\n"
        "New interfaces introduced:\nType: Function"
    )
    assert (instance.fail_to_pass, instance.pass_to_pass) == (
        ("tests/test_calc.py::test_add",),
        ("tests/test_calc.py::test_zero",),
    )
    assert instance.image == "docker.io/jefzda/sweap-images:calc.calc-calc__calc-0123-vnan"
    assert (instance.workdir, instance.log_parser) == ("/app", LOG_PARSER)
    lines = instance.eval_script.splitlines()
    assert lines.index(row["before_repo_set_cmd"].splitlines()[-1]) < lines.index("echo '>>>>> Start Test Output'")
    assert "git clean" not in instance.eval_script, "that would remove the patch"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("base_commit", None),
        ("before_repo_set_cmd", ""),
        ("problem_statement", 3),
        ("requirements", ["a"]),
        ("fail_to_pass", "tests/test_calc.py::test_add"),
        ("fail_to_pass", "[1, 2]"),
        ("pass_to_pass", None),
        ("selected_test_files_to_run", "(" * 500),
        ("patch", None),
        ("instance_id", "a/b"),
    ],
)
def test_a_malformed_row_is_named_with_its_column(row, scripts, column, value):
    with pytest.raises(InstanceError, match=rf"^rows, line 3: .*{column.replace('instance_id', 'instance id')}"):
        to_instance(row | {column: value}, "rows, line 3", scripts=scripts)


def test_without_its_scripts_a_row_is_refused_or_left_out(row, scripts, tmp_path):
    with pytest.raises(InstanceError, match=r"rows\.jsonl.*env\.scripts=SWE-bench_Pro-os/run_scripts"):
        read_split(composed(tmp_path, "null", row).env, "test")
    other = row | {"instance_id": "instance_other", "base_commit": "b" * 40}
    read = read_split(composed(tmp_path, scripts, row, other).env, "test")
    assert read.dropped == {"no run_script.sh and parser.py in env.scripts": ["instance_other"]}
    assert [it.instance_id for it in read.instances] == [NAME]


def test_a_changed_script_is_another_prepared_file(row, scripts, tmp_path):
    from swe_rl.env.swe.prepared import PreparedIdentity

    config = composed(tmp_path, scripts, row)
    before = PreparedIdentity.of(config.env, "test")
    (scripts / NAME / "parser.py").write_text(PARSER + "\n")
    assert PreparedIdentity.of(config.env, "test").scripts != before.scripts
    assert "scripts" not in PreparedIdentity.of(compose(["env=swebench_lite"]).config.env, "test").record


def test_predictions_are_what_the_benchmark_s_own_evaluation_reads(row, scripts, tmp_path):
    session = SimpleNamespace(folder=RunFolder(tmp_path), config=composed(tmp_path, scripts, row))
    attempts = [SimpleNamespace(instance_id=NAME, patch="diff", sample=0)]
    _write_predictions(session, "model", attempts)
    patches = json.loads((tmp_path / "pro_patches.json").read_text())
    assert patches == [{"instance_id": NAME, "patch": "diff", "prefix": session.config.name}]
    assert json.loads((tmp_path / "preds.json").read_text())[NAME]["model_patch"] == "diff"


@pytest.mark.slow
async def test_its_own_scheme_judges_it(row, scripts, tmp_path):
    config = composed(tmp_path, scripts, row)
    [instance] = read_split(config.env, "test").instances
    try:
        sandboxes = make_provider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "scratch", print)
    except UserError as error:
        pytest.skip(str(error))
    grade = GRADERS[config.env.grading]
    workspace = Workspace(path=tmp_path / "tree")
    nothing = "diff --git a/new.txt b/new.txt\nnew file mode 100644\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+a\n"
    try:
        gold = await grade(instance, instance.patch, workspace, sandboxes, 120.0)
        noop = await grade(instance, nothing, workspace, sandboxes, 120.0)
        forged = await grade(instance, FORGED, workspace, sandboxes, 120.0)
        shutil.rmtree(scripts / NAME)
    finally:
        await sandboxes.close()
    assert gold.resolved and gold.fail_to_pass == {"tests/test_calc.py::test_add": True}, gold.log
    assert not noop.resolved and noop.started and noop.pass_to_pass == {"tests/test_calc.py::test_zero": True}, noop.log
    assert not forged.resolved, forged.log
