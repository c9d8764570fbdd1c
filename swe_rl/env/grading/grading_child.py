"""Runs pytest in a grading sandbox and tells each test's result over a channel of its own; started by grading_parent.

Invariants:
- Stands alone (Python 3.6 and later, pytest 3 and later): its text is put into sandboxes, with told_of_calls'.
- pytest is imported before the tested folder can be imported from, so nothing in there can stand in for it.
- A result is what pytest's own call of the test gave, signed with a key that was read before any tested code ran; code
  that replaces parts of pytest, or code of the tree that is told of each call, is noticed when the session ends. Tested
  code shares this process: whoever finds the key in its memory can forge. docs/cheating.md says what is left.
"""

import hashlib
import hmac
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable  # noqa: UP035 - 3.6 has no other

from swe_rl.env.grading.told_of_calls import make_listener


def make_reporter(
    sign: "hmac.HMAC", channel: int, look: "Callable[[], Any]"
) -> "tuple[object, Callable[[dict[str, Any]], None]]":
    """A pytest plugin; everything that it needs is bound now, so that replacing modules' functions changes nothing."""
    import pytest

    write, dumps = os.write, json.dumps
    count = [0]

    def tell(record: "dict[str, Any]") -> None:
        text = dumps(record).encode()
        count[0] += 1  # part of what is signed: no record can be left out, repeated or moved
        mark = sign.copy()
        mark.update(str(count[0]).encode() + b" " + text)
        data = text + b" " + mark.hexdigest().encode() + b"\n"
        while data:
            data = data[write(channel, data) :]

    def outcome_of(call: Any, report: Any) -> str:
        if getattr(report, "wasxfail", None) is not None:
            return "xfailed" if report.outcome == "skipped" else "xpassed"
        # The call itself decides: hooks of the tested tree may have rewritten the report.
        if call.excinfo is None:
            return "passed" if report.outcome == "passed" else "failed"
        return "skipped" if report.outcome == "skipped" else "failed"

    class Reporter:
        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            result = yield
            look()
            tell({"test": item.nodeid, "when": call.when, "outcome": outcome_of(call, result.get_result())})

        @pytest.hookimpl(trylast=True)
        def pytest_collectreport(self, report: Any) -> None:
            if report.outcome == "failed":
                tell({"broken": report.nodeid})

    return Reporter(), tell


def parts_of(modules: "list[ModuleType]") -> "list[tuple[Any, str, Any, Any]]":
    """(owner, name, function, code) of every function and method that pytest's parts define."""
    parts = []
    for module in modules:
        for owner in [module, *(value for value in vars(module).values() if isinstance(value, type))]:
            if getattr(owner, "__module__", module.__name__) != module.__name__:
                continue
            for name, value in list(vars(owner).items()):
                code = getattr(value, "__code__", None)
                if code is not None:
                    parts.append((owner, name, value, code))
    return parts


def make_watch() -> "Callable[[], list[str]]":
    """A function that names the parts of pytest that are not what they were now."""
    names = ("_pytest", "pluggy", "unittest")
    modules = [module for name, module in sorted(sys.modules.items()) if name.split(".")[0] in names and module]
    parts, variables = parts_of(modules), vars

    def changed() -> "list[str]":
        replaced = []
        for owner, name, value, code in parts:
            if variables(owner).get(name) is not value or value.__code__ is not code:
                replaced.append(owner.__name__ + "." + name)
        return replaced

    return changed


def main() -> None:
    channel, arguments = int(sys.argv[1]), sys.argv[2:]
    sign = hmac.new(os.read(0, 32), digestmod=hashlib.sha256)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.path.pop(0)  # this script's folder
    import pytest

    heard = set()  # type: set[str]
    look = make_listener(heard.add)
    reporter, tell = make_reporter(sign, channel, look)
    changed = make_watch()
    tell({"ready": pytest.__version__})
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = ["pytest", *arguments]
    status = int(pytest.main(arguments, plugins=[reporter]))
    look()
    tell({"finished": status, "changed": [*changed(), *sorted(heard)]})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # what tested code registered for the end of the process is not waited for


if __name__ == "__main__":
    main()
