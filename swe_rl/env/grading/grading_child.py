"""Runs pytest in a grading sandbox and tells each test's result over a channel of its own; started by grading_parent.

Invariants:
- Stands alone (Python 3.6 and later, pytest 3 and later): its text is put into sandboxes, with runner_process's.
- pytest is imported before the tested folder can be imported from, so nothing in there can stand in for it.
- A result is what pytest's own call of the test gave, signed with a key that was read before any tested code ran; code
  that replaces parts of pytest, or code of the tree that is told of each call, is noticed when the session ends. Tested
  code shares this process: whoever finds the key in its memory can forge. docs/cheating.md says what is left.
"""

import os
import sys
from pathlib import Path
from typing import Any, Callable  # noqa: UP035 - 3.6 has no other

from swe_rl.env.grading.runner_process import make_listener, make_outcomes, make_tell, parts_of


def make_reporter(tell: "Callable[[dict[str, Any]], None]", look: "Callable[[], Any]") -> object:
    """A pytest plugin."""
    import pytest

    outcome_of = make_outcomes()[0]

    class Reporter:
        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            result = yield
            look()
            tell({"test": item.nodeid, "when": call.when, "outcome": outcome_of(item, call, result.get_result())})

        @pytest.hookimpl(trylast=True)
        def pytest_collectreport(self, report: Any) -> None:
            if report.outcome == "failed":
                tell({"broken": report.nodeid})

    return Reporter()


def make_watch() -> "Callable[[], list[str]]":
    """A function that names the parts of pytest that are not what they were now."""
    names = ("_pytest", "pluggy", "unittest")
    modules = [module for name, module in sorted(sys.modules.items()) if name.split(".")[0] in names and module]
    variables = vars
    parts = [(*part, getattr(part[-1], "__code__", None)) for module in modules for part in parts_of(module)]

    def changed() -> "list[str]":
        return [
            owner_name + "." + name
            for owner_name, owner, name, value, code in parts
            if variables(owner).get(name) is not value or (code is not None and value.__code__ is not code)
        ]

    return changed


def main() -> None:
    channel, arguments = int(sys.argv[1]), sys.argv[2:]
    tell = make_tell(os.read(0, 32), channel)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.path.pop(0)  # this script's folder
    import pytest

    heard = set()  # type: set[str]
    look = make_listener(heard.add)
    changed = make_watch()
    tell({"ready": pytest.__version__})
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = ["pytest", *arguments]
    status = int(pytest.main(arguments, plugins=[make_reporter(tell, look)]))
    look()
    tell({"finished": status, "changed": [*changed(), *sorted(heard)]})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # what tested code registered for the end of the process is not waited for


if __name__ == "__main__":
    main()
