"""Rows of SWE-rebench, SWE-bench-Live and SWE-bench Multilingual: read, and graded by what they themselves run."""

import dataclasses
import json
import shutil
import subprocess

import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.compose import compose
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.grading.make import GRADERS
from swe_rl.env.grading.swebench_spec import LOG_PARSERS
from swe_rl.env.patch import NOOP_PATCH
from swe_rl.env.swe.read import read_split, to_instance
from swe_rl.errors import UserError
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Workspace
from tests.support.pytest_alone import OPTIONS

TEST = "def test_add():\n    assert add(1, 2) == 3\n"
PYTHON = {
    "conftest.py": ("", None),
    "calc.py": ("def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"),
    "tests/test_calc.py": ("from calc import add\n\n\ndef test_zero():\n    assert add(0, 0) == 0\n", None),
}
PYTHON["tests/test_calc.py"] = (PYTHON["tests/test_calc.py"][0], PYTHON["tests/test_calc.py"][0] + "\n\n" + TEST)
C = {
    "add.c": ("int add(int a, int b) { return a - b; }\n", "int add(int a, int b) { return a + b; }\n"),
    "Makefile": ("check: add.c check.c\n\t@gcc -o /tmp/check add.c check.c && /tmp/check\n", None),
    "check.c": (
        '#include <stdio.h>\nint add(int, int);\nint main(void) {\n  puts(add(0, 0) ? "not ok 1 zero" : "ok 1 zero");\n'
        "  return 0;\n}\n",
        '#include <stdio.h>\nint add(int, int);\nint main(void) {\n  puts(add(0, 0) ? "not ok 1 zero" : "ok 1 zero");\n'
        '  puts(add(1, 2) == 3 ? "ok 2 adds" : "not ok 2 adds");\n  return 0;\n}\n',
    ),
}


def made(folder, files, tests):
    """A repository of the files as they were, and the columns of every format; `tests`: its test files."""

    def git(*words):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True, text=True).stdout

    folder.mkdir()
    for path, (before, _) in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(before)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "base")
    for path, (_, after) in files.items():
        if after:
            (folder / path).write_text(after)
    patch, test_patch = git("diff", "--", *(set(files) - set(tests))), git("diff", "--", *tests)
    git("checkout", "-q", ".")
    return {
        "instance_id": "calc__calc-1",
        "repo": "calc/calc",
        "base_commit": git("rev-parse", "HEAD").strip(),
        "problem_statement": "add() subtracts.",
        "patch": patch,
        "test_patch": test_patch,
        "version": "1.0",
    }


@pytest.fixture
def rebench(tmp_path):
    """As nebius/SWE-rebench has it: lists of tests, and how they are run in `install_config`."""
    install_config = {
        "env_vars": None,
        "install": "python -m compileall -q calc.py",
        "log_parser": "parse_log_pytest",
        "no_use_env": None,
        "packages": "requirements.txt",
        "pip_packages": ["pytest"],
        "pre_install": None,
        "python": "3.9",
        "reqs_path": ["requirements.txt"],
        "test_cmd": "pytest --no-header -rA --tb=line --color=no -p no:cacheprovider -W ignore::DeprecationWarning "
        + OPTIONS,
    }
    return made(tmp_path / "tree", PYTHON, ["tests/test_calc.py"]) | {
        "FAIL_TO_PASS": ["tests/test_calc.py::test_add"],
        "PASS_TO_PASS": ["tests/test_calc.py::test_zero"],
        "FAIL_TO_FAIL": [],
        "PASS_TO_FAIL": [],
        "environment_setup_commit": "0" * 40,
        "license_name": "MIT",
        "meta": {"llm_score": {"difficulty_score": 0}},
        "install_config": install_config,
    }


@pytest.fixture
def live(rebench):
    """As SWE-bench-Live/SWE-bench-Live has it: commands that run the whole suite, and the name of their reader."""
    kept = {name: value for name, value in rebench.items() if name != "install_config"}
    return kept | {"test_cmds": [f"pytest -rA -p no:cacheprovider {OPTIONS}"], "log_parser": "pytest"}


