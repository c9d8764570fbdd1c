"""Frames a run with its folder, lock, status, log, events and progress, whatever becomes of it.

Invariants:
- `status.json` says how it ended, also for an exception and for Ctrl-C; after SIGKILL it says `running` and nobody
  holds the lock, which is how `trainer.resume=auto` knows.
- A SLURM job that has to end early asks to be queued again, and then leaves without a result.
"""

import asyncio
import os
import resource
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.config.choices import JobName
from swe_rl.config.composition.values import config_hash, flatten_config
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import Config
from swe_rl.errors import SweRlError
from swe_rl.facts import sizes
from swe_rl.files.disk import DiskError, read_json
from swe_rl.files.kill_point import kill_point
from swe_rl.hardware.gpu_watch import watched_gpus
from swe_rl.hardware.slurm.jobs import current_allocation
from swe_rl.hardware.slurm.requeue import EXIT_STATUS, Requeued, Survival, Verdict
from swe_rl.hardware.sync import Rounds, keep_synced
from swe_rl.host.ending import LAST_WORDS_S, last_words
from swe_rl.host.terminal import terminal_width
from swe_rl.logger.banner import banner_lines, path_from_here
from swe_rl.logger.folder import RunFolder, RunState, RunStatus, StatusWriter
from swe_rl.logger.foreign import Mirrors, make_loggers
from swe_rl.logger.jsonl import EventLog, StepLog, read_evals, read_events
from swe_rl.logger.progress import Progress, ProgressState
from swe_rl.logger.run_log import RunLog
from swe_rl.logger.summary import write_summary
from swe_rl.logger.wandb import WandbLogger
from swe_rl.report.card import HUB_FIELD, STARTED, names_on_hub
from swe_rl.report.health.findings import HealthFinding, describe_finding
from swe_rl.report.health.run import judge_run, record_findings
from swe_rl.report.refresh import FreshReport
from swe_rl.report.resolved import intervals_line, summary_of
from swe_rl.run.end_signal import EndSignal, LastWords, listen_for_end
from swe_rl.run.which_folder import copy_folder, lock_folder
from swe_rl.view.known_instances import task_text

# A paragraph is this wide without a terminal, or on a wider one.
_LONGEST_LINE = 110
_BYTES_PER_GB = 1024**3
# Where the run hangs, this part of job.end_within_s is for having the job queued again.
_ASKING_SLURM_S = 4.0


