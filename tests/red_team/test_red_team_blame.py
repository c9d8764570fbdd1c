"""Patches that break their own grading: each is worth nothing, and none is left out as a failure of infrastructure."""

import dataclasses
import textwrap

import pytest

from swe_rl.env.grading.pytest import grade_by_pytest

CODE = "victim/__init__.py"
SOURCE = "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n"
END_THE_GRADER = """
import glob, os, signal, time
for path in glob.glob("/tmp/*/session_program.py"):
    lines = open(path).read().count("\\n")
    open(path, "w").write("can't open file\\n" * (lines + 5))
os.kill(os.getppid(), signal.{signal})
time.sleep(5)
"""

# What the tested code does to the session that tests it.
HARM = {
    "the shell may open no file": """
        import os, resource
        for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
            resource.prlimit(os.getppid(), limit, (0, 0))
    """,
    "the folder of the results is gone": """
        import glob, os, shutil
        for path in glob.glob("/tmp/*/results"):
            shutil.rmtree(os.path.dirname(path), True)
    """,
    "all that can be written is gone": """
        import os, shutil
        for path in ("/tmp", os.getcwd()):
            shutil.rmtree(path, True)
    """,
    "the results are deep and large": """
        import glob
        for path in glob.glob("/tmp/*/results"):
            with open(path, "a") as file:
                file.write("[" * 200_000 + "\\n" + '{"finished": ' + "9" * 6000 + '}\\n{"test": [1], "when": {}}\\n')
    """,
    "another program takes the place of pytest": """
        import os
        os.execv("/bin/true", ["true"])
    """,
    "nothing of the tree can be read": """
        import os
        for path, _, _ in os.walk(os.getcwd(), topdown=False):
            os.chmod(path, 0)
    """,
    "hundreds of processes stay": """
        import os, time
        for _ in range(300):
            if os.fork() == 0:
                time.sleep(600)
    """,
}
# A patch as no `git add` makes it: git knows no such encoding.
NO_ENCODING = """diff --git a/.gitattributes b/.gitattributes
new file mode 100644
--- /dev/null
+++ b/.gitattributes
@@ -0,0 +1 @@
+* working-tree-encoding=UTF-99 filter=none
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
    # A SIGINT does not end the session: its tests fail, as those of other wrong code.
    assert not verdict.resolved and bool(verdict.findings) is (signal != "SIGINT")


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


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARM)
async def test_code_that_harms_its_session_is_worth_nothing(attack, harm):
    verdict, _ = await attack({CODE: textwrap.dedent(HARM[harm]) + SOURCE})
    assert not verdict.resolved and not any(verdict.fail_to_pass.values())


@pytest.mark.slow
async def test_an_encoding_that_nobody_knows_is_worth_nothing(victim, sandboxes):
    patch = victim.patch({CODE: f"{SOURCE}\n"}) + NO_ENCODING
    verdict = await grade_by_pytest(victim.instance, patch, victim.workspace, sandboxes, 60.0)
    assert not verdict.resolved and not any(verdict.fail_to_pass.values())