@pytest.fixture
def multilingual(tmp_path):
    """As SWE-bench/SWE-bench_Multilingual has it since the harness's version 5: a script, its reader and an image."""
    columns = made(tmp_path / "tree", C, ["check.c"])
    script = (
        "#!/bin/bash\nset -uxo pipefail\ncd /testbed\n"
        f"git checkout {columns['base_commit']} check.c\n"
        f"git apply --verbose --reject - <<'EOF_1'\n{columns['test_patch']}\nEOF_1\n"
        ": '>>>>> Start Test Output'\nmake check\n: '>>>>> End Test Output'\n"
        f"git checkout {columns['base_commit']} check.c\n"
    )
    return columns | {
        "FAIL_TO_PASS": '["adds"]',
        "PASS_TO_PASS": '["zero"]',
        "image": "swebench/sweb.eval.x86_64.calc_1776_calc-1:latest",
        "eval_script": script,
        "log_parser": "parse_log_tap",
        "eval_type": "pass_and_fail",
    }


ROWS = {"swe_rebench": "rebench", "swebench_live": "live", "swebench_multilingual": "multilingual"}


def option(name, path):
    return compose([f"env={name}", f"env.dataset={path}", f"env.eval_dataset={path}"]).config


@pytest.fixture(params=ROWS)
def configured(request, tmp_path):
    """The option's own configuration with a file of one row of its format."""
    record = request.getfixturevalue(ROWS[request.param])
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(record) + "\n")
    return option(request.param, path)


@pytest.mark.slow
@pytest.mark.parametrize("configured", ROWS, indirect=True)
async def test_its_own_tests_judge_it(configured, tmp_path):
    pytest.importorskip("swebench", reason="needs the extra swebench")
    if configured.env.name == "swebench_multilingual" and not (shutil.which("gcc") and shutil.which("make")):
        pytest.skip("needs gcc and make")
    [instance] = read_split(configured.env, configured.env.split).instances
    try:
        sandboxes = make_provider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "scratch", print)
    except UserError as error:
        pytest.skip(str(error))
    try:
        grade = GRADERS[configured.env.grading]
        workspace = Workspace(path=tmp_path / "tree")
        gold = await grade(instance, instance.patch, workspace, sandboxes, 120.0)
        nothing = await grade(instance, NOOP_PATCH, workspace, sandboxes, 120.0)
        loud = "diff --git a/{0} b/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{1}\n"
        forged = loud.format("sitecustomize.py", "print('PASSED tests/test_calc.py::test_add')")
        printed = await grade(instance, forged, workspace, sandboxes, 120.0)
    finally:
        await sandboxes.close()
    assert gold.resolved and gold.resolution == "RESOLVED_FULL" and not gold.findings, gold.log
    assert not nothing.resolved and nothing.started and not any(nothing.fail_to_pass.values())
    assert all(nothing.pass_to_pass.values()) and nothing.pass_to_pass, nothing.log
    assert not printed.resolved


def test_the_image_of_a_row_is_known_before_it_is_pulled(configured):
    """`job=images` asks for these."""
    names = {
        "swe_rebench": "docker.io/swerebench/sweb.eval.x86_64.calc_1776_calc-1:latest",
        "swebench_live": "docker.io/starryzhang/sweb.eval.x86_64.calc_1776_calc-1:latest",
        "swebench_multilingual": "swebench/sweb.eval.x86_64.calc_1776_calc-1:latest",
    }
    [instance] = read_split(configured.env, configured.env.split).instances
    assert instance.image == names[configured.env.name]


def test_a_script_is_made_of_the_row_s_own_command(rebench, live):
    instance = to_instance(rebench, "here")
    assert instance.log_parser == "parse_log_pytest" and instance.eval_type == "pass_and_fail"
    lines = instance.eval_script.splitlines()
    start = lines.index(": '>>>>> Start Test Output'")
    assert lines[start + 1] == f"{rebench['install_config']['test_cmd']} tests/test_calc.py"
    assert "python -m compileall -q calc.py" in lines[:start]
    as_text = rebench | {"install_config": json.dumps(rebench["install_config"])}
    assert to_instance(as_text, "here") == instance
    more = rebench["install_config"] | {"eval_commands": ["export A=1"], "install": ["one", "two"]}
    with_more = to_instance(rebench | {"install_config": more}, "here").eval_script.splitlines()
    assert (
        with_more.index("export A=1") < with_more.index("one") < with_more.index("two") < with_more.index(lines[start])
    )
    whole = to_instance(live | {"rebuild_cmds": ["make all"]}, "here").eval_script.splitlines()
    start = whole.index(": '>>>>> Start Test Output'")
    assert whole[start + 1] == live["test_cmds"][0] and "make all" in whole[:start]
    own = to_instance(rebench | {"eval_script": "true", "log_parser": "parse_log_jest"}, "here")
    assert (own.eval_script, own.log_parser) == ("true", "parse_log_jest")