@dataclass(slots=True)
class RunSession:
    """The things that a job writes to."""

    config: Config
    folder: RunFolder
    status: StatusWriter
    events: EventLog
    steps: StepLog
    progress: Progress
    mirrors: Mirrors
    resumed: bool
    started_s: float
    # It ends in a summary and a report then.
    reports: bool = True
    summary: dict[str, Any] = field(default_factory=dict)
    # What is wrong with the training, known at its end.
    health: list[HealthFinding] = field(default_factory=list)
    # It counts restarts of each of our servers that was up once.
    engine_restarts: dict[str, int] = field(default_factory=dict)
    end_signal: EndSignal = field(default_factory=EndSignal)
    # It is set inside a SLURM job.
    survival: Survival | None = None
    # It is set with paths.sync_to.
    copies: Rounds | None = None
    report: FreshReport = field(init=False)
    # These have to be known beside the result, a line each.
    caveats: list[str] = field(default_factory=list)
    # SLURM is asked once.
    asking: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.report = FreshReport(self.folder, task_text=task_text)

    def step_done(self, record: Mapping[str, Any]) -> None:
        """Shows a step of `steps.jsonl`: to loggers, in `status.json`, on the console, in the report.

        Raises DiskError.
        """
        self.mirrors.log(record, record["step"])
        self.status.heartbeat(record["step"])
        self.progress.step_done(record)
        self.report.step_done()

    def record(self, event: str, fields: Mapping[str, object]) -> None:
        """Writes a line of `events.jsonl`, for parts that know of no events log. Raises DiskError."""
        self.events.write(event, **fields)

    def warn(self, text: str) -> None:
        """Says a lasting line or more; the first one is said again at the run's end if it begins with `warning: `."""
        self.progress.message(text)
        first = text.partition("\n")[0]
        if first.startswith("warning: ") and first not in self.caveats:
            self.caveats.append(first)

    def evals(self) -> list[dict[str, Any]]:
        return read_evals(self.folder)

    def evaluated(self, numbers: Mapping[str, Any]) -> None:
        """Records that an evaluation has ended: on disk, then to the loggers. Raises DiskError."""
        self.steps.append_eval(numbers)
        self.mirrors.evaluated(numbers)

    def state_is_saved(self) -> Verdict | None:
        """Returns what comes next for a job that was told to end; it is asked early, before what may take longer.

        None stands for no job, and for nobody who told it. Raises DiskError.
        """
        if self.survival is None or self.end_signal.by is None:
            return None
        with self.asking:
            return self.survival.told_to_end(self.end_signal.by, self.copies.now if self.copies else None)

    def finish(self, ending: RunStatus | None = None) -> None:
        """Writes summary and report of what the folder holds, with `ending` in the report."""
        earlier_s = sum(float(event.get("wall_s", 0.0)) for event in read_events(self.folder.events_jsonl, "stopped"))
        wall_s = time.monotonic() - self.started_s
        self.health = judge_run(self.folder, ending or self.status.current)
        # A run that ended in another way may go on, and be healthy then.
        if ending is not None and ending.status is RunState.done:
            record_findings(self.folder, self.events, self.health)
        self.events.write("stopped", wall_s=wall_s)
        extra = {"peak_memory_gb": round(peak_memory_gb(), 3), **summary_of(self.evals())}
        summary = write_summary(self.folder, wall_s=earlier_s + wall_s, extra=extra)
        kill_point("summary_written")
        self.mirrors.summarize(summary)
        self.report.end(ending)
        self.summary = summary

    def print_end(self) -> None:
        """Prints the last lines of a run: what came of it, and where to read on."""
        before = self.summary.get("resolved_rate_before")
        after = self.summary.get("resolved_rate_after")
        if before is not None and after is not None:
            paired = self.summary.get("resolved_gain")
            gain = f"{100 * (after - before if paired is None else paired):+.1f} points"
            counts = [self.summary[f"resolved_samples_{when}"] for when in ("before", "after")]
            if counts[0] == counts[1]:
                samples = f"{counts[0]} samples each"
            else:
                samples = f"{counts[0]} and {counts[1]} samples"
            print(f"held-out resolved rate {before:.1%} -> {after:.1%} ({gain}), {samples}")
            if intervals := intervals_line(self.summary):
                print(intervals)
        for caveat in self.caveats:
            print(caveat)
        columns = min(_LONGEST_LINE, terminal_width(sys.stdout, _LONGEST_LINE))
        for finding in self.health:
            print(textwrap.fill(f"health: {describe_finding(finding)}", columns, subsequent_indent="    "))
        print(f"run folder: {path_from_here(self.folder.path)}")
        if self.folder.report_html.is_file():
            print(f"report:     {path_from_here(self.folder.report_html)}", flush=True)


