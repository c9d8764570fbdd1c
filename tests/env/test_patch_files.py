"""A patch's files, as git writes them and as others do."""

import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.env.bugs.generate import _hide_tests
from swe_rl.env.folder import folder_of, patch_between
from swe_rl.env.kodcode.read import _new_file as kodcode_patch
from swe_rl.env.patch_files import lines_of, old_paths, split_patch, touched_paths


@pytest.fixture
def diff(tmp_path):
    """The diff of a repository's files before and after."""

    def make(before, after):
        for files in (before, after):
            for path in tmp_path.iterdir():
                if path.name != ".git":
                    subprocess.run(["rm", "-rf", path], check=True)
            for name, content in files.items():
                (tmp_path / name).write_bytes(content.encode())
            if files is before:
                subprocess.run(
                    "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm a",
                    shell=True,
                    cwd=tmp_path,
                    check=True,
                )
        add = "git add -A && git diff --cached --binary -M"
        return subprocess.run(add, shell=True, cwd=tmp_path, check=True, capture_output=True).stdout.decode()

    return make


def test_every_kind_of_change(diff):
    text = "\n".join(f"line {number}" for number in range(30)) + "\n"
    lines = ("+++ b/not_a_header.py", "--- a/neither.py")
    patch = diff(
        {"a.py": "1\n", "gone.py": "2\n", "old name.py": text, "é.py": "3\n"},
        {"a.py": "1\n" + "\n".join(lines) + "\n", "new.py": "x\n", "new name.py": text + "more\n", "é.py": "4\n"},
    )
    parts = {part.paths[-1]: part for part in split_patch(patch)}
    assert set(parts) == {"a.py", "gone.py", "new.py", "new name.py", "é.py"}
    assert parts["new.py"].is_new and parts["new.py"].added == ("x",)
    assert parts["new name.py"].paths == ("old name.py", "new name.py")
    assert parts["a.py"].added == lines
    assert "new.py" not in old_paths(patch) and "a.py" in old_paths(patch)
    assert "".join(part.text for part in split_patch(patch)) == patch


@pytest.mark.parametrize("mark", list("\f\v\r\x1c\x1d\x1e\x85\u2028\u2029"))
def test_a_line_ends_where_git_ends_it(diff, mark):
    """What stands behind another mark is of the same line, and no header."""
    line = f"x = 1{mark}diff --git a/y.py b/y.py"
    patch = diff({"a.py": "1\n2\n", "z.py": "3\n"}, {"a.py": f"{line}\n++ a\n2\n", "z.py": "4\r\n"})
    assert [(part.paths, part.added) for part in split_patch(patch)] == [
        (("a.py",), (line, "++ a")),
        (("z.py",), ("4",)),
    ]
    assert "".join(part.text for part in split_patch(patch)) == patch
    assert touched_paths(patch.replace("\n", "\r\n")) == ["a.py", "z.py"]


def test_headers_that_contradict_each_other_count_twice():
    patch = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/conftest.py\n@@ -0,0 +1 @@\n+1\n"
    assert touched_paths(patch) == ["conftest.py", "x.py"]


def test_plain_unified_diffs():
    patch = (
        "--- a/x.py\t2020\n+++ b/x.py\t2021\n@@ -1 +1 @@\n-1\n+2\n--- y.py\n+++ y.py\n@@ -1,2 +1 @@\n--- minus\n 1\n"
    )
    assert touched_paths(patch) == ["x.py", "y.py"]


@pytest.mark.parametrize("part", ["--- x\n+++ y\n", "@@ -1,0 +1,0 @@\n", "--- x\n+++ y\n@@ -1 +1 @@\n"])
def test_a_long_patch_takes_no_square_of_its_time(part):
    began_s = time.process_time()
    split_patch("diff --git a/x b/x\n" + part * 50_000)
    assert time.process_time() - began_s < 5.0


def test_a_number_of_lines_with_thousands_of_digits_is_none():
    assert touched_paths(f"--- a/x\n+++ b/x\n@@ -1,{'9' * 5000} +1 @@\n+1\n") == ["x"]


@given(st.text(max_size=300))
def test_any_text_can_be_read(text):
    split_patch(text)
    split_patch("diff --git a/x b/x\n" + text)


@pytest.mark.parametrize("mark", ["\f", "\r", "\u2028"])
def test_patches_that_are_made_here_are_git_s_too(tmp_path, mark):
    before, after = {"a.py": f"1{mark}2\n3\n"}, {"a.py": f"1{mark}{mark}4\n3", "b.py": f"{mark}5\n"}
    folder = folder_of(before, tmp_path / "folder")
    subprocess.run(["git", "apply", "-"], input=patch_between(before, after).encode(), cwd=folder, check=True)
    assert {path.name: path.read_bytes().decode() for path in folder.glob("*.py")} == after
    tests = kodcode_patch("x.py", f"'{mark}'\r\n6\r\n")
    subprocess.run(["git", "apply", "-"], input=tests.encode(), cwd=folder, check=True)
    assert (folder / "x.py").read_bytes().decode() == f"'{mark}'\n6\n"
    gold = kodcode_patch("x.py", f"7{mark}8\n", f"'{mark}'\n6\n")
    subprocess.run(["git", "apply", "-"], input=gold.encode(), cwd=folder, check=True)
    assert (folder / "x.py").read_bytes().decode() == f"7{mark}8\n"
    hidden = f"\n\ndef test_b():\n    b = '''{mark}'''\n"
    (folder / "c.py").write_text(f"a = '''{mark}'''\n{hidden}")
    whole = (folder / "c.py").read_text()
    bug = _hide_tests(folder, ["c.py::test_b"])
    assert "test_b" not in (folder / "c.py").read_text()
    subprocess.run(["git", "apply", "-"], input=bug.encode(), cwd=folder, check=True)
    assert (folder / "c.py").read_bytes().decode() == whole
    parts = [part for text in (patch_between(before, after), tests, bug) for part in split_patch(text)]
    assert {part.paths[-1]: part.added for part in parts} == {
        "a.py": (f"1{mark}{mark}4", "3"),
        "b.py": (f"{mark}5",),
        "x.py": (f"'{mark}'", "6"),
        "c.py": tuple(hidden.replace("\r", "\n").split("\n")[:-1]),
    }


def test_lines_are_git_s_with_and_without_their_ends():
    text = "a\r\r\nb\fc\rd\u2028e\n\nx\r"
    assert lines_of(text) == ["a\r\r\n", "b\fc\rd\u2028e\n", "\n", "x\r"]
    assert lines_of(text, ends=False) == ["a\r", "b\fc\rd\u2028e", "", "x\r"]
