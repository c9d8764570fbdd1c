"""The jobs whose disk is full, beside those that the storm kills: their words, and what must come of them.

Invariants:
- What is compared is what the job is for: a run's facts, or the content of what it writes.
- A job that is not told to end ends by itself; a server is asked a few things, then told.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.storm.check import Facts, Violation, leftover_files, read_facts, violations
from bench.storm.jobs import OF_NAME, Job
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_jsonl

_QUESTIONS = 6
_STOPPED = 130
_ENDS_S = 30.0  # until a server that cannot answer has ended
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class DiskJob:
    """`words` may have {root} and {data}. `read`: what the job leaves below `root`; `compare`: that with the same of an
    uninterrupted one. `before`: makes in `data` what the job takes. `end`: the status of one that nothing disturbs."""

    job: Job
    read: Callable[[Path], Any]
    compare: Callable[["DiskJob", Any, Any], Iterator[Violation]]
    before: Callable[[Path], None] = lambda data: None
    end: int = 0
    has_model: bool = True

    @property
    def serves(self) -> bool:
        return self.end == _STOPPED


def run_folder(root: Path) -> RunFolder:
    """Raises FileNotFoundError, ValueError where there is not one run alone."""
    [status] = (root / "outputs").glob("*/*/status.json")
    return RunFolder(status.parent)


def _facts(root: Path) -> Facts:
    return read_facts(run_folder(root))


def _same_facts(job: DiskJob, facts: Facts, reference: Facts) -> Iterator[Violation]:
    yield from violations(facts, reference, repeats=job.job.repeats, streams=job.job.streams)


def _rows(root: Path) -> Any:
    """Traces are gone once a step's rows are there: the facts without them, and the files of rows."""
    facts = _facts(root)
    known = {one.trajectory_id: one for attempts in facts.sets.values() for one in attempts}
    there = {name: (one.num_calls, one.sampled_tokens) for name, one in known.items()}
    rows = {path.name: path.stat().st_size for path in run_folder(root).rows_folder.glob("*")}
    return replace(facts, traces={**facts.traces, **there}), rows


def _prefixes(root: Path) -> Any:
    return _facts(root), sorted(path.name for path in run_folder(root).prefixes.glob("*"))


def _same_facts_and(folder: str) -> Callable[[DiskJob, Any, Any], Iterator[Violation]]:
    """For facts with what is in a folder of the run."""

    def compare(job: DiskJob, found: Any, reference: Any) -> Iterator[Violation]:
        yield from _same_facts(job, found[0], reference[0])
        if found[1] != reference[1]:
            yield Violation("lost", f"{folder}/ has {found[1]}, uninterrupted {reference[1]}")

    return compare


def _content(*names: str) -> Callable[[Path], dict[str, str]]:
    """Of all files below these folders, by path."""

    def read(root: Path) -> dict[str, str]:
        files = [path for name in names for path in sorted((root / name).rglob("*")) if path.is_file()]
        return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return read


def _same_content(job: DiskJob, found: Any, reference: Any) -> Iterator[Violation]:
    if found != reference:
        names = sorted(name for name in {*found, *reference} if found.get(name) != reference.get(name))
        yield Violation("differs", f"{job.job.name} left other {names}")


def _warm_start(root: Path) -> dict[str, Any]:
    steps = read_jsonl(run_folder(root).steps_jsonl)
    losses = {f"step {record['step']}": record["loss"] for record in steps}
    status = run_folder(root).status()
    model = {name: digest for name, digest in _content("model")(root).items() if "warm_start" not in name}
    return {**model, **losses, "steps": len(steps), "status": status and status.status.value}


def _served(root: Path) -> tuple[int, int]:
    """Answers that a client got, and traces."""
    answers, traces = root / "answers.txt", 0
    for path in (root / "outputs").glob("*/*/traces.db"):
        store = TraceStore(path)
        traces += sum(len(store.traces(session)) for session in store.sessions())
        store.close()
    return len(answers.read_text().splitlines()) if answers.exists() else 0, traces


