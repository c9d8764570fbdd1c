import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swe_rl.files.disk import DiskError
from swe_rl.logger.folder import FolderInUse, RunFolder, RunState, StatusWriter, find_unfinished, read_status

_HOLD = """
import sys, time
from pathlib import Path
from swe_rl.logger.folder import RunFolder
RunFolder(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another live process that holds `tmp_path/run`."""
    path = tmp_path / "run"
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert process.stdout and process.stdout.readline() == "held\n"
    yield process, RunFolder(path)
    process.kill()
    process.wait()
    process.stdout.close()


def run_of(root, name, started, config_hash="hash", state=None):
    folder = RunFolder(root / "train" / name).create()
    writer = StatusWriter(folder.status_json, config_hash=config_hash, clock=lambda: started)
    if state:
        writer.finish(state)
    return folder


def test_paths_are_the_ones_of_the_design(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.trajectories(1) == tmp_path / "trajectories" / "step_000001.jsonl"
    assert folder.eval_trajectories(0) == tmp_path / "trajectories" / "eval_000000.jsonl"
    assert folder.checkpoint(10) == tmp_path / "checkpoints" / "step_000010"
    names = {path.name for path in (folder.config_yaml, folder.plan_json, folder.traces_db, folder.run_log)}
    assert names == {"config.yaml", "plan.json", "traces.db", "run.log"}


def test_checkpoint_steps_ignores_what_is_written_aside(tmp_path):
    folder = RunFolder(tmp_path).create()
    for name in ("step_000010", "step_000002", "step_000011.tmp", ".step_000012"):
        (folder.checkpoints / name).mkdir()
    (folder.checkpoints / "step_000003").write_text("a file")
    assert folder.checkpoint_steps() == [2, 10]


def test_second_process_is_refused_with_the_number_of_the_first(holder):
    process, folder = holder
    assert folder.is_locked()
    with pytest.raises(FolderInUse, match=re.escape(f"process {process.pid} on")) as caught:
        folder.acquire()
    assert caught.value.exit_status == 2


def test_a_full_disk_at_the_lock_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DiskError, match=r"cannot write .*\.lock: No space left on device"):
            RunFolder(tmp_path).acquire()
    RunFolder(tmp_path).acquire().release()  # nobody holds it


def test_death_of_the_holder_frees_the_folder(holder):
    process, folder = holder
    process.send_signal(signal.SIGKILL)
    process.wait()
    with folder:
        assert folder.is_locked()
    assert not folder.is_locked()


def test_two_objects_in_one_process_exclude_each_other_too(tmp_path):
    with RunFolder(tmp_path) as folder:
        assert folder.acquire() is folder
        with pytest.raises(FolderInUse):
            RunFolder(tmp_path).acquire()
    RunFolder(tmp_path).acquire().release()


def test_forked_child_does_not_keep_the_lock(tmp_path):
    folder = RunFolder(tmp_path).acquire()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b".")
        time.sleep(30)
        os._exit(0)
    try:
        assert os.read(read, 1) == b"."
        folder.release()
        assert not RunFolder(tmp_path).is_locked()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_asking_does_not_disturb_taking(tmp_path):
    folder = RunFolder(tmp_path)
    assert not folder.is_locked()
    assert not (tmp_path / ".lock").exists()


def test_newest_unfinished_run_of_the_same_configuration(tmp_path):
    run_of(tmp_path, "a", 1.0)
    wanted = run_of(tmp_path, "b", 3.0, state=RunState.failed)
    run_of(tmp_path, "c", 4.0, state=RunState.done)
    run_of(tmp_path, "d", 5.0, config_hash="other")
    held = run_of(tmp_path, "e", 6.0)
    (tmp_path / "train" / "f").mkdir()
    (tmp_path / "train" / "f" / "status.json").write_text("{torn")
    with held:
        found = find_unfinished(tmp_path, "train", "hash", "train")
        assert found is not None and found.path == wanted.path
    found = find_unfinished(tmp_path, "train", "hash", "train")
    assert found is not None and found.path == held.path
    assert find_unfinished(tmp_path, "none", "hash", "train") is None


@pytest.mark.parametrize("root", [".", "multirun"])
def test_run_of_a_sweep_is_found_as_well(tmp_path, root):
    folder = run_of(tmp_path / root, "2026-01-01/3", 1.0)
    found = find_unfinished(tmp_path, "train", "hash", "train")
    assert found is not None and found.path == folder.path


def test_status_has_the_story_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    now = [100.0]
    path = tmp_path / "status.json"
    writer = StatusWriter(path, config_hash="h", clock=lambda: now[0])
    first = read_status(path)
    assert first is not None
    assert (first.status, first.pid, first.started, first.config_hash) == (RunState.running, os.getpid(), 100.0, "h")
    assert 0 < first.process_started <= time.time()
    now[0] = 101.0
    writer.heartbeat()
    assert read_status(path) == first  # too soon to be worth a write
    writer.heartbeat(step=3)
    assert (read_status(path).step, read_status(path).heartbeat) == (3, 101.0)
    now[0] = 120.0
    writer.heartbeat()
    assert read_status(path).heartbeat == 120.0
    writer.finish(RunState.failed, reason="bad key 0123456789abcdef", exit_status=1)
    last = read_status(path)
    assert (last.status, last.reason, last.exit_status) == (RunState.failed, "bad key ***", 1)


def test_resumed_run_keeps_its_start_and_counts_itself(tmp_path):
    StatusWriter(tmp_path / "status.json", config_hash="h", clock=lambda: 1.0).finish(
        RunState.interrupted, exit_status=130
    )
    StatusWriter(tmp_path / "status.json", config_hash="h", step=4, clock=lambda: 2.0)
    status = read_status(tmp_path / "status.json")
    assert (status.status, status.started, status.resumes, status.step, status.exit_status) == (
        "running",
        1.0,
        1,
        4,
        None,
    )
