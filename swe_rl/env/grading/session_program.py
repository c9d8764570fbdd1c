"""Runs pytest in a grading sandbox and writes each test's result into a file. `session.py` starts it.

Invariants:
- This file stands alone (Python 3.6 and later, pytest 3 and later): its text is put into sandboxes.
- pytest is imported before the tested folder can be imported from, so nothing in there can stand in for it.
- Tested code shares this process, and may change a result or write what it likes into the file. But it does not know
  which of the results belong to twins.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable  # noqa: UP035 - 3.6 has no other


def make_tell(path: str) -> "Callable[[dict[str, Any]], None]":
    """Returns a function that writes records in the first process alone, not in those that it forks."""
    results = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    first = os.getpid()

    def tell(record: "dict[str, Any]") -> None:
        if os.getpid() == first:
            os.write(results, json.dumps(record).encode() + b"\n")

    return tell


def make_reporter(tell: "Callable[[dict[str, Any]], None]") -> object:
    """Returns a pytest plugin that tells each test's result."""
    import pytest

    class Reporter:
        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            result = yield
            tell({"test": item.nodeid, "when": call.when, "outcome": outcome_of(result.get_result())})

    return Reporter()


def outcome_of(report: Any) -> str:
    """Returns what became of a test, by its report."""
    if getattr(report, "wasxfail", None) is not None:
        return "xfailed" if report.outcome == "skipped" else "xpassed"
    return str(report.outcome)


def main() -> None:
    """Runs pytest and ends the process with its status. The command line has the file and the arguments of pytest."""
    tell = make_tell(sys.argv[1])
    arguments = sys.argv[2:]
    sys.path.pop(0)  # this script's folder comes first there
    import pytest

    tell({"ready": pytest.__version__})
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = ["pytest", *arguments]
    status = int(pytest.main(arguments, plugins=[make_reporter(tell)]))
    tell({"finished": status})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # nothing that tested code registered for the end of the process is waited for


if __name__ == "__main__":
    main()
