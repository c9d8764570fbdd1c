"""`agent=demonstrate`: its commands make exactly the known fix, and each uses only what was shown before."""

import difflib
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl.agent.agent import Assignment, Exit, Task
from swe_rl.agent.command import parse_command
from swe_rl.agent.demonstrator import LineEdit, demonstrating_agent, line_edits
from swe_rl.agent.prompts import system_prompt
from swe_rl.config.schema import AgentConfig
from swe_rl.errors import UserError
from swe_rl.sandbox.sandbox import ExecResult

SOURCE = """import math


class Box:
    def __init__(self, width):
        self.width = width

    def area(self, height=None):
        if height is None:
            return 0
        return self.width * height
"""
FIXED = SOURCE.replace("is None", "is not None").replace("return 0", "return math.inf")
LINES = st.lists(st.text(st.sampled_from("ab &|/\\.*[]'\"$^#\t"), max_size=8), min_size=1, max_size=12)


def patch_between(before, after, path="box.py"):
    diff = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return f"diff --git a/{path} b/{path}\n" + "".join(diff)


class Folder:
    """A sandbox that is a folder."""

    def __init__(self, path):
        self.path = path

    async def read_file(self, path):
        return (self.path / path).read_bytes()

    async def exec(self, command, timeout_s):
        done = subprocess.run(["bash", "-c", command], cwd=self.path, capture_output=True, text=True)  # noqa: ASYNC221
        return ExecResult(done.returncode, done.stdout + done.stderr, duration_s=0.01)


async def attempt(folder, patch):
    agent = demonstrating_agent(AgentConfig(name="demonstrate"), {"box-1": patch}, 60.0)
    return await agent.run(Assignment(Task("box-1", "Mend the box."), "", "", Folder(folder), 60.0))


async def test_the_fix_is_found_shown_made_and_handed_in(tmp_path):
    (tmp_path / "box.py").write_text(SOURCE)
    result = await attempt(tmp_path, patch_between(SOURCE, FIXED))
    assert (tmp_path / "box.py").read_text() == FIXED
    assert result.exit is Exit.SUBMITTED
    assert [turn.command for turn in result.turns] == [
        r"grep -rn 'def area\b' --include='*.py' .",
        "nl -ba box.py | sed -n '8,47p'",
        "sed -i '9,10c\\\n        if height is not None:\\\n            return math.inf' box.py",
        "submit",
    ]
    assert [message["role"] for message in result.messages] == [
        "system",
        "user",
        *3 * ["assistant", "user"],
        "assistant",
    ]
    assert result.messages[0]["content"] == system_prompt("standard")
    assert "box.py:8:    def area" in result.messages[3]["content"]
    last = parse_command(result.messages[-1]["content"])
    assert last.submit


async def test_one_changed_word_is_exchanged(tmp_path):
    (tmp_path / "box.py").write_text(SOURCE)
    fixed = SOURCE.replace("is None", "is not None")
    result = await attempt(tmp_path, patch_between(SOURCE, fixed))
    assert result.turns[2].command == "sed -i '9s/None:/not None:/' box.py"
    assert (tmp_path / "box.py").read_text() == fixed


async def test_a_fix_with_a_new_file_is_not_made(tmp_path):
    patch = "diff --git a/new.py b/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
    result = await attempt(tmp_path, patch)
    assert result.turns == [] and not list(tmp_path.iterdir())


def test_an_environment_without_patches_is_refused():
    with pytest.raises(UserError, match="agent=demonstrate needs the instances' own patches"):
        demonstrating_agent(AgentConfig(), None, 60.0)


@settings(max_examples=25, deadline=None)
@given(before=LINES, after=LINES)
def test_commands_make_the_fix_whatever_it_is(tmp_path_factory, before, after):
    path = tmp_path_factory.mktemp("edits") / "box.py"
    texts = ["".join(f"{line}\n" for line in lines) for lines in (before, after)]
    path.write_text(texts[0])
    commands = [edit.command() for edit in line_edits(patch_between(*texts))]
    subprocess.run(["bash", "-ec", "\n".join(commands)], cwd=path.parent, check=True)
    assert path.read_text() == texts[1]


def test_lines_are_appended_to_a_file(tmp_path):
    (tmp_path / "box.py").write_text(SOURCE)
    [edit] = line_edits(patch_between(SOURCE, f"{SOURCE}\n\nBOX = Box(1)\n"))
    subprocess.run(["bash", "-c", edit.command()], cwd=tmp_path, check=True)
    assert (tmp_path / "box.py").read_text() == f"{SOURCE}\n\nBOX = Box(1)\n"


def test_new_lines_keep_their_indentation(tmp_path):
    (tmp_path / "box.py").write_text("a\nb\n")
    edit = LineEdit("box.py", 2, (), ("    x = 'y\\n'",))
    subprocess.run(["bash", "-c", edit.command()], cwd=tmp_path, check=True)
    assert (tmp_path / "box.py").read_text() == "a\n    x = 'y\\n'\nb\n"
