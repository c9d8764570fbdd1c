"""Reads R2E-Gym's rows: tasks made of commits, with the statuses that their tests are to have.

The image holds the tree before the commit in /testbed, its environment in /testbed/.venv, and the tests in /r2e_tests
with a script /testbed/run_tests.sh. The log is read by `parse_log`, whose names have dots: `TestClass.test_name`.

Invariants:
- Tests and files that tell the answer are taken out of an agent's container (`hide_script`); the grader's has them.
- Resolved means that every test that is to pass does; tests that are to fail are not looked at.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from swe_rl.dataset.instance import Instance, InstanceError, check_id
from swe_rl.env.grading.log_text import failing_lines, strip_escapes
from swe_rl.env.patch_hunks import HunkHeader, Span
from swe_rl.env.swe.swe_smith import commit_as, name_of_base

LOG_PARSER = "r2e_gym"  # An instance's `log_parser` names `parse_log` so.
_COLUMNS = ("repo_name", "docker_image", "commit_hash", "problem_statement", "parsed_commit_content")
# These files hold the tests or their expected results, so they are moved out of the tree.
_ANSWERS = (
    "/r2e_tests",
    "/testbed/r2e_tests",
    "/testbed/run_tests.sh",
    "/testbed/expected_test_output.json",
    "/testbed/execution_result.json",
    "/testbed/parsed_commit.json",
    "/testbed/syn_issue.json",
    "/testbed/modified_files.json",
    "/testbed/modified_entities.json",
)
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_VERDICT = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) +(\S[^\r\n]*)", re.MULTILINE)
# Tests whose names become the same, but whose statuses differ, get this status: they are not to pass.
_DISAGREEING = "FAILED"
# A diff's line begins with the sign of its kind.
_SIGNS = {"context": " ", "added": "+", "deleted": "-", "note": ""}


def is_row(record: Mapping[str, Any]) -> bool:
    return "docker_image" in record and "expected_output_json" in record


def to_instance(record: Mapping[str, Any], where: str) -> Instance:
    """Returns the instance of a row. Raises InstanceError naming `where` and the column."""
    for column in _COLUMNS:
        if not isinstance(record.get(column), str) or not record[column].strip():
            raise InstanceError(f"{where}: column {column!r} is missing or empty; R2E-Gym's columns are needed")
    instance_id = str(record.get("instance_id") or f"{record['repo_name']}__{record['commit_hash'][:10]}")
    check_id(instance_id, where)
    expected = _by_test(_read_json(record, "expected_output_json", where))
    before = _statuses_before(_read_json(record, "execution_result_content", where, default="{}"))
    passing = [name for name, status in expected.items() if status == "PASSED" and name]
    diffs = _read_json(record, "parsed_commit_content", where).get("file_diffs") or []
    tests = _test_files(diffs, record.get("relevant_files"))
    base_commit = name_of_base(instance_id)
    return Instance(
        instance_id=instance_id,
        repo=record["repo_name"],
        base_commit=base_commit,
        problem_statement=_inner_statement(record["problem_statement"]),
        patch="".join(_unified_diff(diff) for diff in diffs if _diff_path(diff) not in tests),
        test_patch="".join(_unified_diff(diff) for diff in diffs if _diff_path(diff) in tests),
        fail_to_pass=tuple(name for name in passing if before.get(name) != "PASSED"),
        pass_to_pass=tuple(name for name in passing if before.get(name) == "PASSED"),
        image=record["docker_image"],
        eval_script=_EVAL_SCRIPT,
        log_parser=LOG_PARSER,
        eval_type="pass_and_fail",
        setup_script=_SETUP_SCRIPT + commit_as(base_commit, (".venv", "r2e_tests", "run_tests.sh")),
        hide_script=f"rm -rf {' '.join((*_ANSWERS, _KEPT))}\n",
    )


def parse_log(log: str) -> dict[str, str]:
    """Returns each test's status, from the last summary of `run_tests.sh`.

    A test's file is left out of its name, and `::` becomes a dot. What any line calls failed has failed.
    """
    log = strip_escapes(log)
    headers = list(_SUMMARY.finditer(log))
    if not headers:
        return {}
    summary = "\n".join([log[headers[-1].end() :], *failing_lines(log)])
    return {_dotted_name(words): status for status, words in _VERDICT.findall(summary) if "::" in words}


def _dotted_name(words: str) -> str:
    """Returns a test's name as R2E-Gym writes it.

    The rest of the line is the name, up to where a message may begin.
    """
    return ".".join(words.split("::")[1:]).split(" - ")[0].rstrip()


_KEPT = "/var/lib/r2e_gym"  # The grader's copy of the tests is not in the tree, so no agent's commit can hold it.
_SETUP_SCRIPT = (
    "set -e\ncd /testbed\ngit config --global --add safe.directory /testbed\n"
    f"mkdir -p {_KEPT}\n"
    f"for name in {' '.join(_ANSWERS[2:])}; do if [ -e $name ]; then mv $name {_KEPT}/; fi; done\n"
    f"for name in {' '.join(_ANSWERS[:2])}; do "
    f"if [ -L $name ]; then rm $name; elif [ -d $name ]; then mv $name {_KEPT}/; fi; done\n"
    "git add -u .\n"
)
_EVAL_SCRIPT = (
    "#!/bin/bash\nset -uxo pipefail\ncd /testbed\n"
    f"rm -rf r2e_tests run_tests.sh\ncp -r {_KEPT}/r2e_tests r2e_tests\ncp {_KEPT}/run_tests.sh run_tests.sh\n"
    ": '>>>>> Start Test Output'\nbash run_tests.sh\n: '>>>>> End Test Output'\n"
)


def _inner_statement(text: str) -> str:
    """Returns the issue without the marks around it."""
    inner = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", text, re.DOTALL)
    return (inner[1] if inner else text).strip()


def _read_json(record: Mapping[str, Any], column: str, where: str, default: str | None = None) -> dict[str, Any]:
    """Returns the object in a column that holds JSON. Raises InstanceError."""
    text = record.get(column) or default
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError as error:
        raise InstanceError(f"{where}: column {column!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InstanceError(f"{where}: column {column!r} must be a JSON object")
    return {str(name): content for name, content in value.items()}


def _by_test(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the statuses by the names that `parse_log` gives tests.

    Where two tests get the same name, their statuses must agree.
    """
    named: dict[str, Any] = {}
    for written, status in expected.items():
        name = strip_escapes(written).split(" - ")[0].rstrip()
        named[name] = status if named.get(name, status) == status else _DISAGREEING
    return named