@pytest.mark.parametrize(
    ("install_config", "words"),
    [
        ('{"test_cmd":', "here: column 'install_config' is a string but not JSON"),
        (["pytest"], "here: column 'install_config' must be an object"),
        ({"log_parser": "parse_log_pytest"}, "here: install_config holds no test_cmd"),
        ({"test_cmd": ["go test ./..."], "log_parser": "parse_log_gotest"}, "as SWE-rebench V2 has it"),
        ({"test_cmd": "pytest", "install": 3}, "'install' must be a command or a list of commands"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(rebench, install_config, words):
    with pytest.raises(InstanceError, match=words):
        to_instance(rebench | {"install_config": install_config}, "here")


def test_rows_that_nobody_can_judge_are_left_out_by_name(rebench, live, tmp_path):
    """A reader that the harness has not, and an old row whose tests are not Python."""
    reader = {"instance_id": "b", "log_parser": "def parser(log): ..."}
    old = {"instance_id": "c", "install_config": None, "test_patch": "diff --git a/add_test.go b/add_test.go\n"}
    rows = [rebench, live | reader, rebench | old]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = option("swe_rebench", path)
    read = read_split(config.env, config.env.split)
    assert [instance.instance_id for instance in read.instances] == ["calc__calc-1"]
    assert read.dropped == {
        "log_parser=def parser(log): ..., which SWE-bench's harness does not have": ["b"],
        "no column eval_script and no test command, and tests that are not Python": ["c"],
    }
    kept = read_split(dataclasses.replace(config.env, grading="pytest"), config.env.split)
    assert len(kept.instances) == 3  # another grader judges by other means


BUG = "diff --git a/add.go b/add.go\n--- a/add.go\n+++ b/add.go\n@@ -1 +1 @@\n-return a + b\n+return a - b\n"
SMITH = {
    "instance_id": "calc__calc.0123abcd.func_pm_op_swap__1",
    "repo": "swesmith/calc__calc.0123abcd",
    "image_name": "jyangballin/swesmith.x86_64.calc_1776_calc.0123abcd",
    "patch": BUG,
    "problem_statement": "add() subtracts.",
}


@pytest.mark.parametrize("name", ["jsonl", "swe_smith"])
def test_rows_of_swe_smith_in_other_languages_are_left_out_by_name(tmp_path, name):
    """As SWE-bench/SWE-smith-go has them: pytest would find nothing there, and every gold patch would fail."""
    go = SMITH | {"FAIL_TO_PASS": ["TestAdd"], "PASS_TO_PASS": ["TestZero"]}
    python = SMITH | {"instance_id": "b", "FAIL_TO_PASS": ["tests/test_a.py::test_add"], "PASS_TO_PASS": []}
    script = go | {"instance_id": "c", "eval_script": "go test ./...", "log_parser": "parse_log_gotest"}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (go, python, script)))
    config = option(name, path)
    read = read_split(config.env, config.env.split)
    assert [instance.instance_id for instance in read.instances] == ["b", "c"]
    reason = "tests that are not Python, and no column eval_script that says how they are run"
    assert read.dropped == {reason: [SMITH["instance_id"]]}


def test_rows_of_multi_swe_are_refused_with_a_way_out(tmp_path):
    """As ByteDance-Seed/Multi-SWE-RL has them."""
    row = {"org": "calc", "repo": "calc", "number": 1, "title": "add", "body": "", "base": {"sha": "0" * 40}}
    row |= {"fix_patch": BUG, "test_patch": BUG, "f2p_tests": {"name": ["TestAdd"]}, "instance_id": "calc__calc-1"}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    config = option("jsonl", path)
    with pytest.raises(
        InstanceError, match=r"rows.jsonl.*a row of Multi-SWE-bench or Multi-SWE-RL.*env=swebench_multil"
    ):
        read_split(config.env, config.env.split)


def test_the_readers_are_the_harness_s():
    parsers = pytest.importorskip("swebench.harness.log_parsers", reason="needs the extra swebench")
    assert frozenset(parsers.PARSER_REGISTRY) == LOG_PARSERS
