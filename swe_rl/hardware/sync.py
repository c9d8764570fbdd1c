"""This module copies what a run leaves behind while it goes on, from a node's own disk to one that outlives the job.

Invariants:
- The run does not fail for a copy: errors are said, each once, and the next round tries again. Nor does it wait for
  one, with one exception: while 64 MiB of a trace store without a WAL are copied, its commits wait.
- Two runs never share a copy: the first to come marks the folder as its own, and finds it again when it goes on.
- A file arrives whole or not at all. Nothing is removed there but checkpoints that the run itself has given up.
- A trace store is copied as it was at one moment: file by file, a commit between two of them would damage the copy.
- What makes a checkpoint whole comes after its other files, and what names the run comes last. Back on a node, half a
  checkpoint is none, and half a folder is nobody's run.
- The last round is at the run's end, and is cut short after LAST_S: a job that was told to end has little time.
- rsync does the work if it is there. It or its stand-in sends only what has changed.
"""

import itertools
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from swe_rl.config.known_models import MANIFEST_FILE
from swe_rl.errors import RunError
from swe_rl.files.lines import lines_of
from swe_rl.hardware.slurm.jobs import Allocation
from swe_rl.logger.folder import RunFolder

LAST_S = 120.0
# A round takes at most so long: more than a checkpoint of a large model takes.
_ROUND_S = 3600.0
_LOOK_S = 0.1
# A turn copies so many pages of a database: 4 MiB.
_PAGES = 1024
# Without a WAL the run waits for a turn, and a commit after it begins the copy anew. So a turn copies 64 MiB.
_PAGES_LOCKED = 16384
_ANEW = 5
# What is written aside has a name like `.status.json.tmp-1`.
_LEFT_OUT = ("/.lock", "/.copy_of", ".*.tmp*")

Say = Callable[[str], None]


def folder_name(here: Allocation | None, run: str, name: str) -> str:
    """Returns `job_JOBID_NAME`. Outside a job `run`, which tells the run's folder from others, takes the number's
    place."""
    return f"job_{here.job_id if here is not None else run}_{name}"


def list_copies(first: Path) -> list[Path]:
    """Returns the copies of the runs whose copy would be `first`, which only one of them has: `first`, `first_2`,
    ..."""
    name = re.compile(re.escape(first.name) + r"(_\d+)?")
    return [path for path in first.parent.glob("*") if name.fullmatch(path.name)]


def _numbered_paths(first: Path) -> Iterator[Path]:
    yield first
    yield from (first.with_name(f"{first.name}_{number}") for number in itertools.count(2))


def claim_copy(first: Path, run: RunFolder) -> Path:
    """Returns the first of `list_copies` that is this run's, or nobody's yet. Raises OSError."""
    status = run.status()
    mine = ""
    if status:
        mine = f"{status.config_hash} {status.started!r}\n"
    for path in _numbered_paths(first):
        path.mkdir(parents=True, exist_ok=True)
        mark = RunFolder(path).copy_of
        try:
            # Two runs may begin at the same time.
            mark.touch(exist_ok=False)
        except FileExistsError:
            if mark.read_text(encoding="utf-8") != mine:
                continue
            return path
        try:
            mark.write_text(mine, encoding="utf-8")
        except OSError:
            # An empty mark would be another run's for ever.
            mark.unlink()
            raise
        return path
    raise AssertionError("numbers do not end")


class SyncError(RunError):
    """A copy did not reach its end."""


