"""Copies of a run's folder, made by rsync and without it: whole, in time, and never in the run's way."""

import os
import resource
import shutil
import signal
import sqlite3
import threading
import time
from contextlib import closing, nullcontext

import pytest

from swe_rl.hardware import sync
from swe_rl.hardware.slurm.jobs import current_allocation
from swe_rl.hardware.sync import Copier, SyncError, folder_name, keep_synced, restore_run
from swe_rl.logger.folder import RunFolder, StatusWriter
from tests.support.waiting import wait_until

CHECKPOINT = ("checkpoints/step_000002/a", "checkpoints/step_000002/manifest.json")
RSYNC = shutil.which("rsync")


@pytest.fixture(params=[None, RSYNC] if RSYNC else [None], ids=lambda path: "rsync" if path else "python")
def rsync(request):
    return request.param


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "run"
    for name in ("steps.jsonl", ".lock", ".status.json.tmp-7", ".hydra/config.yaml", *CHECKPOINT):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "checkpoints" / ".step_000003.tmp-1").mkdir()
    (folder / "checkpoints" / ".step_000003.tmp-1" / "half").touch()
    return folder


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_everything_but_locks_and_halves(source, tmp_path, rsync):
    target = tmp_path / "there" / "copy"
    Copier(source, target, rsync=rsync).copy()
    assert names(target) == [".hydra/config.yaml", *CHECKPOINT, "steps.jsonl"]
    (source / "steps.jsonl").write_text("shorter")
    Copier(source, target, rsync=rsync).copy()
    assert (target / "steps.jsonl").read_text() == "shorter"
    assert (target / "steps.jsonl").stat().st_mtime == pytest.approx((source / "steps.jsonl").stat().st_mtime)


def test_what_has_not_changed_is_not_sent_again(source, tmp_path, rsync):
    copier = Copier(source, tmp_path / "copy", rsync=rsync)
    copier.copy()
    before = (tmp_path / "copy" / "steps.jsonl").stat().st_ino
    copier.copy()
    assert (tmp_path / "copy" / "steps.jsonl").stat().st_ino == before


def test_checkpoints_go_when_the_run_gave_them_up_and_not_when_a_disk_is_empty(source, tmp_path, rsync):
    target = tmp_path / "copy"
    Copier(source, target, rsync=rsync).copy()
    shutil.rmtree(source / "checkpoints")
    Copier(source, target, rsync=rsync).copy()
    assert (target / "checkpoints" / "step_000002").is_dir()
    (source / "checkpoints" / "step_000004").mkdir(parents=True)
    Copier(source, target, rsync=rsync).copy()
    assert [path.name for path in (target / "checkpoints").iterdir()] == ["step_000004"]


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_trace_store_is_copied_as_it_was_at_one_moment(source, tmp_path, rsync, journal, monkeypatch):
    """It is written to between any two files that are read."""
    database, target = source / "traces.db", tmp_path / "copy" / "traces.db"
    monkeypatch.setattr(sync, "_PAGES", 1)
    with closing(sqlite3.connect(database, isolation_level=None)) as store:
        store.execute(f"PRAGMA journal_mode = {journal}")
        store.execute("CREATE TABLE traces (a, b)")
        written = []

        def write(*_):
            if len(written) < 9:
                written.append(store.execute("INSERT INTO traces VALUES (?, randomblob(9000))", [len(written)]))
                store.execute("PRAGMA wal_checkpoint(PASSIVE)")

        write()
        copier, look = Copier(source, tmp_path / "copy", rsync=rsync), sync.copy_database
        monkeypatch.setattr(sync, "copy_database", lambda old, new, _: look(old, new, write))
        target.parent.mkdir()
        target.with_name("traces.db-wal").write_text("of an older copy")
        copier.copy()
        inode = target.stat().st_ino
        with closing(sqlite3.connect(target)) as copy:
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert 1 <= copy.execute("SELECT count(*) FROM traces").fetchone()[0] <= 9
        while len(written) < 9:
            write()
        copier.copy()
        with closing(sqlite3.connect(target)) as copy:
            assert copy.execute("SELECT count(*) FROM traces").fetchone() == (9,)
        assert target.stat().st_ino != inode
    sync.Copier(source, tmp_path / "after", rsync=rsync).copy()  # the run's last, once its store is closed
    assert [path.name for path in source.glob("traces.db*")] == ["traces.db"]
    restore_run(target.parent, tmp_path / "new")
    with closing(sqlite3.connect(tmp_path / "new" / "traces.db")) as copy:
        assert copy.execute("SELECT count(*) FROM traces").fetchone() == (9,)