def _statuses_before(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns the statuses before the commit, from whichever field holds the old log.

    If no field has one, nothing is returned, and all tests count as new.
    """
    for key, value in result.items():
        if key.startswith("old"):
            text = value.get("stdout", "") if isinstance(value, Mapping) else value
            if isinstance(text, str) and (statuses := parse_log(text)):
                return statuses
    return {}


def _diff_path(diff: Mapping[str, Any]) -> str:
    return str(diff["header"]["file"]["path"])


def _test_files(diffs: list[Mapping[str, Any]], relevant: Any) -> set[str]:
    """Returns the files of the commit that are tests. What the data set calls relevant never is."""
    kept = set(relevant) if isinstance(relevant, list | tuple) else set()
    paths = {_diff_path(diff) for diff in diffs}
    return {
        path for path in paths if path not in kept and re.search(r"(^|/)(tests?|testing)/|(^|/)test_|_test\.", path)
    }


def _unified_diff(diff: Mapping[str, Any]) -> str:
    if diff.get("is_binary_file"):
        return ""
    path = _diff_path(diff)
    index = diff.get("index_line") or {}
    lines = [f"diff --git a/{path} b/{path}", *_mode_lines(diff, index)]
    if diff.get("hunks"):
        lines += [
            f"--- {_side_name(diff, 'minus_file')}",
            f"+++ {_side_name(diff, 'plus_file')}",
            *_hunk_lines(diff["hunks"]),
        ]
    return "\n".join(lines) + "\n"


def _mode_lines(diff: Mapping[str, Any], index: Mapping[str, Any]) -> Iterator[str]:
    misc = diff["header"].get("misc_line")
    if misc:
        yield str(misc)
    if index:
        mode = f" {index['mode']}" if index.get("mode") else ""
        yield f"index {index['old_commit_hash']}..{index['new_commit_hash']}{mode}"


def _side_name(diff: Mapping[str, Any], side: str) -> str:
    return str((diff.get(side) or {}).get("path") or "/dev/null")


def _hunk_lines(hunks: list[Mapping[str, Any]]) -> Iterator[str]:
    for hunk in hunks:
        descriptor = hunk["descriptor"]
        section = descriptor.get("section")
        old = _span_of(descriptor["old_range"])
        new = _span_of(descriptor["new_range"])
        yield str(HunkHeader(old, new, f" {section}" if section else ""))
        for line in hunk["line_group"]["all_lines"]:
            yield _SIGNS.get(str(line["type"]), " ") + str(line["content"])


def _span_of(span: Mapping[str, Any]) -> Span:
    return Span(span["start"], span.get("length"))
