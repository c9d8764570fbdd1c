"""Patches that break their own grading: each is worth nothing, and none is left out as a failure of infrastructure."""

import dataclasses

import pytest

from swe_rl.env.grading.pytest import grade_by_pytest

CODE = "victim/__init__.py"
SOURCE = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n"
END_THE_GRADER = """
import glob, os, signal, time
for path in glob.glob("/tmp/*/grading_parent.py"):
    lines = open(path).read().count("\\n")
    open(path, "w").write("can't open file\\n" * (lines + 5))
os.kill(os.getppid(), signal.{signal})
time.sleep(5)
"""


@pytest.fixture
def with_a_new_folder(victim):
    """An issue whose tests come with a file in a folder that is not there yet."""
    tests = victim.patch(
        {
            "tests/test_victim.py": "from victim import add\n\n\ndef test_twice():\n    pass\n\n\n"
            "def test_add():\n    assert add(1, 2) == 3\n",
            "victim/inner/tests/test_more.py": "def test_more():\n    pass\n",
        }
    )
    victim.instance = dataclasses.replace(victim.instance, test_patch=tests)
    return victim


async def test_a_file_where_the_tests_want_a_folder(with_a_new_folder, sandboxes):
    victim = with_a_new_folder
    gold = await grade_by_pytest(victim.instance, victim.instance.patch, victim.workspace, sandboxes, 60.0)
    assert gold.resolved
    patch = victim.patch({"victim/inner": "x\n"})
    verdict = await grade_by_pytest(victim.instance, patch, victim.workspace, sandboxes, 60.0)
    assert not verdict.resolved and verdict.findings == ("grading_broken",), verdict


@pytest.mark.parametrize(
    "signal",
    [pytest.param("SIGINT", marks=pytest.mark.slow), pytest.param("SIGTERM", marks=pytest.mark.slow), "SIGKILL"],
)
async def test_a_signal_to_the_graders_process_whose_program_was_exchanged(attack, signal):
    verdict, _ = await attack({CODE: SOURCE + END_THE_GRADER.format(signal=signal)})
    assert not verdict.resolved and verdict.findings


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({"tests/test_victim.py": None, "tests/test_victim.py/test_more.py": "def test_add():\n    pass\n"}, {}),
        ({}, {"tests/test_victim.py": "/proc/self/fd/0"}),
        pytest.param({}, {"tests/test_victim.py": "test_victim.py"}, marks=pytest.mark.slow),
        pytest.param({"\udcff\udcfe.py": "x = 1\n"}, {}, marks=pytest.mark.slow),
    ],
)
async def test_odd_files_in_the_place_of_tests_are_worth_nothing(attack, files, links):
    verdict, _ = await attack(files, links=links, timeout_s=30.0)
    assert not verdict.resolved and not verdict.fail_to_pass["tests/test_victim.py::test_add"]
