"""Right patches that look unusual are paid: new modules, other signatures, and words that tricks use as well."""

import dataclasses
import textwrap

import pytest

from swe_rl.env.grading.make import grade_by_eval_script
from swe_rl.env.grading.pytest import grade_by_pytest
from swe_rl.sandbox.sandbox import Workspace
from tests.red_team.play import patch_of
from tests.red_team.replicas import BUG, REPLICAS, make
from tests.red_team.tricks import Edit

pytestmark = pytest.mark.slow
CODE = "victim/__init__.py"
FIX = BUG.replace("a - b", "a + b")
TWICE = "\n\ndef twice(a):\n    return 2 * a\n"


def code(text):
    return Edit(CODE, textwrap.dedent(text) + TWICE, "new")


PATCHES = {
    "a new module": [
        code("from victim.core import add\n"),
        Edit("victim/core.py", "def add(a, b):\n    return sum((a, b))\n", "new"),
    ],
    "a new module at the root": [
        code("from ops_impl import add\n"),
        Edit("ops_impl.py", "def add(a, b):\n    return sum((a, b))\n", "new"),
    ],
    "a module in the place of the package": [Edit(CODE, "", "delete"), Edit("victim.py", FIX, "new")],
    "fixtures and tests of its own": [
        Edit(CODE, FIX, "new"),
        Edit("conftest.py", "import pytest\n\n\n@pytest.fixture\ndef three():\n    return 3\n", "new"),
        Edit("tests/test_mine.py", "def test_mine(three):\n    assert three == 3\n", "new"),
        Edit("tests/test_ops.py", "test_doubled", "swap", old="test_twice"),
    ],
    "another signature": [code("def add(a, b=0, *rest, start=0):\n    return sum((a, b, *rest), start)\n")],
    "an object that is called": [
        code("class Add:\n    def __call__(self, a, b):\n        return a + b\n\n\nadd = Add()\n")
    ],
    "an attribute that is made when it is asked for": [
        code(
            "def __getattr__(name):\n    if name == 'add':\n        import operator\n        return operator.add\n"
            "    raise AttributeError(name)\n"
        )
    ],
    "a number of another type": [
        code("from fractions import Fraction\n\n\ndef add(a, b):\n    return Fraction(a) + b\n")
    ],
    "other processes and threads": [
        code(
            """
            import atexit, os, sys, threading
            atexit.register(sys.stdout.flush)
            def add(a, b):
                if not os.fork():
                    os._exit(0)
                os.wait()
                results = []
                worker = threading.Thread(target=lambda: results.append(a + b))
                worker.start()
                worker.join()
                return results[0] if sys._getframe(1) else 0
            """
        )
    ],
    "words of failures": [
        code(
            "import logging\n\n\ndef add(a, b):\n    print('FAILED to be quiet')\n    logging.error('none')\n"
            "    return a + b\n"
        )
    ],
    "other settings": [
        Edit(CODE, FIX, "new"),
        Edit("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-q'\n", "new"),
        Edit("Makefile", "all:\n\ttrue\n", "new"),
    ],
}
ONCE = """
seen = set()


def add(a, b):
    if a in seen:
        raise KeyError(a)
    seen.add(a)
    return a + b
"""


async def verdict_on(edits, folder, sandboxes, by_status=False):
    instance = make(REPLICAS["pytest"], folder)
    grade = grade_by_pytest
    if by_status:
        instance = dataclasses.replace(instance, instance_id="by-status", log_parser="")
        grade = grade_by_eval_script
    return await grade(instance, patch_of(folder, edits), Workspace(path=folder), sandboxes, 60.0)


@pytest.mark.parametrize("name", PATCHES)
async def test_a_right_patch_is_paid(tmp_path, sandboxes, name):
    verdict = await verdict_on(PATCHES[name], tmp_path / "victim", sandboxes, by_status=len(name) % 2 == 0)
    assert verdict.resolved and verdict.findings == (), verdict.log_tail


async def test_code_that_does_something_once_in_a_process_is_not_paid_beside_copies(tmp_path, sandboxes):
    """The docs name this as a limit. If it passes one day, they have a sentence too many."""
    assert not (await verdict_on([code(ONCE)], tmp_path / "victim", sandboxes)).resolved
