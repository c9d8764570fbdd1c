"""Kills parts of small jobs at random and at named moments, resumes them, and looks for what is lost.

    python -m tests.support.kill_storm --seed 1 --kills 200 --points --out FOLDER
    python -m tests.support.kill_storm --seed 1 --kills 20 --targets driver,rank --out FOLDER
    SWE_RL_VLLM_COMMAND=... python -m tests.support.kill_storm --kills 10 --targets engine_cpu --out FOLDER

FOLDER/kills.jsonl has a line a kill; a table is printed at the end. Exit status 1 where anything was violated, or where
not every kill found its target.

Invariants:
- What is compared with is an uninterrupted run of the same job on this machine, made first.
- The files of a run with a violation are kept; those of the others are removed.
"""

import argparse
import pickle
import queue
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from swe_rl.logger.jsonl import JsonlWriter, read_jsonl
from tests.support.storm.allocation import Allocation
from tests.support.storm.check import KINDS, Facts, Violation
from tests.support.storm.jobs import OF_NAME, Job, write_data
from tests.support.storm.plan import DEFAULT_TARGETS, Chunk, chunks, point_kills, random_kills
from tests.support.storm.runs import Kill, Outcome, Run
from tests.support.storm.starts import Starts
from tests.support.storm.targets import TARGETS

_MOST_TRIES = 5  # of a kill that comes too late
_EARLIER = 0.6  # by which it comes earlier at the next try: this machine may have been slower during the first run
Waiting = queue.SimpleQueue[tuple[str, list[Kill], int]]


class Storm:
    """Runs of `out`, some at a time; each worker has a warm process of its own."""

    def __init__(self, out: Path, side_by_side: int) -> None:
        self._out, self._side_by_side = out, side_by_side
        out.mkdir(parents=True, exist_ok=True)
        self.lines = out / "kills.jsonl"
        self._data = write_data(out / "data")
        self._references: dict[str, tuple[tuple[float, float], Facts]] = {}
        self._names = iter(range(sys.maxsize))
        self._allocation = Allocation()
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []
        self.broken: dict[str, str] = {}  # jobs that do not run here even when nobody kills them

    def go(self, planned: Sequence[Chunk]) -> None:
        """All of `planned` that no line is of yet. Raises the first worker's error."""
        done = {line["kill"] for line in read_jsonl(self.lines)}
        waiting: Waiting = queue.SimpleQueue()
        for name, kills in planned:
            if left := [kill for kill in kills if kill.number not in done]:
                waiting.put((name, kills if any(kill.point for kill in kills) else left, 1))
        if waiting.empty():  # a worker's warm process takes seconds to start
            return
        with JsonlWriter(self.lines) as writer:
            workers = [
                threading.Thread(target=self._work, args=(number, waiting, writer))
                for number in range(self._side_by_side)
            ]
            for worker in workers:
                worker.start()
            try:
                for worker in workers:
                    worker.join()
            finally:
                self._allocation.close()
        if self._failures:
            raise self._failures[0]

    def _work(self, number: int, waiting: Waiting, writer: JsonlWriter) -> None:
        try:
            with Starts(self._out / f"warm{number}") as starts:
                while not self._failures:
                    try:
                        name, kills, tries = waiting.get_nowait()
                    except queue.Empty:
                        return
                    if name in self.broken:
                        continue
                    try:
                        missed = self._run(OF_NAME[name], kills, starts, writer)
                    except RuntimeError as error:
                        self.broken[name] = str(error)
                        print(error, flush=True)
                        continue
                    if missed and tries < _MOST_TRIES:
                        earlier = [replace(kill, at=kill.at * _EARLIER) for kill in missed]
                        waiting.put((name, earlier, tries + 1))
        except BaseException as error:
            self._failures.append(error)

    def _run(self, job: Job, kills: list[Kill], starts: Starts, writer: JsonlWriter) -> list[Kill]:
        """Returns the kills that came too late."""
        times_s, reference = self._reference(job, starts)
        root = self._fresh(job)
        outcome = Run(job, root, self._data, starts, times_s, self._allocation).go(kills, reference)
        for kill, survived in outcome.killed:
            writer.append(line_of(kill, job, survived, outcome, root.name))
        missed = [kill for kill in kills if kill not in {one for one, _ in outcome.killed}]
        if missed and missed[0].point:
            outcome.violations.append(Violation("unfinished", f"{missed[0].point} was not reached"))
        if outcome.violations and not outcome.killed:
            writer.append(line_of(kills[0], job, False, outcome, root.name))
        print(said(job, kills, outcome, root.name), flush=True)
        if not outcome.violations:
            shutil.rmtree(root, ignore_errors=True)
        return [] if missed and missed[0].point else missed

    def _reference(self, job: Job, starts: Starts) -> tuple[tuple[float, float], Facts]:
        """For how long an uninterrupted run starts, and samples, and what it leaves. Raises RuntimeError."""
        with self._lock:
            kept = self._out / f"uninterrupted_{job.name}.pickle"
            if job.name not in self._references and kept.is_file():
                self._references[job.name] = pickle.loads(kept.read_bytes())
            if job.name not in self._references:
                root = self._fresh(job)
                outcome = Run(job, root, self._data, starts, (0.0, 0.0), self._allocation).go([], None)
                if outcome.violations or outcome.facts is None or not outcome.start_s:
                    raise RuntimeError(f"an uninterrupted run of {job.name}, {root}: {outcome.violations}")
                shutil.rmtree(root, ignore_errors=True)
                times_s = (outcome.start_s, outcome.took_s - outcome.start_s)
                self._references[job.name] = times_s, outcome.facts
                kept.write_bytes(pickle.dumps(self._references[job.name]))
            return self._references[job.name]

    def _fresh(self, job: Job) -> Path:
        while True:
            root = self._out / "runs" / f"{job.name}_{next(self._names):04d}"
            try:
                root.mkdir(parents=True)
            except FileExistsError:  # an earlier storm kept it
                continue
            return root


