"""A full, a failing and a read-only disk at every file that a small run writes; then room again, and the same words.

    python -m bench.full_disk --out FOLDER                        # each file of each job, one after another
    python -m bench.full_disk --jobs stream --only 'queue/*' --out FOLDER

The files are those that an uninterrupted run of the job was seen to write: what is new is tried without being named.
FOLDER/disks.jsonl has a line a trial; a table is printed at the end. Exit status 1 where anything was violated.

Invariants:
- What fails is the call `write` (or `open`) of the C library, in any process of the run: see bench/storm/full_disk.c.
- After the trial the run goes on with the same words, and is compared as after a kill.
"""

import argparse
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from bench.storm.check import Violation
from bench.storm.disk_jobs import DISK_JOBS, DiskJob, asked, leftovers
from bench.storm.jobs import environment, words, write_data
from bench.storm.starts import ALL, WITHOUT_MODEL, Starts
from swe_rl.logger.jsonl import JsonlWriter

_PRELOADED = Path(__file__).parent / "storm" / "full_disk.c"
_JOBS = ("embedded", "ranks", "servers", "stream", "eval", "rows", "prefixes", "export", "sft", "prepare", "serve")
_FAULTS = ("full", "file", "read_only", "frozen", "forbidden")
_ERRORS = {"full": errno.ENOSPC, "file": errno.ENOSPC, "read_only": errno.EROFS}
_ERRORS |= {"frozen": errno.EROFS, "forbidden": errno.EACCES}
_WHOLE = ("full", "frozen", "forbidden")  # in the middle of the file's writes all of the disk changes
_LOOK_S = 0.02
_PATIENCE_S = 240.0
# Files that only show what others have: where such a file alone fails, the run goes on, and ends well.
MIRRORS = ("report.html", "plan.json", "programs/*", "run.log")
_MAY_GO_ON = ("trainer/rank*", "engines/*")  # what processes say: they write it themselves
_WORDS = r"No space left|Read-only file system|Permission denied|disk|read-only"
_ROWS = re.compile(r"\.rows\.\w+\.tmp")


@dataclass(frozen=True, slots=True)
class Trial:
    """`file`: a glob below the run's folder. `fault`: of _FAULTS; `full`: nothing takes a byte from then on."""

    job: str
    file: str
    fault: str
    after: int = 0


@dataclass(slots=True)
class Seen:
    """`status`: of the start that met the fault. `said`: the lines that it ended with."""

    trial: Trial
    hit: bool = False
    status: int | None = None
    said: str = ""
    violations: list[Violation] = field(default_factory=list)


def built(folder: Path) -> Path:
    """The library that is preloaded. Raises CalledProcessError, FileNotFoundError without a compiler."""
    made = folder / "full_disk.so"
    if not made.exists():
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(made), str(_PRELOADED), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
    return made


def kinds(paths: Sequence[str], root: Path) -> dict[str, int]:
    """Globs below the run's folder (or `cache/`), and how many writes each had; numbers of steps and ids are stars."""
    found: dict[str, int] = {}
    for path in paths:
        parts = Path(path).relative_to(root).parts
        below = parts[3:] if parts[0] == "outputs" else parts
        if parts[0] == "scratch" and "weights" in path:
            below = ("scratch", *parts[-2:])
        elif _ROWS.fullmatch(parts[-1]):  # that ranks read, wherever temporary files are
            below = below if parts[0] == "outputs" else ("scratch", parts[-1])
        elif parts[0] in ("tmp", "scratch") or not below:
            continue
        name = "/".join(below)
        if name.startswith("cache/swe_rl/workspaces/"):
            name = "cache/swe_rl/workspaces/*.py"
        name = re.sub(r"\.([^/]+)\.\d+\.[0-9a-f]{12}\.tmp", r"\1", name)
        name = re.sub(r"\.(step_\d+|weights_\d+)[^/]*(?=/)", r"\1", name)
        name = _ROWS.sub(".rows.*.tmp", name)
        name = re.sub(r"(^|/)\.([^/]+)\.aside[^/]*(?=/)", r"\1\2", name)
        name = re.sub(r"\d{3,}|[0-9a-f]{16,}", "*", name)
        found[name] = found.get(name, 0) + 1
    return found


