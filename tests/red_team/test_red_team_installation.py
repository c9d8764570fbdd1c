"""Code that an installation runs writes over the grader's files: they are put back before the tests."""

import dataclasses
import shutil

import pytest

from swe_rl.env.bugs.workspace import commit_tree
from swe_rl.env.grading.make import grade_by_eval_script
from swe_rl.env.pinning.put_back import named_by_setup
from tests.red_team.conftest import NEW_TEST, TESTS

pytestmark = pytest.mark.slow
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
FIX = "def add(a, b):\n    return a + b\n\n\ndef twice(a):\n    return 2 * a\n"
WRONG = FIX.replace("a + b", "a - b")
AT_THE_INSTALLATION = "import os, sys\nif 'pytest' not in sys.modules:\n    {code}\n"
TRICKS = {
    "a conftest.py of the tree": "open('conftest.py', 'w').write('def pytest_runtest_call(item): item.obj = print')",
    "a new conftest.py": "open('tests/conftest.py', 'w').write('def pytest_runtest_call(item): item.obj = print')",
    "the tests": "open('tests/test_victim.py', 'w').write('def test_add(): pass\\ndef test_twice(): pass\\n')",
    "the copy that is put back": (
        "import glob, shutil; [shutil.rmtree(p, True) for p in glob.glob('/tmp/*/kept')];"
        " open('conftest.py', 'w').write('collect_ignore_glob = [\"*\"]')"
    ),
}


@pytest.fixture
def graded(victim, sandboxes):
    return graded_in(victim, sandboxes)


def graded_in(victim, sandboxes):
    tests = victim.instance.test_patch
    script = (
        f"#!/bin/bash\nset -uxo pipefail\ncd /testbed\ngit apply -v - <<'EOF_1'\n{tests}\nEOF_1\n"
        f"sed -i 's/^x.*$//' settings.cfg\npython -B -c 'import victim'\n"
        f": '{START}'\npython -m pytest -q -p no:cacheprovider tests/test_victim.py\n: '{END}'\n"
    )
    instance = dataclasses.replace(victim.instance, eval_script=script, version="9", image="none", fail_to_pass=())

    async def run(files):
        patch = victim.patch(files)
        return await grade_by_eval_script(instance, patch, victim.workspace, sandboxes, 60.0)

    return run


async def test_the_fix_is_paid_after_an_installation(graded):
    gold = await graded({"victim/__init__.py": FIX})
    assert gold.resolved, gold.log_tail


@pytest.mark.parametrize("trick", TRICKS)
async def test_what_an_installation_writes_over_is_put_back(graded, trick):
    verdict = await graded({"victim/__init__.py": AT_THE_INSTALLATION.format(code=TRICKS[trick]) + WRONG})
    assert not verdict.resolved, verdict.log_tail
    is_told = "could not be put back" in verdict.log_tail or "assert -1 == 3" in verdict.log_tail
    assert is_told, verdict.log_tail


async def test_the_only_files_of_the_grader_may_be_those_that_a_row_brings(victim, sandboxes):
    shutil.rmtree(victim.folder / "tests")
    (victim.folder / "conftest.py").unlink()
    base = commit_tree(victim.folder)
    tests = victim.patch({"tests/test_victim.py": TESTS + NEW_TEST})
    victim.instance = dataclasses.replace(victim.instance, base_commit=base, test_patch=tests)
    run = graded_in(victim, sandboxes)
    assert (await run({"victim/__init__.py": FIX})).resolved
    verdict = await run({"victim/__init__.py": AT_THE_INSTALLATION.format(code=TRICKS["the tests"]) + WRONG})
    assert not verdict.resolved, verdict.log_tail


def test_what_the_rows_own_commands_change_is_its_affair():
    setup = "cd /testbed\nsed -i 's/a/b/' tox.ini\ngit apply - <<'E'\n+ evil.py\nE\nmake -f Makefile\n"
    assert named_by_setup(setup) == ["tox.ini", "Makefile"]
