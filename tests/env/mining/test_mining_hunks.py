"""A patch's hunks: any of them together are a patch, all of them are the whole, and a smallest set is 1-minimal."""

import random
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.env.folder import patch_between
from swe_rl.env.mining.hunks import digest_of_patch, hunks_of, patch_of
from swe_rl.env.mining.minimise import minimal_subset

BEFORE = {"a.py": "".join(f"line {number}\n" for number in range(60)), "gone.py": "x = 1\n"}


def apply_patch(folder, files, patch):
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "change.patch").write_text(patch)
    subprocess.run(["git", "apply", "--unidiff-zero", "change.patch"], cwd=folder, check=True, capture_output=True)
    (folder / "change.patch").unlink()
    return {path.name: path.read_text() for path in folder.iterdir()}


def after_of(edits):
    lines = BEFORE["a.py"].split("\n")
    for line in edits:
        lines[line] = f"{lines[line]} changed\nand one more" if line % 2 else ""
    return {"a.py": "\n".join(lines), "new.py": "y = 2\n"}


EDITS = (5, 20, 35, 50)
PATCH = patch_between(BEFORE, after_of(EDITS))


def test_all_hunks_are_the_whole_patch():
    hunks = hunks_of(PATCH)
    assert [hunk.path for hunk in hunks] == ["a.py"] * 4 + ["gone.py", "new.py"]
    assert patch_of(hunks, range(6)) == PATCH
    assert patch_of(hunks, []) == "" and digest_of_patch(PATCH) == digest_of_patch(patch_of(hunks, (5, 4, 3, 2, 1, 0)))


@pytest.mark.parametrize("chosen", [(0,), (1, 3), (2, 4), (0, 2, 3), (3, 5), (1, 2, 3, 4, 5)])
def test_some_hunks_are_a_patch_whose_places_are_exact(tmp_path, chosen):
    patch = patch_of(hunks_of(PATCH), chosen)
    left = apply_patch(tmp_path, BEFORE, patch)
    assert left["a.py"] == after_of([EDITS[number] for number in chosen if number < 4])["a.py"]
    assert ("gone.py" in left) is (4 not in chosen) and ("new.py" in left) is (5 in chosen)
    assert patch_between(BEFORE, left) == patch  # so its lines are numbered as those of a fresh diff


def test_a_file_whose_mode_changes_is_one_hunk():
    header = "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n--- a/x\n+++ b/x\n"
    patch = f"{header}@@ -1 +1 @@\n-a\n+b\n@@ -9 +9 @@\n-a\n+b\n"
    assert [hunk.text for hunk in hunks_of(patch)] == [patch]


def minimise(items, passes):
    """Returns the smallest set, and the sets that were asked about."""
    asked = []
    search = minimal_subset(items)
    try:
        question = next(search)
        while True:
            asked.append(question)
            question = search.send(passes(frozenset(question)))
    except StopIteration as end:
        return end.value, asked


@given(st.integers(1, 24), st.data())
def test_the_set_that_is_needed_is_found_whatever_it_is(count, data):
    needed = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1))
    found, asked = minimise(range(count), needed.issubset)
    assert set(found) == needed and len(asked) <= count * count + 3 * count


@given(st.integers(1, 12), st.integers(0, 2**32))
def test_without_any_one_item_it_does_not_pass(count, seed):
    """Any question may be answered in any way, as tests do that need one hunk or another."""

    def passes(chosen):
        if len(chosen) in (0, count):
            return len(chosen) == count
        return random.Random(f"{seed}/{sorted(chosen)}").random() < 0.4

    found, asked = minimise(range(count), passes)
    assert passes(frozenset(found))
    assert not any(passes(frozenset(found) - {item}) for item in found)
    assert len(asked) <= count * count + 3 * count
    assert minimise(range(count), passes) == (found, asked)