class Copier:
    """Makes one folder's copy. Calls are not to overlap; `stop` may come from another thread in the middle of one.

    With `live`, a run may be writing to `source`. `stops` does the same as `stop`, and is asked between files.
    """

    def __init__(
        self,
        source: Path,
        target: Path,
        *,
        rsync: str | None,
        live: bool = True,
        stops: Callable[[], object] = lambda: None,
    ) -> None:
        self._source = source
        self._target = target
        self._rsync = rsync
        self._live = live
        self._stops = stops
        self._traces_before: list[tuple[int, int]] = []
        self._stopped = threading.Event()
        self._claimed = False

    def stop(self) -> None:
        self._stopped.set()

    def claim(self) -> None:
        """Claims `target`, or another name if another run has it. Raises SyncError."""
        if not self._claimed:
            with _as_sync_errors(self._target):
                self._target = claim_copy(self._target, RunFolder(self._source))
            self._claimed = True

    def copy(self) -> None:
        """Makes one round of the copy. Raises SyncError."""
        with _as_sync_errors(self._target):
            self._target.mkdir(parents=True, exist_ok=True)
            if self._rsync is None:
                self._copy_tree()
            else:
                self._run_rsync(self._rsync)
            self._drop_old_checkpoints()
            if self._live:
                self._copy_traces()

    def _run_rsync(self, rsync: str) -> None:
        run = RunFolder(self._source)
        checkpoint = RunFolder(self._source).checkpoint(0)
        last = (checkpoint.with_name("*") / MANIFEST_FILE, run.status_json, run.requeue_json)
        not_yet = [f"/{path.relative_to(self._source)}" for path in last]
        left_out = (*_LEFT_OUT, *(f"/{path.name}" for path in _files_of(run.traces_db)))
        folders = f"/{run.checkpoints.name}/"
        here = [f"{folders}{run.checkpoint(step).name}/" for step in run.checkpoint_steps()]
        self._send(rsync, [f"--exclude={pattern}" for pattern in (*left_out, *not_yet)])
        # Not what was published meanwhile: the manifest would come before the other files.
        whole = [folders, *here, *(f"{folder}{MANIFEST_FILE}" for folder in here), *not_yet[1:]]
        self._send(rsync, [*(f"--include={path}" for path in whole), "--exclude=*"])

    def _send(self, rsync: str, patterns: list[str]) -> None:
        with subprocess.Popen(
            [rsync, "-a", "--no-owner", "--no-group", *patterns, f"{self._source}/", f"{self._target}/"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            until = time.monotonic() + _ROUND_S
            while True:
                try:
                    _, said = process.communicate(timeout=_LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    if self._stopped.is_set() or time.monotonic() > until:
                        process.kill()
            self._check_stopped()
        # Status 24 means that a file went away meanwhile, as live ones do.
        if process.returncode not in (0, 24):
            lines = lines_of(said.strip(), ends=False)
            raise SyncError(lines[0] if lines else f"rsync ended with status {process.returncode}")

    def _copy_tree(self) -> None:
        run = RunFolder(self._source)
        apart = (run.lock, run.copy_of, *(_files_of(run.traces_db) if self._live else ()))
        last = (run.status_json, run.requeue_json)
        manifests: list[Path] = []
        for folder, folders, files in os.walk(self._source):
            there = self._target / Path(folder).relative_to(self._source)
            there.mkdir(exist_ok=True)
            folders[:] = [name for name in folders if not _left_out(name) and self._is_whole(Path(folder) / name)]
            for name in files:
                self._check_stopped()
                path = Path(folder) / name
                if name == MANIFEST_FILE:
                    manifests.append(path)
                elif not _left_out(name) and path not in (*apart, *last):
                    _copy_file(path, there / name)
        for path in (*manifests, *last):
            _copy_file(path, self._target / path.relative_to(self._source))

    def _is_whole(self, folder: Path) -> bool:
        """Tells whether a folder may be copied: a checkpoint of which a copy has only a part may not."""
        of_copy = not self._live and folder.parent == RunFolder(self._source).checkpoints
        return not of_copy or (folder / MANIFEST_FILE).is_file()

    def _copy_traces(self) -> None:
        """Copies the trace store. Raises SyncError, OSError, sqlite3.Error."""
        source = RunFolder(self._source).traces_db
        target = RunFolder(self._target).traces_db
        if not source.exists():
            return
        now = [(file.st_size, file.st_mtime_ns) for path in _files_of(source)[:2] if (file := _stat_or_none(path))]
        if now == self._traces_before and target.exists():
            return
        until = time.monotonic() + _ROUND_S

        def look() -> None:
            self._check_stopped()
            if time.monotonic() > until:
                raise SyncError(f"{source.name} was not copied within {_ROUND_S:g} s")

        copy_database(source, target, look)
        self._traces_before = now

    def _check_stopped(self) -> None:
        if self._stopped.is_set() or self._stops():
            raise SyncError("it was not done in time")

    def _drop_old_checkpoints(self) -> None:
        """Removes old checkpoints if newer ones have arrived: an empty disk of a fresh node must not empty the copy."""
        kept = RunFolder(self._source).checkpoint_steps()
        there = RunFolder(self._target)
        for step in there.checkpoint_steps():
            if kept and step < min(kept):
                shutil.rmtree(there.checkpoint(step), ignore_errors=True)


@contextmanager
def _as_sync_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SyncError(f"{error.filename or target}: {error.strerror or error}") from error
    except sqlite3.Error as error:
        raise SyncError(f"{RunFolder(target).traces_db}: {error}") from error


def _left_out(name: str) -> bool:
    return name.startswith(".") and ".tmp" in name


def _copy_file(source: Path, target: Path) -> None:
    """Copies a file, unless size and time are equal, or it went away. Raises OSError of the target's side."""
    try:
        now = source.lstat()
    except OSError:
        return
    try:
        then = target.lstat()
        if (then.st_size, then.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
            return
    except OSError:
        pass
    aside = target.with_name(f".{target.name}.tmp")
    try:
        shutil.copy2(source, aside, follow_symlinks=False)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def copy_database(source: Path, target: Path, look: Callable[[], object]) -> None:
    """Copies all that is committed into one file; others may write meanwhile. `look` is called often, and may raise.

    Raises OSError, sqlite3.Error; SyncError if each commit begins the copy anew.
    """
    aside = target.with_name(f".{target.name}.tmp")
    aside.unlink(missing_ok=True)
    try:
        _back_up(source, aside, look)
        # An older copy may have been made file by file.
        for path in _files_of(target)[1:]:
            path.unlink(missing_ok=True)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _back_up(source: Path, target: Path, look: Callable[[], object]) -> None:
    last = sys.maxsize
    anew = 0

    def after_turn(status: int, remaining: int, _: int) -> None:
        nonlocal last, anew
        look()
        if status == sqlite3.SQLITE_OK:
            anew += remaining >= last
        last = remaining
        if anew >= _ANEW:
            raise SyncError(f"{source.name} changes faster than it is copied")

    with (
        # A reader's alone would leave a WAL's files in the folder of a run that has closed its store.
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as live,
        # Nobody else knows `target`, and not every network file system has locks.
        closing(sqlite3.connect(f"{target.absolute().as_uri()}?nolock=1", uri=True)) as copy,
    ):
        copy.execute("PRAGMA journal_mode = OFF")
        copy.execute("PRAGMA synchronous = OFF")
        has_wal = live.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        # Without a WAL a reader would make the run wait.
        if has_wal:
            live.execute("BEGIN")
            live.execute("SELECT * FROM sqlite_master").fetchall()
        live.backup(copy, pages=_PAGES if has_wal else _PAGES_LOCKED, progress=after_turn)


def _files_of(database: Path) -> list[Path]:
    return [database.with_name(database.name + end) for end in ("", "-wal", "-shm", "-journal")]


def _stat_or_none(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def restore_run(source: Path, target: Path, stops: Callable[[], object] = lambda: None) -> None:
    """Brings a run's copy back into its folder, on a node whose disk does not have it. Raises SyncError, also once
    `stops`."""
    Copier(source, target, rsync=None, live=False, stops=stops).copy()


class Rounds:
    """Makes a run's copies, one after the other, in a thread of their own."""

    def __init__(self, copier: Copier, every_s: float, say: Say) -> None:
        self._copier = copier
        self._every_s = every_s
        self._say = say
        self._over = False
        # Counts rounds that somebody waits for.
        self._asked = self._done = 0
        self._changed = threading.Condition()

    def now(self, within_s: float) -> None:
        """Returns when a round is done that begins after this call, or after `within_s`."""
        with self._changed:
            self._asked += 1
            wanted = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= wanted, within_s)

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def run(self) -> None:
        said = ""
        last = False
        while not last:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._asked > self._done, self._every_s)
                last = self._over
                asked = self._asked
            try:
                self._copier.claim()
                self._copier.copy()
                said = ""
            except Exception as error:
                # Whatever it is, the run is worth more than its copy.
                text = f"paths.sync_to: not everything was copied: {error}"
                if text != said or last:
                    self._say(text)
                said = text
            with self._changed:
                self._done = asked
                self._changed.notify_all()


@contextmanager
def keep_synced(
    source: Path, target: Path, *, every_s: float, say: Say, rsync: str | None = None, last_s: float = LAST_S
) -> Iterator[Rounds]:
    """Copies every `every_s` seconds, and once more at the end. `rsync` is its path, or None to do without it."""
    copier = Copier(source, target, rsync=rsync)
    rounds = Rounds(copier, every_s, say)
    worker = threading.Thread(target=rounds.run, name="sync", daemon=True)
    worker.start()
    try:
        yield rounds
    finally:
        rounds.end()
        worker.join(last_s)
        if worker.is_alive():
            copier.stop()
            worker.join(_LOOK_S * 20)
        if worker.is_alive():  # The file system does not answer.
            say(f"paths.sync_to: {target} does not answer; what is there is older than the run")
