"""A split of KodCode, read: each row a small repository to be completed, and a test file that the grader brings.

The columns: question_id, question, solution, test (or test_code), test_info, gpt_difficulty, and others that are not
used. A trainer's parquet may keep the row in `extra_info`. Rows that cannot be a task are left out and counted.

Invariants:
- Neither the solution nor the tests are in the agent's tree.
- The tree's one commit is reproducible: its hash follows from the files alone, so that `base_commit` is known for every
  row without a repository.
"""

import ast
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.config.schema import EnvConfig
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.patch_files import lines_of
from swe_rl.env.records import refuse_duplicates
from swe_rl.env.swe.columns import with_columns
from swe_rl.env.swe.dataset import load_rows
from swe_rl.env.swe.prepared import Identity, is_evaluated
from swe_rl.env.swe.read import Read, usable

REPO = "kodcode"
MODULE, TESTS = "solution.py", "test_solution.py"
_BROKEN = "a test file without a test that Python can read"
_INNER = ("extra_info", "instance")
_TEST_COLUMNS = ("test", "test_code")
_WHO = b"bugs <bugs@localhost> 1767225600 +0000"  # as `commit_tree` signs


def read_split(config: EnvConfig, split: str) -> Read:
    """Raises InstanceError."""
    identity = Identity.of(config, split)
    key = "env.eval_dataset" if is_evaluated(config, split) else "env.dataset"
    loaded = load_rows(identity.dataset, split, revision=identity.wanted_revision, key=key)
    rows = with_columns(loaded.rows, identity.columns, config.name, identity.dataset, key.replace("dataset", "columns"))
    first = rows[0]
    if not is_row(first.record):
        raise InstanceError(
            f"{first.where}: KodCode's columns question, solution and test are needed; there are "
            f"{', '.join(list(first.record)[:8])}"
        )
    instances: list[Instance] = []
    broken: list[str] = []
    for row in rows:
        try:
            instances.append(to_instance(row.record, row.where))
        except InstanceError as error:
            if "column 'test' " not in str(error):
                raise
            broken.append(str(row.record.get("question_id") or row.where))
    refuse_duplicates(instances, f"{key}={identity.dataset}")
    kept, dropped = usable(instances, identity.max_tests)
    if broken:
        dropped = {_BROKEN: broken, **dropped}
    if not kept:
        raise InstanceError(f"{key}={identity.dataset}: {split} has no usable instance")
    return Read(kept, loaded.revision, len(loaded.rows), dropped, loaded.split_rows)


def is_row(record: Mapping[str, Any]) -> bool:
    record = _row(record)
    return "question" in record and any(column in record for column in _TEST_COLUMNS)


def to_instance(record: Mapping[str, Any], where: str) -> Instance:
    """Raises InstanceError naming `where` and the column."""
    row = _row(record)
    test = next((row[column] for column in _TEST_COLUMNS if isinstance(row.get(column), str)), "")
    for column, value in (("question", row.get("question")), ("solution", row.get("solution")), ("test", test)):
        if not isinstance(value, str) or not value.strip():
            raise InstanceError(f"{where}: column {column!r} is missing or empty; KodCode's columns are needed")
    declarations = _declarations(row.get("test_info"), row["solution"])
    instance_id = _name(str(row.get("question_id") or row.get("conversation_id") or ""), where)
    return Instance(
        instance_id=instance_id,
        repo=f"{REPO}/{instance_id}",
        base_commit=commit_hash({MODULE: stub(declarations)}),
        problem_statement=_statement(row["question"], declarations),
        patch=_new_file(MODULE, row["solution"], replaces=stub(declarations)),
        test_patch=_new_file(TESTS, test),
        fail_to_pass=tuple(f"{TESTS}::{name}" for name in test_names(test, where)),
        pass_to_pass=(),
        difficulty=str(row.get("gpt_difficulty") or row.get("difficulty") or ""),
        hints_text="\n".join(declarations),
    )


