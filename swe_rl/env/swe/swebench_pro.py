"""Reads the rows of SWE-bench Pro, whose tests a script of its repository runs, and whose logs a program there reads.

The repository (scaleapi/SWE-bench_Pro-os) has a folder `run_scripts`, which `env.scripts` names. For each instance it
has `run_script.sh` and `parser.py`.

Invariants:
- The order of its own evaluation is kept: base commit, patch, the last line of `before_repo_set_cmd` (which brings the
  tests), the script over `selected_test_files_to_run`, the parser. An instance is resolved if each FAIL_TO_PASS and
  PASS_TO_PASS test has the status PASSED.
- Script and parser are in no file of the sandbox while code of the patch could change them: the parser becomes a file
  when the tests have ended.
- What the parser says is printed as pytest prints its summary, so twins and readers know it.
"""

import ast
import base64
import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.grading.log_check import END, START

# An instance's `log_parser` names its reader so.
LOG_PARSER = "swebench_pro"
WORKDIR = "/app"
_IMAGES = "docker.io/jefzda/sweap-images"
_MARKS = ("before_repo_set_cmd", "selected_test_files_to_run")
_FILES = ("run_script.sh", "parser.py")
# The tree of an image may be another user's.
_GIT_VARIABLES = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "'*'"}
_ANYBODYS_TREE = "export " + " ".join(f"{name}={value}" for name, value in _GIT_VARIABLES.items())
# The statements in the sandbox that print what the parser wrote.
_PRINT = """
import json, sys
words = {"PASSED", "FAILED", "SKIPPED", "ERROR"}
for test in json.load(open(sys.argv[1]))["tests"]:
    status = test["status"] if test["status"] in words else "FAILED"
    print(status, " ".join(str(test["name"]).split("\\n")))
"""


def is_row(record: Mapping[str, Any]) -> bool:
    """Tells whether a record is a row of SWE-bench Pro."""
    return all(column in record for column in _MARKS)


def to_instance(record: Mapping[str, Any], where: str, scripts: Path | None) -> Instance:
    """Returns the instance of a row. Without its script and its parser it has no `eval_script`.

    Raises InstanceError naming `where` and the column.
    """
    if scripts is None:
        raise InstanceError(
            f"{where}: a row of SWE-bench Pro, whose tests are run by scripts of its repository: "
            "git clone https://github.com/scaleapi/SWE-bench_Pro-os, and env.scripts=SWE-bench_Pro-os/run_scripts"
        )
    files = [_read_text(record, "base_commit", where), *_read_list(record, "selected_test_files_to_run", where)]
    base_commit, *selected = files
    statement = [_unwrapped(_read_text(record, "problem_statement", where))]
    for title, column in (("Requirements", "requirements"), ("New interfaces introduced", "interface")):
        if record.get(column):
            statement.append(f"{title}:\n{_unwrapped(_read_text(record, column, where))}")
    tag = str(record.get("dockerhub_tag") or "").strip()
    common = {
        **{column: record.get(column) for column in ("instance_id", "repo", "patch", "test_patch", "source")},
        "base_commit": base_commit,
        "problem_statement": "\n\n".join(statement),
        "FAIL_TO_PASS": _read_tests(record, "fail_to_pass", where),
        "PASS_TO_PASS": _read_tests(record, "pass_to_pass", where),
        "image": f"{_IMAGES}:{tag}" if tag else "",
        "workdir": WORKDIR,
        "log_parser": LOG_PARSER,
        "setup_script": _setup_script(base_commit),
    }
    instance = Instance.from_record(common, where)
    before = _read_text(record, "before_repo_set_cmd", where).strip().split("\n")[-1]
    script = _eval_script(scripts / instance.instance_id, before, selected)
    return Instance.from_record(common | {"eval_script": script}, where)


def digest_of_scripts(scripts: str | None) -> str:
    """Returns a hash of all scripts and parsers, and an empty text where none are named. Raises InstanceError."""
    if scripts is None:
        return ""
    folder = Path(scripts)
    digest = hashlib.sha256()
    try:
        for path in sorted(path for name in _FILES for path in folder.glob(f"*/{name}")):
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    except OSError as error:
        raise InstanceError(f"env.scripts={scripts} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:16]


def _setup_script(base_commit: str) -> str:
    commit = shlex.quote(base_commit)
    return f"set -e\n{_ANYBODYS_TREE}\ngit reset -q --hard {commit}\ngit checkout -q {commit}\n"


def _eval_script(folder: Path, before: str, selected: list[str]) -> str:
    """Returns the script of an instance, or an empty text where its repository has none."""
    try:
        run, parser = ((folder / name).read_bytes() for name in _FILES)
    except OSError:
        return ""
    lines = [
        "#!/bin/bash",
        f"swe_rl_run={_encoded(run)}",
        f"swe_rl_parser={_encoded(parser)}",
        "swe_rl_python=$(command -v python || command -v python3)",
        _ANYBODYS_TREE,
        before,
        f"unset {' '.join(_GIT_VARIABLES)}",
        f"echo '{START}'",
        "swe_rl_logs=$(mktemp -d)",
        'echo "$swe_rl_run" | base64 -d > "$swe_rl_logs/run_script.sh"',
        f'bash "$swe_rl_logs/run_script.sh" {shlex.quote(",".join(selected))} '
        '> "$swe_rl_logs/stdout.log" 2> "$swe_rl_logs/stderr.log"',
        'cat "$swe_rl_logs/stdout.log" "$swe_rl_logs/stderr.log"',
        f"echo '{END}'",
        'echo "$swe_rl_parser" | base64 -d > "$swe_rl_logs/parser.py"',
        'rm -f "$swe_rl_logs/output.json"',
        '"$swe_rl_python" "$swe_rl_logs/parser.py" "$swe_rl_logs/stdout.log" "$swe_rl_logs/stderr.log" '
        '"$swe_rl_logs/output.json"',
        "echo '=== short test summary info ==='",
        f'"$swe_rl_python" -I -c {shlex.quote(_PRINT)} "$swe_rl_logs/output.json"',
    ]
    return "\n".join([*lines, ""])


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _read_text(record: Mapping[str, Any], column: str, where: str) -> str:
    value = record.get(column)
    if not isinstance(value, str) or not value.strip():
        raise InstanceError(f"{where}: column {column!r} is missing or empty; SWE-bench Pro's columns are needed")
    return value


def _unwrapped(text: str) -> str:
    """Returns a text that some rows have inside of JSON's quotes."""
    if text[:1] == text[-1:] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text


def _read_tests(record: Mapping[str, Any], column: str, where: str) -> list[str]:
    """Returns a list of tests. Its column is written in small or in capital letters."""
    if column not in record and column.upper() in record:
        return _read_list(record, column.upper(), where)
    return _read_list(record, column, where)


def _read_list(record: Mapping[str, Any], column: str, where: str) -> list[str]:
    """Returns a list that is a list, or the text of one as JSON or as Python writes it. Raises InstanceError."""
    value = record.get(column)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = _python_list(value)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise InstanceError(f"{where}: column {column!r} must be a list of texts, or the text of such a list")
    return list(value)


def _python_list(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