def _each_is_kept(job: DiskJob, found: Any, reference: Any) -> Iterator[Violation]:
    answers, traces = found
    if traces < answers - 1:  # it was answered while its trace was on its way to the disk
        yield Violation("lost", f"a client got {answers} answers, and {traces} traces are there")
    if answers < reference[0]:
        yield Violation("unfinished", f"a client got {answers} answers, uninterrupted {reference[0]}")


def _checkpoint(data: Path) -> None:
    """A run of one step, whose checkpoint is exported."""
    if (data / "run").exists():
        return
    words = ["trainer.steps=1", "rollout.prompts_per_step=1", "rollout.n=2", "rollout.max_turns=1", "rollout.eval_n=1"]
    words += [f"env.dataset={data}", f"hydra.run.dir={data / 'run'}", f"paths.scratch={data / 'scratch'}"]
    command = [sys.executable, "-m", "swe_rl", *words, f"paths.outputs={data / 'outputs'}", "trainer.num_threads=1"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": ""}
    subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)


_EVAL = Job("eval", (), ("job=eval", "agent=gold", "rollout.eval_n=2"))  # without a model
_SHORT = Job("short", (), ("job=eval", "agent=gold", "rollout.eval_n=1"))
_ROWS = Job("rows", (), ("gateway.keep_traces=rows",))
_PREFIXES = Job("prefixes", (), ("rollout.prefix_replay=true",))
_EXPORT = Job("export", (), ("job=export", "job.checkpoint={data}/run", "job.output={root}/exported"))
_SFT = Job(
    "sft",
    (),
    (
        "job=sft",
        *("sft.steps=4", "sft.beginner_steps=2", "sft.warmup_steps=1", "sft.tokens_per_batch=600"),
        *("sft.checkpoint_every_steps=2", "sft.output={root}/model"),
    ),
)
_PREPARE = Job(
    "prepare",
    (),
    ("job=prepare", "env=jsonl", "env.split=train", "env.eval_split=heldout", "paths.cache={root}/cache"),
)
_SERVE = Job("serve", (), ("job=serve",))
_OTHERS = (
    *(DiskJob(job, _facts, _same_facts, has_model=False) for job in (_EVAL, _SHORT)),
    DiskJob(_ROWS, _rows, _same_facts_and("rows")),
    DiskJob(_PREFIXES, _prefixes, _same_facts_and("prefixes")),
    DiskJob(_EXPORT, _content("exported"), _same_content, before=_checkpoint),
    DiskJob(_PREPARE, _content("cache"), _same_content, has_model=False),
    DiskJob(_SFT, _warm_start, _same_content),
    DiskJob(_SERVE, _served, _each_is_kept, end=_STOPPED),
)
DISK_JOBS = {name: DiskJob(job, _facts, _same_facts) for name, job in OF_NAME.items()}
DISK_JOBS |= {disk_job.job.name: disk_job for disk_job in _OTHERS}


def leftovers(root: Path) -> list[Violation]:
    """As after a kill, and beside what a job writes outside of its run's folder."""
    return leftover_files(root) + [Violation("leftover", path.name) for path in root.glob(".*")]


def asked(root: Path, log: Path, is_over: Callable[[], bool], pid: int) -> None:
    """Questions to a server, once it says its address; then it is told to end, if it does not end by itself after one
    without an answer. Answers are noted below `root`."""
    url, answered = _address(log, is_over), 0
    for number in range(_QUESTIONS if url else 0):
        body = {"model": "tiny", "messages": [{"role": "user", "content": f"Fix bug {number}."}], "max_tokens": 8}
        request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with suppress(OSError, urllib.error.URLError), urllib.request.urlopen(request, timeout=60) as answer:
            said = json.loads(answer.read())
            with (root / "answers.txt").open("a") as file:
                file.write(f"{said['id']}\n")
            answered += 1
    until_s = time.monotonic() + (_ENDS_S if answered < _QUESTIONS else 0.0)
    while not is_over() and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if "run failed" not in _said(log) and not is_over():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _said(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def _address(log: Path, is_over: Callable[[], bool]) -> str:
    while not is_over():
        for line in _said(log).splitlines():
            if line.startswith("base URL"):
                return line.split()[-1]
        time.sleep(_LOOK_S)
    return ""