def test_a_trace_store_that_is_damaged_is_said_and_all_else_is_copied(source, tmp_path):
    for name in ("traces.db", "traces.db.damaged"):
        (source / name).write_text("x" * 5000)
    old = tmp_path / "copy" / "checkpoints" / "step_000001"
    old.mkdir(parents=True)
    with pytest.raises(SyncError, match=r"copy.traces\.db: file is not a database"):
        Copier(source, tmp_path / "copy", rsync=None).copy()
    assert {"steps.jsonl", "traces.db.damaged"} < set(names(tmp_path / "copy")) and not old.exists()


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_copy_of_the_traces_that_is_cut_short_leaves_nothing_there(source, tmp_path, journal, monkeypatch):
    monkeypatch.setattr(sync, "_PAGES", 1)
    with closing(sqlite3.connect(source / "traces.db", isolation_level=None)) as store:
        store.execute(f"PRAGMA journal_mode = {journal}")
        store.execute("CREATE TABLE traces (a)")
        store.execute("INSERT INTO traces VALUES (randomblob(9000))")
        copier = Copier(source, tmp_path / "copy", rsync=None)
        copy = sync.copy_database
        monkeypatch.setattr(sync, "copy_database", lambda *given: (copier.stop(), copy(*given)))
        with pytest.raises(SyncError, match="not done in time"):
            copier.copy()
    assert not any("traces" in path.name for path in (tmp_path / "copy").iterdir())


@pytest.mark.parametrize("pages", [1, None])
def test_a_store_without_a_wal_that_changes_all_the_time_holds_no_round(source, tmp_path, pages, monkeypatch):
    """It is copied at once; one that is too large for that is given up, as each commit begins its copy anew."""
    if pages:
        monkeypatch.setattr(sync, "_PAGES_LOCKED", pages)
    with closing(sqlite3.connect(source / "traces.db", isolation_level=None)) as store:
        store.execute("CREATE TABLE traces (a)")
        looks = []

        def write(*_):
            looks.append(store.execute("INSERT INTO traces VALUES (randomblob(9000))"))
            assert len(looks) < 99

        write()
        with pytest.raises(SyncError, match="changes faster") if pages else nullcontext():
            sync.copy_database(source / "traces.db", tmp_path / "traces.db", write)
    assert (tmp_path / "traces.db").exists() is (pages is None)


def test_back_again(source, tmp_path):
    Copier(source, tmp_path / "copy", rsync=None).copy()
    half = tmp_path / "copy" / "checkpoints" / "step_000003" / "a"
    half.parent.mkdir()
    half.touch()
    restore_run(tmp_path / "copy", tmp_path / "new")
    assert names(tmp_path / "new") == [name for name in names(tmp_path / "copy") if "step_000003" not in name]


def test_what_names_a_run_and_makes_a_checkpoint_whole_comes_last(source, tmp_path, monkeypatch):
    sent, copy_file = [], sync._copy_file
    monkeypatch.setattr(sync, "_copy_file", lambda old, new: (sent.append(old.name), copy_file(old, new)))
    for name in ("status.json", "requeue.json"):
        (source / name).touch()
    restore_run(source, tmp_path / "new")
    assert sent[-3:] == ["manifest.json", "status.json", "requeue.json"]
    assert set(sent[:-3]) == {"steps.jsonl", "config.yaml", "a"}
    assert (tmp_path / "new" / "requeue.json").is_file()


def test_rounds_while_the_run_goes_on_and_one_at_its_end(source, tmp_path, rsync):
    said, target = [], tmp_path / "copy"
    with keep_synced(source, target, every_s=0.05, say=said.append, rsync=rsync):
        wait_until(lambda: (target / "steps.jsonl").exists())
        (source / "late").write_text("x")
        wait_until(lambda: (target / "late").exists())
    with keep_synced(source, target, every_s=3600, say=said.append, rsync=rsync):
        (source / "last").write_text("x")
    assert (target / "last").exists() and said == []