class Disks:
    """Of one job: a reference, then trials. A context of its Starts."""

    def __init__(self, out: Path, job: DiskJob, starts: Starts, library: Path, extra: Sequence[str] = ()) -> None:
        self._out, self._disk_job, self._job = out, job, job.job
        self._starts, self._library, self._extra = starts, library, extra
        self._data = write_data(out / "data")
        job.before(self._data)
        self._number = 0
        self._lock = threading.Lock()

    def reference(self) -> tuple[dict[str, int], Any]:
        """What it writes, and what it leaves. Raises RuntimeError where it fails without any fault."""
        root = self._fresh()
        seen = root / "seen.txt"
        status = self._start(root, {"FULL_DISK_SEEN": str(seen), "FULL_DISK_BELOW": f"{root}/"})
        if status != self._disk_job.end:
            raise RuntimeError(f"an uninterrupted run of {self._job.name}: status {status}, {_tail(root)}")
        facts = self._disk_job.read(root)
        written = kinds(seen.read_text().splitlines(), root)
        shutil.rmtree(root)
        return written, facts

    def go(self, trial: Trial, reference: Any) -> Seen:
        root = self._fresh()
        seen = Seen(trial)
        said = root / "failed.txt"
        is_of_scratch = trial.file.startswith("scratch/")
        parts = trial.file.removeprefix("scratch/").split("/")
        top = f"{root}/outputs/*/*/" if len(parts) == 1 and not is_of_scratch else f"{root}/*"
        at = top + "/".join(f"*{part}*" for part in parts)  # also under the name that it is written aside with
        fault = {"FULL_DISK_AT": at, "FULL_DISK_AFTER": str(trial.after), "FULL_DISK_SAID": str(said)}
        fault |= {"FULL_DISK_BELOW": f"{root}/{_disk_of(trial)}", "FULL_DISK_ERROR": str(_ERRORS[trial.fault])}
        if trial.fault in _WHOLE:
            fault["FULL_DISK_ALL"] = "1"
        seen.status = self._start(root, fault)
        seen.hit, seen.said = said.exists(), _tail(root)
        if seen.hit:
            seen.violations += list(_of_the_end(seen, said.read_text().splitlines()[0], self._disk_job.end))
        again = seen.status if seen.status == self._disk_job.end else self._start(root, {})
        if again != self._disk_job.end:
            seen.violations.append(Violation("unfinished", f"with room again: status {again}, {_tail(root)}"))
        seen.violations += self._look(trial, root, reference)
        if not seen.violations:
            shutil.rmtree(root)
        return seen

    def _look(self, trial: Trial, root: Path, reference: Any) -> Iterator[Violation]:
        try:
            found = self._disk_job.read(root)
        except (ValueError, OSError, RuntimeError, KeyError) as error:
            yield Violation("lost", f"what it leaves cannot be read: {error!r}")
            return
        for violation in self._disk_job.compare(self._disk_job, found, reference):
            if violation.text != f"{trial.file} is not there" or trial.file not in MIRRORS:
                yield violation
        yield from leftovers(root)

    def _start(self, root: Path, fault: Mapping[str, str]) -> int | None:
        environ = {**environment(self._job, root), **fault, "LD_PRELOAD": str(self._library)}
        log = _log_of(root)
        log.unlink(missing_ok=True)
        line = [word.format(root=root, data=self._data) for word in words(self._job, root, self._data)]
        line += self._extra
        with self._lock:
            pid = self._starts.start(line, environ, root, log)
        if self._disk_job.serves:
            asked(root, log, lambda: self._starts.status(pid) is not None, pid)
        until_s = time.monotonic() + _PATIENCE_S
        while (status := self._starts.status(pid)) is None and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        if status is None:
            os.kill(pid, signal.SIGKILL)
        return status

    def _fresh(self) -> Path:
        while True:
            with self._lock:
                self._number += 1
                root = self._out / "runs" / f"{self._job.name}_{self._number:03d}"
                if not root.exists():
                    root.mkdir(parents=True)
                    return root


