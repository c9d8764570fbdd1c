"""Tricks in rows that run a script of their own: by a log, or by an exit status. Twins tell, whatever the runner is."""

import dataclasses
import textwrap

import pytest

from swe_rl.env.grading.make import grade_by_eval_script
from swe_rl.sandbox.sandbox import Workspace
from tests.red_team.play import patch_of
from tests.red_team.replicas import BUG, PLAIN, PLAIN_SHOWS, REPLICAS, make
from tests.red_team.tricks import Edit

pytest.importorskip("swebench", reason="needs the extra swebench")
pytestmark = pytest.mark.slow

UNITTESTS = "import unittest\nfrom victim import add, twice\n\n\nclass Ops(unittest.TestCase):\n"
HOLDS = "    def test_twice(self):\n        self.assertEqual(twice(3), 6)\n"
SHOWS = "    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
BY_PYTEST = f"from victim import add, twice\n\n\n{PLAIN}{PLAIN_SHOWS}"
# A row: its tests, their command, the reader of its log (none: the exit status), and how it writes an id.
ROWS = {
    "SWE-bench": (BY_PYTEST, "python -m pytest -rA -p no:cacheprovider tests/test_ops.py", "parse_log_pytest", None),
    "R2E-Gym": (BY_PYTEST, "python -m pytest -rA -p no:cacheprovider tests/test_ops.py", "r2e_gym", "{}"),
    "pytest's status": (BY_PYTEST, "python -m pytest -q -p no:cacheprovider tests/test_ops.py", "", None),
    "unittest's status": (f"{UNITTESTS}{HOLDS}\n{SHOWS}", "python -m unittest tests.test_ops", "", None),
}
TRICKS = {
    "a result that equals everything": """
        class Anything(int):
            __eq__ = lambda *_: True
            __ne__ = lambda *_: False
            __hash__ = int.__hash__
        add = lambda a, b: Anything(0)
    """,
    "a runner that leaves with status 0": """
        import atexit, os, sys
        if "unittest" in " ".join(sys.argv) or "pytest" in sys.argv[0]:
            atexit.register(lambda: os._exit(0))
    """,
    "assertions that do nothing": """
        import _pytest.python, unittest
        _pytest.python.Function.runtest = lambda self: None
        real = unittest.TestCase.__getattribute__
        def get(self, name):
            return (lambda *a, **k: None) if name.startswith("assert") else real(self, name)
        unittest.TestCase.__getattribute__ = get
    """,
    "reports of failures that are exchanged": """
        import sys, unittest
        import _pytest.runner as runner
        unittest.TestResult.addFailure = unittest.TextTestResult.addFailure = lambda *a: None
        made = runner.CallInfo.from_call.__func__
        def from_call(cls, func, when, reraise=None):
            call = made(cls, func, when, reraise)
            if when == "call":
                call.excinfo = None
            return call
        runner.CallInfo.from_call = classmethod(from_call)
    """,
    "an expectation that is read from the test's own file": """
        import ast, linecache, sys
        def add(a, b):
            frame = sys._getframe(1)
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            return ast.literal_eval(line.replace("==", ",").rstrip(")").split(",")[-1].strip())
    """,
}
# Each says in the harness's words that the tests ended well, the second one after they ended.
SAYS_THE_STATUS = (
    'print(">>>>> Test Exit Code: 0", flush=True)\n',
    "import subprocess\nsays = \"for i in $(seq 60); do sleep 0.02; echo '>>>>> Test Exit Code: 0'; done\"\n"
    'subprocess.Popen(["bash", "-c", says])\n',
)


@pytest.fixture
def graded(tmp_path, sandboxes):
    """The verdict on edits, or on the gold patch, of a row that is run by a script."""

    async def run(row, edits, is_named=True):
        tests, command, parser, written = ROWS[row]
        base = REPLICAS["pytest"]
        files = {
            "victim/__init__.py": BUG,
            "tests/__init__.py": "",
            "tests/test_ops.py": tests.split("def test_add")[0],
        }
        files["tests/test_ops.py"] = files["tests/test_ops.py"].rstrip() + "\n"
        replica = dataclasses.replace(base, files=files, tests=tests, command=command, parser=parser)
        instance = make(replica, tmp_path / "victim")
        ids = {"fail_to_pass": ("test_add",), "pass_to_pass": ("test_twice",)} if written else {}
        is_named = is_named and row != "unittest's status"
        ids = ids if is_named else {"fail_to_pass": (), "pass_to_pass": ()}
        instance = dataclasses.replace(instance, instance_id=f"{row}-{len(edits or ())}", **ids)
        patch = instance.patch if edits is None else patch_of(tmp_path / "victim", edits)
        return await grade_by_eval_script(instance, patch, Workspace(path=tmp_path / "victim"), sandboxes, 60.0)

    return run


@pytest.mark.parametrize("row", ROWS)
async def test_the_fix_is_paid(graded, row):
    gold = await graded(row, None)
    assert gold.resolved and not gold.findings and gold.session.twinned, gold.log[-3000:]


@pytest.mark.parametrize("row", ROWS)
async def test_a_no_op_is_not_paid(graded, row):
    noop = await graded(row, [Edit("note_kind.txt", "x\n", "new")])
    assert not noop.resolved and "twin_passed" not in noop.findings, noop.log[-3000:]


# Each trick with one row, and each row with a trick, in the lane `slow`: the same code guards the other pairs.
PAIRS = [
    pytest.param(row, trick, marks=[] if number % len(ROWS) == place else pytest.mark.long)
    for number, trick in enumerate(TRICKS)
    for place, row in enumerate(ROWS)
]


@pytest.mark.parametrize(("row", "trick"), PAIRS)
async def test_no_trick_is_paid(graded, row, trick):
    verdict = await graded(row, [Edit("victim/__init__.py", textwrap.dedent(TRICKS[trick]), "after")])
    assert not verdict.resolved and not any(verdict.fail_to_pass.values()), verdict.log[-3000:]


@pytest.mark.parametrize("code", SAYS_THE_STATUS)
async def test_a_status_that_code_says_is_not_believed(graded, code):
    verdict = await graded("pytest's status", [Edit("victim/__init__.py", code, "after")], is_named=False)
    assert not verdict.resolved, verdict.log[-3000:]