def peak_memory_gb() -> float:
    """Returns the peak memory of this process since its start (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _BYTES_PER_GB


@contextmanager
def open_session(
    config: Config, fresh: Path, *, total_steps: int, reports: bool = True, state: ProgressState | None = None
) -> Iterator[RunSession]:
    """Holds a run's folder. Whatever leaves the block is written to `status.json` and raised on.

    `state` is what the live line shows where there are no steps.
    """
    here = current_allocation(os.environ)
    folder, resumed = lock_folder(config, fresh, here)
    with ExitStack() as stack:
        stack.callback(folder.release)
        end_signal = stack.enter_context(listen_for_end(in_slurm=here is not None, waits=True))
        mirrors = _make_mirrors(config, folder)
        before = folder.status()
        step = before.step if before and resumed else 0
        status = StatusWriter(folder.status_json, config_hash=config_hash(config), job=config.job.name, step=step)
        words = LastWords(status, end_signal)
        of_these_s = _ASKING_SLURM_S if here is not None else LAST_WORDS_S
        stack.enter_context(last_words(words, config.job.end_within_s, of_these_s))
        kill_point("status_written")
        stack.enter_context(RunLog(folder.run_log))
        events = stack.enter_context(EventLog(folder.events_jsonl))
        steps = stack.enter_context(StepLog(folder))
        verbosity = config.logger.verbosity
        on_phase = _phases_to(events)
        progress = stack.enter_context(Progress(total_steps, state=state, verbosity=verbosity, on_phase=on_phase))
        run_session = RunSession(
            config, folder, status, events, steps, progress, mirrors, resumed, time.monotonic(), reports
        )
        run_session.end_signal = end_signal
        words.save = run_session.state_is_saved
        # A server has no step to go on after: whoever needs it starts another.
        if here is not None and reports:
            run_session.survival = Survival(folder.requeue_json, here, max_requeues=config.hardware.max_requeues)
        copy = copy_folder(config, here, folder.path)
        if copy is not None:
            run_session.copies = stack.enter_context(
                keep_synced(
                    folder.path,
                    copy,
                    every_s=config.paths.sync_every_s,
                    say=progress.message,
                    rsync=shutil.which("rsync"),
                )
            )
        if not sizes.uses_no_gpu(config.layout):
            stack.enter_context(watched_gpus(progress.message))
        if here is not None:
            restarts = {"job": here.job_id, "restarts": here.restarts}
        else:
            restarts = {}
        if reports:
            columns = terminal_width(sys.stdout, sys.maxsize)
            for line in banner_lines(config, read_json(folder.plan_json), folder.path, folder.overrides(), columns):
                progress.message(line)
        began = {"name": config.name, "seed": config.trainer.seed, HUB_FIELD: names_on_hub(flatten_config(config))}
        events.write("resumed" if resumed else STARTED, **began, **restarts)
        try:
            if run_session.survival is not None:
                done = before is not None and before.status is RunState.done
                run_session.survival.begin(max(step, _num_evaluated(config, folder)), done=done)
            end_signal.answer()
            mirrors.start()
            yield run_session
        except (KeyboardInterrupt, asyncio.CancelledError):
            _end_early(run_session, RunState.interrupted, "interrupted", 130)
            raise
        except BaseException as error:
            exit_status = 1
            if isinstance(error, SweRlError):
                exit_status = error.exit_status
            _end_early(run_session, RunState.failed, f"{type(error).__name__}: {error}", exit_status)
            raise
        else:
            _close_session(run_session, RunState.done, None, 0)


def _phases_to(events: EventLog) -> Callable[[str, float], None]:
    """Returns a function that writes each phase that has ended as an event: what needs the disk says that
    it is full.
    """

    def on_phase(name: str, took_s: float) -> None:
        with suppress(DiskError):
            events.write("phase", name=name, took_s=took_s)

    return on_phase


def _make_mirrors(config: Config, folder: RunFolder) -> Mirrors:
    """Returns the loggers; none for a job without figures: a server of an engine or of sandboxes. Raises UserError."""
    if Part.logger not in started_parts(config):
        return Mirrors(())
    flat = flatten_config(config)
    wandb = WandbLogger(config.logger, folder.name, folder, flat)
    return Mirrors((wandb, *make_loggers(config.logger, folder.path, folder.name, flat)))


def _num_evaluated(config: Config, folder: RunFolder) -> int:
    """Returns how far an evaluation is, which has no steps: the number of its trajectories on the disk."""
    path = folder.eval_trajectories(0)
    if config.job.name is not JobName.eval or not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _end_early(session: RunSession, state: RunState, reason: str, exit_status: int) -> None:
    """Raises Requeued where the job goes on in another start: then nothing is lost but time.

    What fails after the signal does so because everything in the job got it; the newest checkpoint is whole.
    """
    verdict = None
    try:
        verdict = session.state_is_saved()
    except DiskError as error:
        session.progress.message(f"not queued again: {error}")
    if verdict is None:
        return _close_session(session, state, reason, exit_status)
    if state is RunState.failed:
        reason = f"{verdict.reason}; and then {reason}"
    else:
        reason = verdict.reason
    session.progress.message(reason)
    if not verdict.requeued:
        return _close_session(session, state, reason, exit_status)
    _close_session(session, RunState.requeued, reason, EXIT_STATUS)
    raise Requeued


def _close_session(session: RunSession, state: RunState, reason: str | None, exit_status: int) -> None:
    """Writes the end; it does its best where the run failed already: its own error must not be hidden by a full disk.

    A run is not done before its report is there: killed in between, it is resumed and writes one.
    """
    session.end_signal.deaf = True
    if state is not RunState.done:
        session.progress.message(f"run folder: {session.folder.path}")
    try:
        if state is RunState.done and session.reports:
            session.finish(session.status.ending(state))
            kill_point("report_written")
            session.status.finish(state)
            return
        session.status.finish(state, reason=reason, exit_status=exit_status)
        if session.reports:
            session.finish()
    except Exception as error:
        if state is RunState.done:
            with suppress(DiskError):
                session.status.finish(RunState.failed, reason=f"{type(error).__name__}: {error}", exit_status=1)
            raise
        what = "how it ended"
        if session.reports:
            what = "the summary and the report"
        session.progress.message(f"{what} could not be written: {error}")
    finally:
        session.mirrors.finish(exit_status)
