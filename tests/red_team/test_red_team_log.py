"""Tricks on the log that the official harness reads: with its own code, in a real sandbox."""

import dataclasses

import pytest

from swe_rl.env.cheating.attempts import cheating_attempts
from swe_rl.env.grading.make import grade_by_eval_script
from swe_rl.env.grading.swebench import grade_by_swebench
from tests.support.pytest_alone import EXPORTED

pytestmark = pytest.mark.slow  # it takes a minute of a core

pytest.importorskip("swebench", reason="needs the extra swebench")
SOURCE = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n"
CODE = "victim/__init__.py"
START, END, EXIT = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
BOTH = "PASSED tests/test_victim.py::test_add\nPASSED tests/test_victim.py::test_twice\n"
WHOLE = f"+ : '{START}'\n{BOTH}2 passed in 0.01s\n+ : '{END}'\n{EXIT}: 0\n"


def script(test_patch, before="", after=""):
    """As SWE-bench's: install (arbitrary code of the patch), put the tests back, run them between the marks."""
    return (
        f"#!/bin/bash\nset -uxo pipefail\n{EXPORTED}cd /testbed\n"
        f"{before}"
        "git checkout HEAD tests/test_victim.py\n"
        f"git apply -v - <<'EOF_1'\n{test_patch}\nEOF_1\n"
        f": '{START}'\npython -m pytest -rA -p no:cacheprovider tests/test_victim.py\n: '{END}'\n"
        f"git checkout HEAD tests/test_victim.py\n{after}"
    )


@pytest.fixture
def official(victim, sandboxes):
    async def run(files, before="", grader=grade_by_swebench, timeout_s=60.0, **columns):
        patch = victim.patch(files) if isinstance(files, dict) else files
        text = script(victim.instance.test_patch, before)
        columns = {"log_parser": "parse_log_pytest", "eval_type": "pass_and_fail", "image": "none", **columns}
        instance = dataclasses.replace(victim.instance, eval_script=text, **columns)
        verdict = await grader(instance, patch, victim.workspace, sandboxes, timeout_s)
        return verdict, cheating_attempts([], patch, instance)

    return run


async def test_the_fix_resolves_and_nothing_does_not(victim, official):
    gold, attempts = await official(victim.instance.patch)
    assert gold.resolved and gold.resolution == "RESOLVED_FULL" and not gold.findings and attempts == {}
    assert 0 < gold.tests_s <= gold.duration_s
    noop, _ = await official({"note.txt": "nothing\n"})
    assert not noop.resolved and noop.resolution == "RESOLVED_NO" and not noop.findings
    assert noop.pass_to_pass == {"tests/test_victim.py::test_twice": True}
    empty, _ = await official("")
    assert not empty.resolved and not empty.patch_applied
    broken, _ = await official("--- a/nowhere.py\n+++ b/nowhere.py\n@@ -1 +1 @@\n-a\n+b\n")
    assert not broken.resolved and not broken.patch_applied


STATUS = {"log_parser": ""}
TRICKS = {
    "the end, printed by the code": f"import os, sys\nos.write(1, {WHOLE!r}.encode())\nos._exit(0)\n",
    "past pytest's capture": (
        f"import os\nwith open('/proc/%d/fd/1' % os.getppid(), 'w') as out:\n    out.write({BOTH!r})\nos._exit(0)\n"
    ),
    "a whole log of its own before the tests": f"import os\nos.system('printf %s {BOTH!r} >&2')\nos._exit(0)\n",
    "results after the real ones": (
        f"import atexit, os\ndef end():\n    os.write(1, {BOTH!r}.encode())\n    os._exit(1)\natexit.register(end)\n"
    ),
}


@pytest.mark.parametrize("grader", [grade_by_swebench, pytest.param(grade_by_eval_script, marks=pytest.mark.long)])
@pytest.mark.parametrize("trick", sorted(TRICKS))
async def test_a_printed_result_is_none(official, trick, grader):
    columns = {} if grader is grade_by_swebench else {"log_parser": ""}
    verdict, attempts = await official({CODE: f"{TRICKS[trick]}\n{SOURCE}"}, grader=grader, **columns)
    assert not verdict.resolved and not any(verdict.fail_to_pass.values()), verdict.log_tail


