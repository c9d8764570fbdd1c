"""A run's frame: its folder, lock, status, log, events and progress, whatever becomes of it.

Invariants:
- `status.json` says how it ended, also for an exception and for Ctrl-C; after SIGKILL it says `running` and nobody
  holds the lock, which is how `trainer.resume=auto` knows.
- A resumed run works in its own old folder; the fresh one that Hydra made for it goes away.
"""

import asyncio
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_rl.config.compose import config_hash, flatten
from swe_rl.config.schema import Config
from swe_rl.errors import SweRlError, UserError
from swe_rl.logger.disk import DiskError
from swe_rl.logger.events import EventLog, read_events
from swe_rl.logger.folder import FolderInUse, RunFolder, find_unfinished
from swe_rl.logger.progress import Progress
from swe_rl.logger.run_log import RunLog
from swe_rl.logger.status import RunState, StatusWriter
from swe_rl.logger.steps import StepLog
from swe_rl.logger.summary import write_summary
from swe_rl.logger.wandb import WandbLogger

_BYTES_PER_GB = 1024**3


@dataclass(slots=True)
class Session:
    """What a job writes to."""

    config: Config
    folder: RunFolder
    status: StatusWriter
    events: EventLog
    steps: StepLog
    progress: Progress
    wandb: WandbLogger
    resumed: bool
    started_s: float
    reports: bool = True  # whether it ends in a summary and a report
    summary: dict[str, Any] = field(default_factory=dict)

    def evals(self) -> list[dict[str, Any]]:
        return read_events(self.folder.events_jsonl, "eval")

    def finish(self) -> None:
        """Summary and report of what the folder holds; the last lines that a person sees."""
        earlier_s = sum(float(event.get("wall_s", 0.0)) for event in read_events(self.folder.events_jsonl, "stopped"))
        wall_s = time.monotonic() - self.started_s
        self.events.write("stopped", wall_s=wall_s)
        extra = {"peak_memory_gb": round(peak_memory_gb(), 3)}
        summary = write_summary(self.folder, wall_s=earlier_s + wall_s, extra=extra)
        self.wandb.summarize(summary)
        from swe_rl.report.page import write_report

        write_report(self.folder)
        self.summary = summary

    def print_end(self) -> None:
        """The last lines of a run: what came of it, and where to read on."""
        before, after = self.summary.get("resolved_rate_before"), self.summary.get("resolved_rate_after")
        if before is not None and after is not None:
            gain = f"{100 * (after - before):+.1f} points"
            samples = self.summary["resolved_samples_after"]
            print(f"held-out resolved rate {before:.1%} -> {after:.1%} ({gain}), {samples} samples each")
        print(f"run folder: {self.folder.path}")
        print(f"report:     {self.folder.report_html}", flush=True)


def peak_memory_gb() -> float:
    """Of this process since its start (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _BYTES_PER_GB


def choose_folder(config: Config, fresh: Path) -> tuple[RunFolder, bool]:
    """The folder to work in, and whether it is continued. Raises UserError where `trainer.resume` leads nowhere."""
    choice = config.trainer.resume
    found: RunFolder | None = None
    if choice == "auto":
        found = find_unfinished(Path(config.paths.outputs), config.name, config_hash(config))
    elif choice != "none":
        found = RunFolder(Path(choice))
        status = found.status()
        if status is None:
            raise UserError(f"trainer.resume={choice} is not the folder of a run (it has no readable status.json)")
        if status.config_hash != config_hash(config):
            raise UserError(
                f"trainer.resume={choice} was run with another configuration (see its config.yaml); resume it with the "
                "same overrides, or start anew with trainer.resume=none"
            )
    if found is None or found.path.resolve() == fresh.resolve():
        return RunFolder(fresh), False
    return found, True


def _acquire(config: Config, fresh: Path) -> tuple[RunFolder, bool]:
    """Locks the chosen folder; the fresh one goes away where an old one is continued. Raises FolderInUse."""
    folder, resumed = choose_folder(config, fresh)
    try:
        folder.create().acquire()
    except FolderInUse:
        if config.trainer.resume != "auto":
            raise
        return RunFolder(fresh).create().acquire(), False  # another start took it a moment earlier
    if resumed:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder, resumed


@contextmanager
def session(config: Config, fresh: Path, *, total_steps: int, reports: bool = True) -> Iterator[Session]:
    """Holds a run's folder. Whatever leaves the block is written to `status.json` and raised on."""
    folder, resumed = _acquire(config, fresh)
    with ExitStack() as stack:
        stack.callback(folder.release)
        stack.enter_context(_terminated_as_interrupted())
        wandb = WandbLogger(config.logger, folder.name, folder, flatten(config))
        status = StatusWriter(folder.status_json, config_hash=config_hash(config))
        stack.enter_context(RunLog(folder.run_log))
        events = stack.enter_context(EventLog(folder.events_jsonl))
        steps = stack.enter_context(StepLog(folder))
        progress = stack.enter_context(Progress(total_steps))
        one = Session(config, folder, status, events, steps, progress, wandb, resumed, time.monotonic(), reports)
        events.write("resumed" if resumed else "started", name=config.name, seed=config.trainer.seed)
        try:
            wandb.start()
            yield one
        except (KeyboardInterrupt, asyncio.CancelledError):
            _close(one, RunState.interrupted, "interrupted", 130)
            raise
        except BaseException as error:
            exit_status = error.exit_status if isinstance(error, SweRlError) else 1
            _close(one, RunState.failed, f"{type(error).__name__}: {error}", exit_status)
            raise
        else:
            _close(one, RunState.done, None, 0)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM (a scheduler, a container's stop) ends a run as Ctrl-C does, unless somebody else handles it."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(*_: object) -> None:
    """As Ctrl-C, also where that is ignored because a shell started the run in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _close(one: Session, state: RunState, reason: str | None, exit_status: int) -> None:
    """Best effort where the run failed already: its own error must not be hidden by a full disk."""
    try:
        one.status.finish(state, reason=reason, exit_status=exit_status)
        if one.reports:
            one.finish()
    except Exception as error:
        if state is RunState.done:
            with suppress(DiskError):
                one.status.finish(RunState.failed, reason=f"{type(error).__name__}: {error}", exit_status=1)
            raise
        one.progress.message(f"the summary and the report could not be written: {error}")
    finally:
        one.wandb.finish(exit_status)
