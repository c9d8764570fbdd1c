"""The official harness's own code in a process of its own: reads requests as JSON lines, answers as JSON lines.

Invariants:
- Nothing of `swebench` is re-implemented here: the script, the ways to apply a patch, the log readers and the verdict
  are its functions' and constants'.
- It runs no command and opens no connection; what it reads is a record and the text of a log.
- Started by `swebench_grading`; its imports (docker, datasets, modal) and a log that makes a reader slow stay in here.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from swe_rl.env.grading.log_check import END, START, check_log


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what an import prints is no answer
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")
        answers.flush()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return _ANSWERS[request["ask"]](request)
    except ImportError as error:
        return {"missing": str(error)}
    except Exception as error:  # of a foreign package: its words go to whoever asked
        return {"error": f"{type(error).__name__}: {error}"}


def _spec(request: dict[str, Any]) -> dict[str, Any]:
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


def _report(request: dict[str, Any]) -> dict[str, Any]:
    from swebench.harness.grading import get_logs_eval, get_resolution_status
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    spec = make_test_spec(request["record"])
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as log:
        report = _read(spec, request["log"], log)
        statuses = get_logs_eval(spec, log.name)[0]
    tests = report.get("tests_status")
    answer: dict[str, Any] = {
        "report": report,
        "num_results": len(PARSER_REGISTRY[spec.log_parser](_region(request["log"]), spec)),
        "resolution": get_resolution_status(tests) if tests else "RESOLVED_NO",
        "findings": check_log(request["log"], statuses, spec.log_parser, request["nonce"]),
    }
    if "signed" in request:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as log:
            signed = _read(spec, request["signed"], log).get("tests_status") or {}
        answer["signed"] = [test for status in signed.values() for test in status["success"]]
    return answer


def _tests(request: dict[str, Any]) -> dict[str, Any]:
    """Every test that the log names, with its status."""
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    spec = make_test_spec(request["record"])
    return {"tests": PARSER_REGISTRY[spec.log_parser](_region(request["log"]), spec)}


def _read(spec: Any, text: str, log: Any) -> dict[str, Any]:
    from swebench.harness.grading import get_eval_report

    log.write(text)
    log.flush()
    prediction = {"instance_id": spec.instance_id, "model_name_or_path": "swe_rl", "model_patch": "patch"}
    report: dict[str, Any] = get_eval_report(spec, prediction, log.name, include_tests_status=True)[spec.instance_id]
    return report


def _region(log: str) -> str:
    """What the tests printed: all of it after their beginning, also where they never came to their end."""
    return log.split(START, 1)[-1].split(END, 1)[0]


_ANSWERS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "spec": _spec,
    "report": _report,
    "tests": _tests,
}

if __name__ == "__main__":
    main()
