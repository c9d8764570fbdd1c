"""Rows whose columns have other names: env.columns, held against the rule that looks at them before a run."""

import json

import pytest

from swe_rl.check.check import check_config
from swe_rl.config.choices import GradingKind, SandboxKind
from swe_rl.config.compose import compose
from swe_rl.config.schema import EnvConfig, SandboxConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.kodcode.read import read_split as read_functions
from swe_rl.env.make import make_env
from swe_rl.env.patch import NOOP_PATCH
from swe_rl.env.swe.prepared import PreparedIdentity, prepared_instances, write_prepared
from swe_rl.env.swe.read import read_split
from swe_rl.sandbox.process.provider import ProcessProvider

FUNCTIONS = [
    {
        "meta": {"uid": number},
        "prompt": f"Add {number}.",
        "code": f"def add(a):\n    return a + {number}",
        "checks": f"from solution import add\n\ndef test_add():\n    assert add(1) == {number + 1}\n",
    }
    for number in (0, 1)
]
OF_FUNCTIONS = {"question_id": "=add-{meta.uid}", "question": "prompt", "solution": "code", "test": "checks"}
ISSUE = {"id": 7, "issue": "It fails.", "fix": "diff", "wanted": "tests/test_a.py::test_a\ntests/test_a.py::test_b"}
OF_ISSUES = {"instance_id": "id", "problem_statement": "issue", "patch": "fix", "FAIL_TO_PASS": "wanted"}


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config(dataset, columns, **keys):
    return EnvConfig(**{"name": "jsonl", "dataset": dataset, "columns": columns, "eval_split": "test", **keys})


