"""Copies of small trees."""

import os
import subprocess
import time
from pathlib import Path

from swe_rl.sandbox.protocol import Workspace
from swe_rl.sandbox.working_copy import copy_tree, open_up, remove_tree


def test_a_copy_is_equal_and_git_sees_no_change(workspace: Workspace, tmp_path: Path):
    assert workspace.path is not None
    os.mkfifo(workspace.path / "pipe")
    copy = tmp_path / "copy"
    copy_tree(workspace.path, copy)
    assert (copy / "link").readlink() == Path("calc.py") and (copy / "outside").is_symlink()
    assert os.access(copy / "run.sh", os.X_OK) and not (copy / "pipe").exists()
    assert (copy / "calc.py").stat().st_mtime_ns == (workspace.path / "calc.py").stat().st_mtime_ns
    assert subprocess.run(["git", "status", "--short"], cwd=copy, capture_output=True, check=True).stdout == b""


def test_large_files_too(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(3 << 20))
    copy_tree(source, tmp_path / "copy")
    assert (tmp_path / "copy/large").read_bytes() == (source / "large").read_bytes()


def test_a_small_repository_copies_in_milliseconds(workspace: Workspace, tmp_path: Path):
    assert workspace.path is not None
    times_s = []
    for index in range(10):
        started = time.perf_counter()
        copy_tree(workspace.path, tmp_path / f"copy-{index}")
        times_s.append(time.perf_counter() - started)
    assert min(times_s) < 0.1  # 3 ms on a quiet machine; the suite shares two cores with itself


def test_removal_follows_no_link_and_opens_closed_folders(tmp_path: Path):
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep/file").write_text("kept")
    tree = tmp_path / "tree"
    (tree / "closed/deep").mkdir(parents=True)
    (tree / "link").symlink_to(tmp_path / "keep")
    (tree / "closed").chmod(0)
    open_up(tree)
    assert (tree / "closed").stat().st_mode & 0o777 == 0o700
    (tree / "closed").chmod(0)
    remove_tree(tree)
    remove_tree(tree)
    assert not tree.exists() and (tmp_path / "keep/file").read_text() == "kept"