def _of_the_end(seen: Seen, failed: str, well: int = 0) -> Iterator[Violation]:
    """How the start that met the fault ended: with status 1 and one paragraph, or well where the file only shows."""
    is_mirror = any(fnmatch(seen.trial.file, name) for name in MIRRORS)
    may_go_on = is_mirror or any(fnmatch(seen.trial.file, name) for name in _MAY_GO_ON)
    if seen.status is None:
        yield Violation("unfinished", f"it hangs: {seen.said}")
    elif "Traceback" in seen.said or "fault of swe_rl" in seen.said:
        yield Violation("unsaid", f"no paragraph but a traceback: {seen.said[-600:]}")
    elif seen.status == well:
        was_said = bool(well and re.search(_WORDS, seen.said))  # a server that was told to end, and could not note it
        if not may_go_on and not was_said:
            yield Violation("unsaid", f"{failed} was not written, and the run ended well")
    elif seen.status not in (0, 1, 2):
        yield Violation("unsaid", f"status {seen.status}: {seen.said[-600:]}")
    elif is_mirror and seen.trial.fault not in _WHOLE:
        yield Violation("unfinished", f"{failed} only shows, and the run ended for it: {seen.said[-600:]}")
    elif seen.status and not re.search(_WORDS, seen.said):
        yield Violation("unsaid", f"no word of the disk: {seen.said[-600:]}")


def _disk_of(trial: Trial) -> str:
    """What changes, below the trial's folder: a full disk is that of all folders, a frozen one that of the file's."""
    if trial.fault == "full":
        return ""
    first = trial.file.partition("/")[0]
    return {"cache": "cache/", "scratch": "scratch/", "exported": "", "model": ""}.get(first, "outputs/")


def trials(job: str, written: Mapping[str, int], only: str, faults: Sequence[str]) -> list[Trial]:
    """Each file in each way; a disk changes in the middle of a file's writes, a failing file fails at its first."""
    return [
        Trial(job, file, fault, number // 2 if fault in _WHOLE else 0)
        for file, number in sorted(written.items())
        if any(fnmatch(file, glob) for glob in only.split(","))
        for fault in faults
    ]


def _log_of(root: Path) -> Path:
    """Beside it: on another disk, as a terminal is."""
    return root.with_suffix(".txt")


def _tail(root: Path) -> str:
    log = _log_of(root)
    return log.read_text(errors="replace")[-1500:] if log.exists() else ""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parsed(argv)
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    library = built(out)
    os.environ["LD_PRELOAD"] = str(library)
    missed: list[str] = []
    number = violated = 0
    with (
        JsonlWriter(out / "disks.jsonl") as lines,
        Starts(out / "warm", _modules(arguments.jobs)) as starts,
        ThreadPoolExecutor(arguments.side_by_side) as pool,
    ):
        for name in arguments.jobs:
            disks = Disks(out, DISK_JOBS[name], starts, library, arguments.words)
            written, reference = disks.reference()
            print(f"{name} writes {', '.join(written)}", flush=True)
            planned = trials(name, written, arguments.only, arguments.faults)
            for seen in pool.map(partial(disks.go, reference=reference), planned):
                trial = seen.trial
                number, violated = number + 1, violated + bool(seen.violations)
                missed += [] if seen.hit else [f"{trial}"]
                found = [f"{one.kind}: {one.text}" for one in seen.violations]
                lines.append({"job": name, "file": trial.file, "fault": trial.fault, "hit": seen.hit,
                              "status": seen.status, "said": seen.said, "violations": found})  # fmt: skip
                how = f"status {seen.status}" if seen.hit else "not met"
                print("\n    ".join([f"{name} {trial.file} {trial.fault}: {how}", *found]), flush=True)
    print(f"{number} trials, {violated} violated, {len(missed)} not met")
    return int(bool(violated or missed))


def _modules(jobs: Sequence[str]) -> Sequence[str]:
    return WITHOUT_MODEL if all(not DISK_JOBS[name].has_model for name in jobs) else ALL


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A disk that takes no more, at each file that a small run writes.")
    parser.add_argument("--jobs", type=lambda text: text.split(","), default=list(_JOBS))
    parser.add_argument("--faults", type=lambda text: text.split(","), default=list(_FAULTS))
    parser.add_argument("--only", default="*", help="files, as globs with commas between them")
    parser.add_argument("--side-by-side", type=int, default=2, help="trials at a time")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("words", nargs="*", help="more words of the command line")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