def line_of(kill: Kill, job: Job, survived: bool, outcome: Outcome, run: str) -> dict[str, Any]:
    """Of `kills.jsonl`. A run's violations are in the lines of all its kills: nobody knows which of them it was."""
    kinds = Counter(one.kind for one in outcome.violations)
    return {
        "kill": kill.number,
        "target": kill.target,
        "point": kill.point,
        "job": job.name,
        "at": round(kill.at, 4),
        "in_start": kill.in_start,
        "survived": survived,
        "run": run,
        "starts": outcome.starts,
        "run_s": round(outcome.took_s, 1),
        **{kind.replace(" ", "_"): kinds[kind] for kind in KINDS},
        "violations": [one.text for one in outcome.violations],
    }


def said(job: Job, kills: Sequence[Kill], outcome: Outcome, run: str) -> str:
    what = ", ".join(f"{kill.point or kill.target}" for kill, _ in outcome.killed) or "nothing"
    late = len(kills) - len(outcome.killed)
    lines = [
        f"{time.strftime('%H:%M:%S')} {run}: killed {what}; {outcome.starts} starts, {outcome.took_s:.0f} s"
        + (f", {late} came too late" if late else "")
    ]
    return "\n".join([*lines, *(f"    {one.kind}: {one.text}" for one in outcome.violations[:8])])


def table(lines: Iterable[dict[str, Any]]) -> list[str]:
    """A row a target or a named point: kills, what became of them, and the violations of their runs."""
    rows: dict[str, Counter[str]] = {}
    for line in lines:
        name = f"`{line['point'].partition(':')[0]}` ({line['job']})" if line["point"] else line["target"]
        row = rows.setdefault(name, Counter())
        row["kills"] += 1
        row["survived" if line["survived"] else "resumed"] += 1
        row.update({kind: line[kind.replace(" ", "_")] for kind in KINDS})
    columns = ("kills", "survived", "resumed", *KINDS)
    head = f"| target or point | {' | '.join(columns)} |"
    return [
        head,
        "|---" * (len(columns) + 1) + "|",
        *(f"| {name} | {' | '.join(str(row[column]) for column in columns)} |" for name, row in rows.items()),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parsed(argv)
    storm = Storm(arguments.out.resolve(), arguments.side_by_side)
    planned = point_kills(arguments.seed, arguments.only_points) if arguments.points else []
    drawn = chunks(random_kills(arguments.seed, arguments.kills, arguments.targets), arguments.kills_per_run)
    both = zip_longest(planned, drawn)  # a storm that is stopped has some of either
    planned = [chunk for pair in both for chunk in pair if chunk]
    try:
        storm.go(planned)
    except KeyboardInterrupt:
        print("stopped; the same words go on")
        return 130
    lines = read_jsonl(storm.lines)
    print("\n".join(table(lines)))
    missing = {kill.number for _, kills in planned for kill in kills} - {line["kill"] for line in lines}
    if missing:
        print(f"{len(missing)} kills found no target alive: {sorted(missing)}")
    for failure in storm.broken.values():
        print(failure)
    return int(bool(missing or storm.broken) or any(line["violations"] for line in lines))


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill parts of small jobs, resume them, look for what is lost.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0, help="at random moments")
    parser.add_argument("--targets", type=_names(TARGETS), default=list(DEFAULT_TARGETS), help=", ".join(TARGETS))
    parser.add_argument("--points", action="store_true", help="also at every named point of kill_point")
    parser.add_argument("--only-points", type=lambda text: text.split(","), default=[], help="of --points, these")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time")
    parser.add_argument("--kills-per-run", type=int, default=4)
    return parser.parse_args(argv)


def _names(known: Iterable[str]) -> Any:
    def read(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(known)}")
        return found

    return read


if __name__ == "__main__":
    sys.exit(main())
