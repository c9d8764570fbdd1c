"""Reads SWE-smith's rows: bugs that were put into a repository, one image for each repository.

The image holds the repository without the bug, `patch` puts it in, and its reverse is the fix.

Invariants:
- A fresh container becomes the base tree by `setup_script`, with no network and nothing of the fix in its history.
- The instance's `patch` is the fix, as everywhere else.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.dataset.instance import Instance, InstanceError, check_id
from swe_rl.env.swe.reverse import reverse_patch

# A row may name its image without the organisation that publishes it.
_ORGANISATION = "jyangballin"
_COLUMNS = ("instance_id", "repo", "patch", "problem_statement")


def is_row(record: Mapping[str, Any]) -> bool:
    """Tells whether a record is SWE-smith's, by the name of its image or repository."""
    return "swesmith" in str(record.get("image_name") or record.get("repo") or "")


def image_name(name: str) -> str:
    """Returns the name under which an image is published.

    `swesmith.x86_64.a__b.0123` and `jyangballin/swesmith.x86_64.a_1776_b.0123:latest` are the same image.
    """
    full = name if "/" in name else f"{_ORGANISATION}/{name}"
    return full.replace("__", "_1776_").lower()


def to_instance(record: Mapping[str, Any], where: str) -> Instance:
    """Returns the instance of a row. Raises InstanceError naming `where` and the column."""
    for column in _COLUMNS:
        if not isinstance(record.get(column), str) or not record[column].strip():
            raise InstanceError(f"{where}: column {column!r} is missing or empty; SWE-smith's columns are needed")
    check_id(record["instance_id"], where)
    bug = record["patch"]
    base_commit = str(record.get("base_commit") or "") or name_of_base(record["instance_id"])
    common = {
        "instance_id": record["instance_id"],
        "repo": record["repo"],
        "base_commit": base_commit,
        "problem_statement": record["problem_statement"],
        "patch": reverse_patch(bug, where),
        "test_patch": "",
        "FAIL_TO_PASS": record.get("FAIL_TO_PASS"),
        "PASS_TO_PASS": record.get("PASS_TO_PASS"),
        "image": image_name(str(record.get("image_name") or _image_of_repo(record["repo"]))),
        "created_at": record.get("created_at"),
        "setup_script": _setup_script(bug, base_commit),
        "log_parser": str(record.get("log_parser") or "parse_log_pytest"),
        "eval_type": str(record.get("eval_type") or "pass_and_fail"),
    }
    instance = Instance.from_record(common, where)
    eval_script = str(record.get("eval_script") or "") or _eval_script([*instance.fail_to_pass, *instance.pass_to_pass])
    return Instance.from_record(common | {"eval_script": eval_script}, where)


def name_of_base(instance_id: str) -> str:
    """Returns a commit's name for a base tree to which the data set gives none.

    It has 40 hexadecimal digits that follow from the instance's id.
    """
    return hashlib.sha1(instance_id.encode(), usedforsecurity=False).hexdigest()


def commit_as(base_commit: str, untracked: Sequence[str] = ()) -> str:
    """Returns bash that makes the tracked files of the tree in /testbed its only commit.

    The commit is found as `base_commit` as well. `untracked` names what git is not to see there.
    """
    ignore = f"printf '%s\\n' {' '.join(untracked)} > .git/info/exclude\n" if untracked else ""
    return (
        "git ls-files -z > /tmp/.tracked\nrm -rf .git\ngit init -q .\nmkdir -p .git/info\n"
        f"{ignore}xargs -0 git add -f -- < /tmp/.tracked\nrm /tmp/.tracked\n"
        "git -c user.name=base -c user.email=base@localhost -c commit.gpgsign=false commit -q -m base\n"
        f"git update-ref refs/replace/{base_commit} HEAD\n"
    )


def _image_of_repo(repo: str) -> str:
    """Returns the name of the image that was made from a mirror.

    `swesmith/a__b.0123` is the mirror of the image `swesmith.x86_64.a_1776_b.0123`.
    """
    return f"swesmith.x86_64.{repo.rpartition('/')[2]}"


def _setup_script(bug: str, base_commit: str) -> str:
    """Returns bash that puts the bug into a fresh container's tree and hides the tree's history."""
    encoded = base64.b64encode(bug.encode()).decode()
    return (
        f"set -e\ncd /testbed\ngit config --global --add safe.directory /testbed\n"
        f"echo {encoded} | base64 -d | git apply --index --whitespace=nowarn -\n{commit_as(base_commit)}"
    )


def _eval_script(tests: list[str]) -> str:
    """Returns a script that runs the files of all tests, and an empty text for tests of another language.

    What the harness reads lies between the script's two marks. For another language, the command and the reader of the
    log are in the program that made the data set, and in no column.
    """
    if not all(test.split("::")[0].endswith(".py") for test in tests):
        return ""
    files = " ".join(sorted({f"'{test.split('::')[0]}'" for test in tests}))
    return (
        "#!/bin/bash\nset -uxo pipefail\nsource /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed\n"
        f": '>>>>> Start Test Output'\npytest -rA --tb=short -p no:cacheprovider {files}\n"
        ": '>>>>> End Test Output'\n"
    )
