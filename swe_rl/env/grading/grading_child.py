"""Runs pytest in a grading sandbox and tells each test's result over a channel of its own. grading_parent starts it.

Invariants:
- This file stands alone (Python 3.6 and later, pytest 3 and later): its text is put into sandboxes, with the text of
  runner_process.
- pytest is imported before the tested folder can be imported from, so nothing in there can stand in for it.
- A result is what pytest's own call of the test gave, signed with a key that was read before any tested code ran.
  Tested code shares this process: whoever finds the key in its memory can forge, but does not know the twins.
"""

import os
import sys
from pathlib import Path
from typing import Any, Callable  # noqa: UP035 - 3.6 has no other

from swe_rl.env.grading.runner_process import make_tell


def make_reporter(tell: "Callable[[dict[str, Any]], None]") -> object:
    """Returns a pytest plugin that tells each test's result."""
    import pytest

    class Reporter:
        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            result = yield
            tell({"test": item.nodeid, "when": call.when, "outcome": outcome_of(item, call, result.get_result())})

        @pytest.hookimpl(trylast=True)
        def pytest_collectreport(self, report: Any) -> None:
            if report.outcome == "failed":
                tell({"broken": report.nodeid})

    return Reporter()


def outcome_of(item: Any, call: Any, report: Any) -> str:
    """Returns what became of a test, by its call and its report."""
    if getattr(report, "wasxfail", None) is not None:
        return "xfailed" if report.outcome == "skipped" else "xpassed"
    # The call itself decides: hooks of the tested tree may have rewritten the report.
    if call.excinfo is None:
        return "passed" if report.outcome == "passed" else "failed"
    return "skipped" if report.outcome == "skipped" else "failed"


def main() -> None:
    """Runs pytest and ends the process with its status.

    The command line names the channel and the arguments of pytest. The standard input gives the key.
    """
    channel = int(sys.argv[1])
    arguments = sys.argv[2:]
    tell = make_tell(os.read(0, 32), channel)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
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
