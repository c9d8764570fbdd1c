"""Small repositories with the runners of Django, SymPy and a pytest package: one bug, one test that shows it."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.workspace import commit_tree
from tests.red_team.play import patch_of
from tests.red_team.tricks import Edit, Place
from tests.support.pytest_alone import EXPORTED

BUG = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n"
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
OWNER = "app.test_ops.OpsTests"
LONG = sys.version_info >= (3, 11)  # unittest names a test with its method twice
DJANGO_TESTS = tuple(f"{name} ({OWNER}{f'.{name}' if LONG else ''})" for name in ("test_add", "test_twice"))
RUNTESTS = """import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import test_sqlite  # noqa: F401
from django.test.runner import run

if __name__ == "__main__":
    sys.exit(run(unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])))
"""
RUNNER = """import unittest


def run(suite):
    return int(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
"""
REPORTER = """import sys
import time
import traceback


class PyTestReporter:
    def __init__(self):
        self.passed, self.failed = 0, []

    def entering_test(self, f):
        self.name = f.__name__
        sys.stdout.write(f.__name__ + " ")

    def test_pass(self, char="ok"):
        self.passed += 1
        print(char)

    def test_fail(self, exc_info):
        self.failed.append(self.name)
        print("F")

    def test_exception(self, exc_info):
        self.failed.append(self.name)
        print("E")

    def test_xfail(self):
        print("f")

    def test_xpass(self, v):
        print("X")

    def test_skip(self, v=None):
        print("s")


def test(*paths):
    reporter, started_s = PyTestReporter(), time.perf_counter()
    for path in paths:
        names = {"__name__": "__test__"}
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), names)
        for f in [value for name, value in names.items() if name.startswith("test_")]:
            reporter.entering_test(f)
            try:
                f()
            except AssertionError:
                reporter.test_fail(sys.exc_info())
            except Exception:
                reporter.test_exception(sys.exc_info())
            else:
                reporter.test_pass()
    took_s = time.perf_counter() - started_s
    print(f"= tests finished: {reporter.passed} passed, {len(reporter.failed)} failed, in {took_s:.2f} seconds =")
    return not reporter.failed
"""
BIN = """#!/usr/bin/env python
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import optparse

import sympy.testing.runtests

sys.exit(0 if sympy.testing.runtests.test(*[word for word in sys.argv[1:] if not word.startswith("-")]) else 1)
"""
UNITTESTS = (
    "from django import add, twice\nfrom django.test import SimpleTestCase\n\n\nclass OpsTests(SimpleTestCase):\n"
)
SHOWS = "    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
HOLDS = "    def test_twice(self):\n        self.assertEqual(twice(3), 6)\n"
PLAIN = "def test_twice():\n    assert twice(3) == 6\n"
PLAIN_SHOWS = "\n\ndef test_add():\n    assert add(1, 2) == 3\n"


@dataclass(frozen=True)
class Replica:
    place: Place
    files: dict[str, str]
    tests: str  # the test file with the test that shows the bug
    command: str
    parser: str


REPLICAS = {
    "django": Replica(
        Place("django/django", "django", "django/__init__.py", "tests/app/test_ops.py", DJANGO_TESTS, "tests/"),
        {
            "django/__init__.py": BUG,
            "django/test/__init__.py": "from unittest import TestCase as SimpleTestCase\n",
            "django/test/runner.py": RUNNER,
            "tests/runtests.py": RUNTESTS,
            "tests/test_sqlite.py": "DATABASES = {}\n",
            "tests/app/__init__.py": "",
            "tests/app/test_ops.py": f"{UNITTESTS}{HOLDS}",
        },
        f"{UNITTESTS}{HOLDS}\n{SHOWS}",
        "python ./tests/runtests.py app.test_ops",
        "parse_log_django",
    ),
    "sympy": Replica(
        Place(
            "sympy/sympy", "sympy", "sympy/__init__.py", "sympy/tests/test_ops.py", ("test_add", "test_twice"), "bin/"
        ),
        {
            "sympy/__init__.py": BUG,
            "sympy/testing/__init__.py": "",
            "sympy/testing/runtests.py": REPORTER,
            "bin/test": BIN,
            "sympy/tests/__init__.py": "",
            "sympy/tests/test_ops.py": f"from sympy import add, twice\n\n\n{PLAIN}",
        },
        f"from sympy import add, twice\n\n\n{PLAIN}{PLAIN_SHOWS}",
        "python bin/test -C --verbose sympy/tests/test_ops.py",
        "parse_log_sympy",
    ),
    "pytest": Replica(
        Place(
            "victim/victim",
            "pytest",
            "victim/__init__.py",
            "tests/test_ops.py",
            ("tests/test_ops.py::test_add", "tests/test_ops.py::test_twice"),
        ),
        {"victim/__init__.py": BUG, "tests/test_ops.py": f"from victim import add, twice\n\n\n{PLAIN}"},
        f"from victim import add, twice\n\n\n{PLAIN}{PLAIN_SHOWS}",
        "python -m pytest -rA -p no:cacheprovider tests/test_ops.py",
        "parse_log_pytest",
    ),
}


def make(replica: Replica, folder: Path) -> Instance:
    """The repository in `folder`, and its issue."""
    for name, text in replica.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    base = commit_tree(folder)
    place = replica.place
    gold = patch_of(folder, [Edit(place.init, "a + b", "swap", old="a - b")])
    tests = patch_of(folder, [Edit(place.test_file, replica.tests, "new")])
    instance = Instance(
        f"{place.repo.replace('/', '__')}-1",
        place.repo,
        base,
        "add subtracts",
        gold,
        tests,
        place.tests[:1],
        place.tests[1:],
    )
    script = (
        f"#!/bin/bash\nset -uxo pipefail\n{EXPORTED}cd /testbed\ngit checkout HEAD {place.test_file}\n"
        f"git apply -v - <<'EOF_1'\n{tests}\nEOF_1\n"
        f": '{START}'\n{replica.command}\n: '{END}'\ngit checkout HEAD {place.test_file}\n"
    )
    return replace(
        instance, version="9", eval_script=script, log_parser=replica.parser, eval_type="pass_and_fail", image="none"
    )