def tree_of(instance: Instance) -> dict[str, str]:
    """The files that an agent starts with: the module, with what is to be written as stubs."""
    return {MODULE: stub(instance.hints_text.split("\n") if instance.hints_text else [])}


def stub(declarations: Sequence[str]) -> str:
    parts = [f"{line.rstrip().removesuffix(':')}:\n    raise NotImplementedError\n" for line in declarations if line]
    return "\n\n".join(parts)


def commit_hash(files: Mapping[str, str]) -> str:
    """Of the only commit that `commit_tree` makes of these files (Git Internals, "Git Objects")."""
    entries = b""
    for name in sorted(files):
        entries += b"100644 " + name.encode() + b"\0" + bytes.fromhex(_object("blob", files[name].encode()))
    tree = _object("tree", entries)
    return _object("commit", b"tree %s\nauthor %s\ncommitter %s\n\nImport\n" % (tree.encode(), _WHO, _WHO))


def test_names(source: str, where: str) -> list[str]:
    """Functions `test*` and methods of classes `Test*`, as pytest finds them. Raises InstanceError for none."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise InstanceError(f"{where}: column 'test' is not Python ({error.msg}, line {error.lineno})") from error
    names = [name for node in body for name in _tests_of(node)]
    if not names:
        raise InstanceError(f"{where}: column 'test' has no test function")
    return list(dict.fromkeys(names))


def _tests_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
        return [node.name]
    if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
        return [f"{node.name}::{name}" for inner in node.body for name in _tests_of(inner)]
    return []


def _row(record: Mapping[str, Any]) -> Mapping[str, Any]:
    for column in _INNER:
        inner = record.get(column)
        if "question" not in record and isinstance(inner, Mapping) and "question" in inner:
            return inner
    return record


def _name(question_id: str, where: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", question_id).strip("._-")
    if not name:
        raise InstanceError(f"{where}: column 'question_id' is missing or empty; KodCode's columns are needed")
    return name


def _declarations(test_info: Any, solution: str) -> list[str]:
    """What the tests call, as the data set says it; else the solution's top functions and classes, heads only."""
    if isinstance(test_info, str):
        try:
            test_info = json.loads(test_info)
        except ValueError:
            test_info = None
    entries = [entry for entry in test_info or () if isinstance(entry, Mapping)]
    lines = [str(entry.get("function_declaration") or "").strip() for entry in entries]
    heads = [line for line in lines if line.startswith(("def ", "async def ")) and "\n" not in line]
    return heads or _heads(solution)


def _heads(solution: str) -> list[str]:
    try:
        body = ast.parse(solution).body
    except SyntaxError:
        return []
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [ast.unparse(_emptied(node)).split("\n")[-2].rstrip(":") for node in functions]


def _emptied(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
    node.body, node.decorator_list = [ast.Pass()], []
    return node


def _statement(question: str, declarations: Sequence[str]) -> str:
    wanted = f" Keep these declarations:\n\n{chr(10).join(declarations)}\n" if declarations else "\n"
    return f"{question.strip()}\n\nWrite the solution into {MODULE} of this repository.{wanted}"


def _new_file(path: str, text: str, replaces: str = "") -> str:
    """A diff that makes `path` say `text`; `replaces` is what it says before, nothing for a new file."""
    added = lines_of(text, ends=False)
    removed = lines_of(replaces, ends=False)
    head = f"diff --git a/{path} b/{path}\n"
    if not replaces:
        head += f"new file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +{_span(added)} @@\n"
    else:
        head += f"--- a/{path}\n+++ b/{path}\n@@ -{_span(removed)} +{_span(added)} @@\n"
    return head + "".join(f"-{line}\n" for line in removed) + "".join(f"+{line}\n" for line in added)


def _span(lines: Sequence[str]) -> str:
    return f"{1 if lines else 0},{len(lines)}"


def _object(kind: str, content: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).hexdigest()