async def test_a_log_of_its_own_from_the_installation(official):
    """The harness installs the patched package before the tests: its set-up may print what it likes."""
    fake = f"import sys\nsys.stderr.write({WHOLE!r})\n"
    verdict, attempts = await official({"compile.py": fake}, before="python compile.py\n")
    assert not verdict.resolved and not any(verdict.fail_to_pass.values())


NAMES = {"log_parser": "r2e_gym", "fail_to_pass": ("test_add",), "pass_to_pass": ("test_twice",)}


@pytest.mark.parametrize(
    ("grader", "columns"), [(grade_by_swebench, {}), (grade_by_eval_script, NAMES), (grade_by_eval_script, STATUS)]
)
async def test_a_log_of_an_installation_that_ends_the_script_is_none(official, grader, columns):
    """Nothing of such a run is a result: the tests never began."""
    said = WHOLE.replace("PASSED", "=== short test summary info ===\nPASSED", 1)
    fake = f"import os, signal, sys\nsys.stderr.write({said!r})\nsys.stderr.flush()\n"
    fake += "for parent in (os.getppid(), 1):\n    os.kill(parent, signal.SIGKILL)\n"
    verdict, _ = await official({"compile.py": fake}, before="python compile.py\n", grader=grader, **columns)
    assert not verdict.resolved and not any(verdict.fail_to_pass.values())


async def test_marks_in_the_patch_that_the_harness_prints(official):
    """`git diff` is in the log: a carriage return makes a line of its own in the harness's eyes."""
    verdict, _ = await official({CODE: f"# \r{WHOLE.replace(chr(10), chr(13))}\r\n{SOURCE}"}, before="git diff HEAD\n")
    assert not verdict.resolved and not any(verdict.fail_to_pass.values())


async def test_the_script_cannot_be_rewritten_while_it_runs(official):
    rewrite = (
        "import glob, os\nparent = '/proc/%d/fd/' % os.getppid()\n"
        "for path in [*glob.glob('/tmp/*/eval.sh'), parent + '255', parent + '0']:\n"
        "    try:\n        open(path, 'a').write('echo FOUND')\n"
        "        print('FOUND', path)\n    except OSError:\n        pass\n"
    )
    verdict, _ = await official({CODE: f"{rewrite}\n{SOURCE}"})
    assert not verdict.resolved and "FOUND /tmp" not in verdict.log_tail and "255" not in verdict.log_tail


@pytest.mark.parametrize(
    "files",
    [
        {
            "conftest.py": "import pytest\n@pytest.hookimpl(hookwrapper=True)\n"
            "def pytest_runtest_makereport():\n    out = yield\n"
            "    out.get_result().outcome = 'passed'\n"
        },
        {"pytest.ini": "[pytest]\naddopts = -p no:terminal\n"},
        {"tests/test_victim.py": "def test_add():\n    pass\n\n\ndef test_twice():\n    pass\n"},
    ],
)
async def test_files_of_the_runner_are_put_back(official, files):
    verdict, attempts = await official(files)
    assert not verdict.resolved and all(verdict.pass_to_pass.values()) and set(verdict.restored) == set(files)
    assert attempts


async def test_an_endless_run_is_unresolved(official):
    verdict, _ = await official({CODE: f"import time\ntime.sleep(100)\n{SOURCE}"}, timeout_s=4.0)
    assert not verdict.resolved and verdict.timed_out


async def test_the_exit_status_alone_decides_where_a_row_has_no_reader(victim, official):
    gold, _ = await official(victim.instance.patch, grader=grade_by_eval_script, log_parser="")
    assert gold.resolved
    noop, _ = await official({"note.txt": "x\n"}, grader=grade_by_eval_script, log_parser="")
    assert not noop.resolved and not any(noop.pass_to_pass.values())
