"""Folders of workspaces are made once, and what keeps them from being made is told."""

import threading

import pytest

from swe_rl.dataset.instance import Instance
from swe_rl.env.folder import WorkspaceFolders
from swe_rl.files.disk import DiskError

INSTANCE = Instance(
    instance_id="one",
    repo="a/b",
    base_commit="0" * 40,
    problem_statement="",
    patch="",
    test_patch="",
    fail_to_pass=(),
    pass_to_pass=(),
)


def test_threads_that_ask_at_once_get_one_folder_that_was_made_once(tmp_path):
    folders = WorkspaceFolders(tmp_path / "cache")
    made, found = [], []
    start = threading.Barrier(4)

    def make(folder):
        made.append(folder)
        folder.mkdir()

    def ask():
        start.wait()
        found.append(folders.find(INSTANCE, make))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and set(found) == {made[0]} and made[0].is_dir()


def test_a_folder_that_cannot_be_made_names_the_key_of_the_cache(tmp_path):
    (tmp_path / "cache").write_text("a file in its place")
    with pytest.raises(DiskError, match=r"paths\.cache"):
        WorkspaceFolders(tmp_path / "cache").find(INSTANCE, lambda folder: folder.mkdir())
