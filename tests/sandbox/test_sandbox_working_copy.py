"""Copies of small trees, and the removal of any."""

import contextlib
import inspect
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_rl.sandbox.base import clear_away
from swe_rl.sandbox.sandbox import SandboxError, Workspace
from swe_rl.sandbox.working_copy import copy_tree, remove_tree


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
    remove_tree(tree)
    remove_tree(tree)
    assert not tree.exists() and (tmp_path / "keep/file").read_text() == "kept"


def test_removal_of_a_link_removes_the_link(tmp_path: Path):
    (tmp_path / "keep").mkdir(mode=0o555)
    (tmp_path / "link").symlink_to(tmp_path / "keep")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("link", "dangling"):
        remove_tree(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]
    assert (tmp_path / "keep").stat().st_mode & 0o777 == 0o555


@pytest.mark.skipif(os.getuid() != 0, reason="gives folders to somebody else")
def test_somebody_who_may_not_enter_a_folder_of_his_removes_it_too(tmp_path: Path):
    tree = tmp_path / "tree"
    (tree / "closed/deep").mkdir(parents=True)
    (tree / "closed/deep/file").write_text("x")
    for path in (tmp_path, tree, tree / "closed", tree / "closed/deep"):
        os.chown(path, 65534, 65534)
    (tree / "closed/deep").chmod(0)
    (tree / "closed").chmod(0)
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(path.stat().st_mode | 0o711)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            remove_tree(tree)
        finally:
            os._exit(0 if not tree.exists() else 1)
    assert os.waitpid(child, 0)[1] == 0


def nest(top: Path, depth: int, name: str = "d") -> None:
    """`depth` folders in each other, each with a file beside the next."""
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("file", os.O_CREAT, dir_fd=fd))
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def open_descriptors() -> list[int]:
    return sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())


@contextlib.contextmanager
def little_room() -> Iterator[None]:
    """Python may recurse a little only, and few files may be open: shallow trees do what 1,500 folders do."""
    depth = len(inspect.stack(0))
    recursion, files = sys.getrecursionlimit(), resource.getrlimit(resource.RLIMIT_NOFILE)
    sys.setrecursionlimit(depth + 60)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 20, files[1]))
    try:
        yield
    finally:
        sys.setrecursionlimit(recursion)
        resource.setrlimit(resource.RLIMIT_NOFILE, files)


def test_depth_plays_no_part(tmp_path: Path):
    nest(tmp_path / "tree", 100)
    before = open_descriptors()
    with little_room():
        copy_tree(tmp_path / "tree", tmp_path / "copy")
        remove_tree(tmp_path / "tree")
    assert (tmp_path / "copy" / ("d/" * 99) / "file").is_file()
    assert not (tmp_path / "tree").exists() and open_descriptors() == before


def test_a_path_that_is_too_long_for_the_system_is_removed_and_not_copied(tmp_path: Path):
    nest(tmp_path / "tree", 25, "d" * 200)
    with pytest.raises(OSError, match="too long"):
        copy_tree(tmp_path / "tree", tmp_path / "copy")
    remove_tree(tmp_path / "copy")
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_is_written_to_meanwhile_goes_once_the_writer_stops(tmp_path: Path):
    tree, stop = tmp_path / "tree", threading.Event()
    tree.mkdir()

    def write() -> None:
        for index in range(100):
            if stop.is_set():
                return
            with contextlib.suppress(FileNotFoundError):  # its parent has just been removed
                (tree / f"folder-{index}" / "deeper").mkdir(parents=True, exist_ok=True)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        remove_tree(tree, tries=100)
    finally:
        stop.set()
        writer.join()
    remove_tree(tree)
    assert not tree.exists()


def test_folders_that_are_moved_out_meanwhile_take_nothing_outside_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The way up from a moved folder leads elsewhere: nothing there may be removed."""
    (tmp_path / "tree/a/b").mkdir(parents=True)
    (tmp_path / "outside/a").mkdir(parents=True)
    (tmp_path / "outside/a/kept").write_text("kept")
    real_rmdir, moved = os.rmdir, []

    def rmdir(path: str, *, dir_fd: int | None = None) -> None:
        real_rmdir(path, dir_fd=dir_fd)
        if path == "b" and not moved:
            moved.append(path)
            (tmp_path / "tree/a").rename(tmp_path / "outside/moved")

    monkeypatch.setattr(os, "rmdir", rmdir)
    remove_tree(tmp_path / "tree")
    assert moved and not (tmp_path / "tree").exists()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "outside", "outside/a", "outside/a/kept", "outside/moved"
    ]  # fmt: skip


def test_what_cannot_be_removed_is_a_sandbox_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tree/file").parent.mkdir()
    (tmp_path / "tree/file").write_text("x")
    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(SandboxError, match=r"sandbox s-1: its folder .*tree cannot be removed"):
        clear_away(tmp_path / "tree", "s-1")


def refused(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")
