"""Reads a split of KodCode: each row is a small repository to be completed, and a test file that the grader brings.

The columns are question_id, question, solution, test (or test_code), test_info, gpt_difficulty, and others that are not
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
from swe_rl.dataset.find_rows import load_rows
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.records import refuse_duplicates
from swe_rl.env.patch_hunks import HunkHeader, Span
from swe_rl.env.swe.columns import with_columns
from swe_rl.env.swe.prepared import PreparedIdentity, is_evaluated
from swe_rl.env.swe.read import Read, usable_instances
from swe_rl.files.lines import lines_of

REPO = "kodcode"
# The agent writes the module; the grader brings the tests.
MODULE = "solution.py"
TESTS = "test_solution.py"
_BROKEN = "a test file without a test that Python can read"
# A trainer's parquet may keep the row in one of these columns.
_INNER = ("extra_info", "instance")
_TEST_COLUMNS = ("test", "test_code")
# The author is the one with which `commit_tree` signs: another one would give another hash.
_WHO = b"bugs <bugs@localhost> 1767225600 +0000"


def read_split(config: EnvConfig, split: str) -> Read:
    """Returns the usable instances of a split, read from the data set.

    Raises InstanceError, also where no instance is usable.
    """
    identity = PreparedIdentity.of(config, split)
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
    placed_ids: list[tuple[str, str]] = []
    broken: list[str] = []
    for row in rows:
        try:
            instances.append(to_instance(row.record, row.where))
            placed_ids.append((instances[-1].instance_id, row.where))
        except InstanceError as error:
            if "column 'test' " not in str(error):
                raise
            broken.append(str(row.record.get("question_id") or row.where))
    refuse_duplicates(placed_ids)
    kept, dropped = usable_instances(instances, identity.max_tests)
    if broken:
        dropped = {_BROKEN: broken, **dropped}
    if not kept:
        raise InstanceError(f"{key}={identity.dataset}: {split} has no usable instance")
    return Read(kept, loaded.revision, len(loaded.rows), dropped, loaded.split_rows)


def is_row(record: Mapping[str, Any]) -> bool:
    record = _inner_row(record)
    return "question" in record and any(column in record for column in _TEST_COLUMNS)


def to_instance(record: Mapping[str, Any], where: str) -> Instance:
    """Returns the instance of a row. Raises InstanceError naming `where` and the column."""
    row = _inner_row(record)
    test = next((row[column] for column in _TEST_COLUMNS if isinstance(row.get(column), str)), "")
    for column, value in (("question", row.get("question")), ("solution", row.get("solution")), ("test", test)):
        if not isinstance(value, str) or not value.strip():
            raise InstanceError(f"{where}: column {column!r} is missing or empty; KodCode's columns are needed")
    check_tests(test, where)
    declarations = _read_declarations(row.get("test_info"), row["solution"])
    instance_id = _instance_name(str(row.get("question_id") or row.get("conversation_id") or ""), where)
    return Instance(
        instance_id=instance_id,
        repo=f"{REPO}/{instance_id}",
        base_commit=commit_hash({MODULE: write_stub(declarations)}),
        problem_statement=_make_statement(row["question"], declarations),
        patch=_new_file(MODULE, row["solution"], replaces=write_stub(declarations)),
        test_patch=_new_file(TESTS, test),
        fail_to_pass=(TESTS,),  # The file stands for every test in it, because only pytest knows which these are.
        pass_to_pass=(),
        difficulty=str(row.get("gpt_difficulty") or row.get("difficulty") or ""),
        hints_text="\n".join(declarations),
    )


def tree_of(instance: Instance) -> dict[str, str]:
    """Returns the files that an agent starts with: the module, with what is to be written as stubs."""
    return {MODULE: write_stub(instance.hints_text.split("\n") if instance.hints_text else [])}


def write_stub(declarations: Sequence[str]) -> str:
    """Returns Python that raises NotImplementedError below each declaration."""
    parts = [f"{line.rstrip().removesuffix(':')}:\n    raise NotImplementedError\n" for line in declarations if line]
    return "\n\n".join(parts)


def commit_hash(files: Mapping[str, str]) -> str:
    """Returns the hash of the only commit that `commit_tree` makes of these files (Git Internals, "Git Objects")."""
    entries = b""
    for name in sorted(files):
        entries += b"100644 " + name.encode() + b"\0" + bytes.fromhex(_hash_object("blob", files[name].encode()))
    tree = _hash_object("tree", entries)
    return _hash_object("commit", b"tree %s\nauthor %s\ncommitter %s\n\nImport\n" % (tree.encode(), _WHO, _WHO))


def check_tests(source: str, where: str) -> None:
    """Refuses tests that are no Python, or in which pytest can find no test. Raises InstanceError.

    Pytest finds none where nothing is defined, imported or assigned that is called `test*`, and no class could inherit
    a test.
    """
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        words = f"{getattr(error, 'msg', error)}{f', line {line}' if line else ''}"
        raise InstanceError(f"{where}: column 'test' is not Python ({words})") from error
    if not any(map(_may_be_a_test, nodes)):
        raise InstanceError(f"{where}: column 'test' has no test function")


def _may_be_a_test(node: ast.AST) -> bool:
    """Tells whether pytest might find a test in this node of the syntax tree."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name.startswith("test")
    if isinstance(node, ast.ClassDef):
        return bool(node.bases)
    if isinstance(node, ast.alias):
        return (node.asname or node.name).startswith(("test", "Test", "*"))
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.startswith("test")