def test_a_round_that_is_asked_for_begins_after_the_question_and_holds_nobody_too_long(source, tmp_path, monkeypatch):
    going, go_on, copy_file = threading.Event(), threading.Event(), sync._copy_file
    monkeypatch.setattr(sync, "_copy_file", lambda *paths: (going.set(), go_on.wait(10), copy_file(*paths)))
    with keep_synced(source, tmp_path / "copy", every_s=0.01, say=print) as rounds:
        going.wait(10)
        (source / ".hydra" / "late").touch()
        rounds.now(0.05)  # the round that goes on may have passed that folder
        assert not (tmp_path / "copy" / ".hydra" / "late").exists()
        go_on.set()
        rounds.now(10)
        assert (tmp_path / "copy" / ".hydra" / "late").exists()


def test_rsync_sends_what_makes_things_whole_in_a_second_call(source, tmp_path):
    fake = tmp_path / "rsync"
    late = source / "checkpoints" / "step_000003"  # published when the first call had made its list
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nmkdir -p {late}\ntouch {late}/manifest.json\n')
    fake.chmod(0o755)
    Copier(source, tmp_path / "copy", rsync=str(fake)).copy()
    first, second = (tmp_path / "calls").read_text().splitlines()
    names = ("/checkpoints/*/manifest.json", "/status.json", "/requeue.json")
    assert all(f"--exclude={name} " in first for name in names) and "--exclude=/traces.db " in first
    sent = ("/checkpoints/", "/checkpoints/step_000002/", "/checkpoints/step_000002/manifest.json", *names[1:])
    assert " ".join([*(f"--include={name}" for name in sent), f"--exclude=* {source}/"]) in second


def test_the_last_round_is_made_whatever_ends_the_run(source, tmp_path):
    with pytest.raises(KeyError), keep_synced(source, tmp_path / "copy", every_s=3600, say=print):
        raise KeyError
    assert (tmp_path / "copy" / "steps.jsonl").exists()


def test_an_error_is_said_once_and_at_the_end_and_the_run_goes_on(source, tmp_path, rsync):
    said = []
    (tmp_path / "file").touch()
    with keep_synced(source, tmp_path / "file" / "copy", every_s=0.02, say=said.append, rsync=rsync):
        wait_until(lambda: said)
        time.sleep(0.2)
        assert len(said) == 1
    assert len(said) == 2 and all("paths.sync_to" in one and "file" in one for one in said)


def test_a_target_that_hangs_holds_nobody(source, tmp_path):
    slow = tmp_path / "rsync"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    said, started = [], time.monotonic()
    with keep_synced(source, tmp_path / "copy", every_s=0.01, say=said.append, rsync=str(slow), last_s=0.3):
        time.sleep(0.1)
    assert time.monotonic() - started < 5
    assert "not done in time" in said[-1]
    assert "sync" not in [thread.name for thread in threading.enumerate()]


def test_rsyncs_own_words(source, tmp_path):
    broken = tmp_path / "rsync"
    broken.write_text("#!/bin/sh\necho 'rsync: disk quota exceeded (122)' >&2\nexit 11\n")
    broken.chmod(0o755)
    with pytest.raises(SyncError, match="disk quota exceeded"):
        Copier(source, tmp_path / "copy", rsync=str(broken)).copy()


def test_files_that_go_away_meanwhile(source, tmp_path, monkeypatch):
    walk = os.walk

    def with_a_ghost(top):
        for folder, folders, files in walk(top):
            yield folder, folders, [*files, "ghost"]

    monkeypatch.setattr("swe_rl.hardware.sync.os.walk", with_a_ghost)
    Copier(source, tmp_path / "copy", rsync=None).copy()
    assert not (tmp_path / "copy" / "ghost").exists()


def test_a_mark_that_a_full_disk_does_not_take_is_not_left(source, tmp_path):
    """Empty, it would be another run's for ever."""
    StatusWriter(source / "status.json", config_hash="h")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            sync.claim_copy(tmp_path / "copy", RunFolder(source))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert sync.claim_copy(tmp_path / "copy", RunFolder(source)) == tmp_path / "copy"


def test_the_copys_name():
    assert folder_name(current_allocation({"SLURM_JOB_ID": "12"}), "2026", "dp4") == "job_12_dp4"
    array = current_allocation({"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "2"})
    assert folder_name(array, "2026", "dp4") == "job_12_2_dp4"
    assert folder_name(None, "2026", "dp4") == "job_2026_dp4"