async def test_functions_of_other_names_are_graded(tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    table = __import__("pyarrow").Table.from_pylist(FUNCTIONS)
    pyarrow.write_table(table, tmp_path / "train.parquet")
    env = make_env(config(str(tmp_path), OF_FUNCTIONS, name="kodcode", grading=GradingKind.tests), tmp_path / "cache")
    first, second = env.instances("train")
    assert [first.instance_id, second.instance_id] == ["add-0", "add-1"]
    assert "Add 0." in env.prompt(first) and "return a" not in env.prompt(first)
    provider = ProcessProvider(SandboxConfig(), tmp_path / "scratch", warn=lambda _: None)
    try:
        assert (await env.grade(second, second.patch, provider, 30.0)).resolved
        assert not (await env.grade(second, NOOP_PATCH, provider, 30.0)).resolved
    finally:
        await provider.close()


def test_an_issue_with_its_folder(tmp_path):
    (tmp_path / "repos" / "calc").mkdir(parents=True)
    file = written(tmp_path / "rows.jsonl", [ISSUE | {"where": "calc"}])
    columns = OF_ISSUES | {"tree": "=repos/{where}", "python": "=3.11", "test_command": "=pytest -rA"}
    [instance] = read_split(config(file, columns, grading=GradingKind.swebench), "train").instances
    assert (instance.instance_id, instance.repo, instance.test_patch) == ("7", "local/7", "")
    assert instance.fail_to_pass == ("tests/test_a.py::test_a", "tests/test_a.py::test_b")
    assert instance.source.tree == str(tmp_path / "repos" / "calc") and instance.source.python == "3.11"
    assert len(instance.base_commit) == 40 and "pytest -rA" in instance.eval_script
    env = make_env(config(file, columns, grading=GradingKind.swebench), tmp_path / "cache", SandboxKind.process)
    assert env.has_a_way(instance)
    del columns["FAIL_TO_PASS"]
    [unmeasured] = read_split(config(file, columns, grading=GradingKind.swebench), "train").instances
    assert unmeasured.is_unmeasured
    (tmp_path / "repos" / "calc" / ".git").mkdir()
    with pytest.raises(InstanceError, match="line 1: column 'base_commit' is missing"):
        read_split(config(file, columns), "train")


@pytest.mark.parametrize(
    ("command", "run"),
    [
        ("pytest -rA", "pytest -rA --tb=native tests/test_a.py"),
        ("pytest -rA --tb=short", "pytest -rA --tb=short tests/test_a.py"),
        ("make check", "make check tests/test_a.py"),
    ],
)
def test_a_command_of_pytest_prints_cheap_tracebacks_for_its_twins(tmp_path, command, run):
    diff = "diff --git a/tests/test_a.py b/tests/test_a.py\n--- a/tests/test_a.py\n+++ b/tests/test_a.py\n"
    (tmp_path / "calc").mkdir()
    row = ISSUE | {"test_patch": f"{diff}@@ -1 +1 @@\n-a\n+b\n"}
    file = written(tmp_path / "rows.jsonl", [row])
    columns = OF_ISSUES | {"tree": "=calc", "python": "=3.11", "test_command": f"={command}"}
    [instance] = read_split(config(file, columns, grading=GradingKind.swebench), "train").instances
    assert f"\n{run}\n" in instance.eval_script


def test_an_issue_with_its_image(tmp_path):
    file = written(tmp_path / "rows.jsonl", [ISSUE | {"commit": "c" * 40, "box": "made/calc"}])
    columns = OF_ISSUES | {"base_commit": "commit", "image": "=registry/{box}:latest", "test_command": "=make check"}
    [instance] = read_split(config(file, columns, grading=GradingKind.swebench), "train").instances
    assert instance.image == "registry/made/calc:latest" and instance.pass_to_pass == ()
    assert "make check" in instance.eval_script and instance.log_parser == "parse_log_pytest"
    words = [f"env.columns.{name}='{value}'" for name, value in columns.items()]
    made = compose(["env=jsonl", f"env.dataset={file}", *(f"+{word}" for word in words)]).config
    assert made.env.columns == columns


@pytest.mark.parametrize(
    ("env", "columns", "key", "words"),
    [
        ("jsonl", {"problem": "issue"}, "problem", "nothing reads a column problem"),
        ("jsonl", {"problem_statement": "isue"}, "problem_statement", "no column isue; the rows have id, issue, fix"),
        ("jsonl", {"image": "=a/{box}"}, "image", "there is no column box"),
        ("kodcode", {"problem_statement": "issue"}, "problem_statement", "nothing reads a column problem_statement"),
    ],
)
def test_what_is_not_there_is_refused_by_name_before_and_when_it_is_read(tmp_path, env, columns, key, words):
    file = written(tmp_path / "rows.jsonl", [ISSUE, {"id": 8}])
    with pytest.raises(InstanceError, match=rf"env\.columns\.{key}=.*{words}.*Name one of"):
        (read_functions if env == "kodcode" else read_split)(config(file, columns, name=env), "train")
    table = [f"+env.columns.{name}='{value}'" for name, value in columns.items()]
    composed = compose([f"env={env}", f"env.dataset={file}", *table])
    findings = [it for it in check_config(composed.config) if it.rule_id == "columns"]
    assert [it.key for it in findings] == [f"env.columns.{key}"]
    assert words in findings[0].message


def test_a_row_may_lack_what_others_have(tmp_path):
    file = written(tmp_path / "rows.jsonl", [ISSUE | {"commit": "c"}, ISSUE | {"id": 8, "commit": "c", "fix": None}])
    read = read_split(config(file, OF_ISSUES | {"base_commit": "commit"}), "train")
    assert [instance.patch for instance in read.instances] == ["diff", ""]


def test_what_was_prepared_with_other_columns_is_not_used(tmp_path):
    file = written(tmp_path / "rows.jsonl", [ISSUE | {"commit": "c"}])
    mine = config(file, OF_ISSUES | {"base_commit": "commit"})
    read = read_split(mine, "train")
    write_prepared(tmp_path, PreparedIdentity.of(mine, "train"), read.instances, {"revision": read.revision})
    assert prepared_instances(mine, "train", tmp_path) == read.instances
    assert prepared_instances(config(file, {}), "train", tmp_path) is None
    assert "columns" not in PreparedIdentity.of(config(file, {}), "train").record


def test_another_data_set_to_evaluate_on_has_columns_of_its_own(tmp_path):
    train = written(tmp_path / "train.jsonl", [ISSUE | {"commit": "c"}])
    test = written(tmp_path / "test.jsonl", [{"name": "x", "text": "t", "commit": "d", "wanted": "t::t"}])
    names = {"instance_id": "name", "problem_statement": "text", "base_commit": "commit", "FAIL_TO_PASS": "wanted"}
    mine = config(train, OF_ISSUES | {"base_commit": "commit"}, eval_dataset=test, eval_columns=names)
    assert [read_split(mine, split).instances[0].instance_id for split in ("train", "test")] == ["7", "x"]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("['t.py::a', 't.py::b[1, 2]']", ("t.py::a", "t.py::b[1, 2]")),
        ('["t.py::a"]', ("t.py::a",)),
        ("('t.py::a', \"t.py::it's\")", ("t.py::a", "t.py::it's")),
        ("t.py::a[x]\n\nt.py::b\x0cc", ("t.py::a[x]", "t.py::b\x0cc")),
        ("[]", ()),
    ],
)
def test_lists_are_read_as_json_and_as_python_write_them(tmp_path, wanted, names):
    row = ISSUE | {"commit": "c", "wanted": wanted, "kept": "t.py::kept"}
    mine = config(
        written(tmp_path / "rows.jsonl", [row]), OF_ISSUES | {"base_commit": "commit", "PASS_TO_PASS": "kept"}
    )
    read = read_split(mine, "train") if names else None
    assert read is None or read.instances[0].fail_to_pass == names
    if not names:
        with pytest.raises(InstanceError, match="no FAIL_TO_PASS test"):
            read_split(mine, "train")


@pytest.mark.parametrize(
    "wanted", ["['t.py::a', 't.py::b'", "['t.py::a' 't.py::b']", "[t.py::a, t.py::b]", "['a', ...]"]
)
def test_what_only_looks_like_a_list_is_refused_with_its_column(tmp_path, wanted):
    """As one name a line it would be one test that no run has."""
    file = written(tmp_path / "rows.jsonl", [ISSUE | {"commit": "c", "wanted": wanted}])
    with pytest.raises(InstanceError, match=r"line 1: column '(wanted|FAIL_TO_PASS)'"):
        read_split(config(file, OF_ISSUES | {"base_commit": "commit"}), "train")


def test_a_character_that_ends_a_line_for_unicode_alone_stays_in_its_row(tmp_path):
    rows = [ISSUE | {"id": str(number), "issue": f"a{mark}b", "commit": "c", "box": f"made/{number}"}
            for number, mark in enumerate("\u2028\x85\u2029 ")]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    instances = read_split(config(str(path), OF_ISSUES | {"base_commit": "commit", "image": "box"}), "train").instances
    assert [instance.image for instance in instances] == [f"made/{number}" for number in range(4)]