def _inner_row(record: Mapping[str, Any]) -> Mapping[str, Any]:
    for column in _INNER:
        inner = record.get(column)
        if "question" not in record and isinstance(inner, Mapping) and "question" in inner:
            return inner
    return record


def _instance_name(question_id: str, where: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", question_id).strip("._-")
    if not name:
        raise InstanceError(f"{where}: column 'question_id' is missing or empty; KodCode's columns are needed")
    return name


def _read_declarations(test_info: Any, solution: str) -> list[str]:
    """Returns what the tests call, as the data set says it.

    If it does not say it, these are the heads of the solution's top functions.
    """
    if isinstance(test_info, str):
        try:
            test_info = json.loads(test_info)
        except ValueError:
            test_info = None
    entries = [entry for entry in test_info or () if isinstance(entry, Mapping)]
    lines = [str(entry.get("function_declaration") or "").strip() for entry in entries]
    heads = [line for line in lines if line.startswith(("def ", "async def ")) and "\n" not in line]
    return heads or _function_heads(solution)


def _function_heads(solution: str) -> list[str]:
    """Returns the heads of the solution's top functions, and none where it is no Python."""
    try:
        body = ast.parse(solution).body
    except SyntaxError:
        return []
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [ast.unparse(_empty_body(node)).split("\n")[-2].rstrip(":") for node in functions]


def _empty_body(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
    node.body, node.decorator_list = [ast.Pass()], []
    return node


def _make_statement(question: str, declarations: Sequence[str]) -> str:
    wanted = f" Keep these declarations:\n\n{chr(10).join(declarations)}\n" if declarations else "\n"
    return f"{question.strip()}\n\nWrite the solution into {MODULE} of this repository.{wanted}"


def _new_file(path: str, text: str, replaces: str = "") -> str:
    """Returns a diff that makes `path` say `text`.

    `replaces` is what the file says before, and empty for a new file.
    """
    added = lines_of(text, ends=False)
    removed = lines_of(replaces, ends=False)
    head = f"diff --git a/{path} b/{path}\n"
    if not replaces:
        head += f"new file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    else:
        head += f"--- a/{path}\n+++ b/{path}\n"
    head += f"{HunkHeader(_span_of(removed), _span_of(added))}\n"
    return head + "".join(f"-{line}\n" for line in removed) + "".join(f"+{line}\n" for line in added)


def _span_of(lines: Sequence[str]) -> Span:
    return Span(1 if lines else 0, len(lines))


def _hash_object(kind: str, content: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).hexdigest()
