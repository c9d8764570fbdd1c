"""Runs the official harness's own code in a process of its own: reads requests and answers them as JSON lines.

Invariants:
- Nothing of `swebench` is re-implemented here: the script, the ways to apply a patch, the log readers and the verdict
  are its functions' and constants'.
- It runs no command and opens no connection; what it reads is a record and the text of a log.
- What a reader of logs raises is said as such (`unreadable`): tested code wrote the log, and chose what it raises.
- `swebench_process` starts it. Its imports (docker, datasets, modal) and a log that makes a reader slow stay in here.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from swe_rl.env.grading.log_check import region_of, with_failures


def main() -> None:
    """Answers requests from the standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # text that an import prints is no answer
    for line in sys.stdin:
        answers.write(json.dumps(_answer_request(json.loads(line))) + "\n")
        answers.flush()


def _answer_request(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return _ANSWERS[request["ask"]](request)
    except UnreadableError as error:
        return {"unreadable": str(error)}
    except ImportError as error:
        return {"missing": str(error)}
    except Exception as error:  # a foreign package raised it, and its words go to whoever asked
        return {"error": f"{type(error).__name__}: {error}"}


class UnreadableError(Exception):
    """Says that a reader of logs came to no end with this one."""


@contextmanager
def _raise_unreadable() -> Iterator[None]:
    """Raises UnreadableError for whatever is raised in this block."""
    try:
        yield
    except Exception as error:
        raise UnreadableError(f"{type(error).__name__}: {error!s:.300}") from error


def _make_spec(request: dict[str, Any]) -> dict[str, Any]:
    import swebench
    from swebench.harness.constants import CONTAINER_PATCH_FILE
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.run_evaluation import GIT_APPLY_CMDS
    from swebench.harness.utils import make_test_spec

    spec = make_test_spec(request["record"])
    if spec.log_parser not in PARSER_REGISTRY:
        raise ValueError(f"log_parser={spec.log_parser!r} is none of the harness's: {', '.join(PARSER_REGISTRY)}")
    return {
        "version": swebench.__version__,
        "eval_script": spec.eval_script,
        "apply_commands": list(GIT_APPLY_CMDS),
        "patch_file": CONTAINER_PATCH_FILE,
    }


def _make_report(request: dict[str, Any]) -> dict[str, Any]:
    from swebench.harness.grading import get_resolution_status
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    spec = make_test_spec(request["record"])
    log = request["log"]
    with _raise_unreadable():
        # `without_twins` is the same log as the harness expects it.
        report = _read_report(spec, with_failures(request.get("without_twins", log)))
        statuses = PARSER_REGISTRY[spec.log_parser](region_of(with_failures(log)), spec)
        tests = report.get("tests_status")
        answer: dict[str, Any] = {
            "report": report,
            "num_results": len(statuses),
            "tests": statuses,
            "resolution": get_resolution_status(tests) if tests else "RESOLVED_NO",
        }
    return answer


def _list_tests(request: dict[str, Any]) -> dict[str, Any]:
    """Returns every test that the log names, with its status."""
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    spec = make_test_spec(request["record"])
    with _raise_unreadable():
        return {"tests": PARSER_REGISTRY[spec.log_parser](region_of(with_failures(request["log"])), spec)}


def _read_report(spec: Any, text: str) -> dict[str, Any]:
    """Returns the harness's own report on a log."""
    from swebench.harness.grading import get_eval_report

    prediction = {"instance_id": spec.instance_id, "model_name_or_path": "swe_rl", "model_patch": "patch"}
    with _file_of(text) as path:
        reports: dict[str, dict[str, Any]] = get_eval_report(spec, prediction, path, include_tests_status=True)
    return reports[spec.instance_id]


@contextmanager
def _file_of(text: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", errors="replace", suffix=".txt") as file:
        file.write(text)
        file.flush()
        yield file.name


_ANSWERS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "spec": _make_spec,
    "report": _make_report,
    "tests": _list_tests,
}

if __name__ == "__main__":
    main()
