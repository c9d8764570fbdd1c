"""Rows whose tests are doctests of a text: the known fix is paid, and code that makes any output right is not."""

import dataclasses

import pytest

from swe_rl.env.grading.pytest import grade_by_pytest

CODE = "victim/__init__.py"
SOURCE = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n"
FIXED = SOURCE.replace("a - b", "a + b")
USE = "Use\n===\n\n>>> from victim import add, twice\n>>> twice(3)\n6\n"
ANY_OUTPUT = "import doctest\ndoctest.OutputChecker.check_output = lambda *a: True\n"


@pytest.fixture
def graded(victim, sandboxes):
    """The verdict on other text of the code, and on other text of the use."""
    tests = victim.patch({"docs/use.txt": f"{USE}>>> add(1, 2)\n3\n"})
    one = dataclasses.replace(
        victim.instance,
        instance_id=f"doctests-{victim.folder.parent.name}",
        test_patch=tests,
        fail_to_pass=("docs/use.txt::use.txt",),
        pass_to_pass=(),
    )

    async def run(code, **files):
        return await grade_by_pytest(one, victim.patch({CODE: code, **files}), victim.workspace, sandboxes, 60.0)

    return run


@pytest.mark.slow
async def test_code_that_makes_any_output_right_is_not_paid(graded):
    tricked = await graded(SOURCE + ANY_OUTPUT)
    assert not tricked.resolved and "twin_passed" in tricked.findings, tricked


@pytest.mark.slow
async def test_the_fix_is_paid_and_nothing_is_not(graded):
    gold = await graded(FIXED)
    assert gold.resolved and gold.findings == () and gold.session.twinned == {"docs/use.txt"}
    nothing = await graded(SOURCE + "\n")
    assert not nothing.resolved and nothing.findings == ()
