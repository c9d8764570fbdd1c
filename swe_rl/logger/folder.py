"""Knows a run's folder: every path in it, who may write there, and `status.json`, which says what became of it.

Invariants:
- No other module builds a path inside a run's folder.
- Two live processes never hold one folder: `flock` on its lock file, given back by the kernel when the holder dies.
- A forked child does not keep its parent's lock.
- An unfinished run is one whose status is not done, of the same job and configuration hash, that nobody holds.
- `status.json` is written whole each time, and can be read while the run runs and after any kind of death: `running` in
  a folder that nobody has locked means that the process was killed.
- Its `heartbeat` is unix seconds and moves at most every HEARTBEAT_S.
"""

import fcntl
import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from swe_rl.config.yaml_text import YamlError, parse_yaml
from swe_rl.errors import UserError
from swe_rl.files.disk import disk_error, read_file, write_json_atomic
from swe_rl.files.json_text import decode_json, encode_json
from swe_rl.files.names import folder_name
from swe_rl.files.redactor import Redactor

HEARTBEAT_S = 10.0
# Whoever only asks `is_locked` holds a shared lock for an instant: half a second of tries outlasts it.
_ACQUIRE_TRIES = 10
_ACQUIRE_PAUSE_S = 0.05
_STEP_NAME = re.compile(r"step_(\d{6,})")
# A time after this is of no date, so it is no run's.
_LATEST_S = 1e11
_held: set[int] = set()


class FolderInUse(UserError):
    """Another live process writes into this run's folder."""


class RunState(StrEnum):
    running = "running"
    done = "done"
    failed = "failed"
    interrupted = "interrupted"
    # It goes on when its SLURM job is started again.
    requeued = "requeued"


@dataclass(frozen=True, slots=True)
class RunStatus:
    status: RunState
    reason: str | None = None
    exit_status: int | None = None
    step: int = 0
    heartbeat: float = 0.0
    # It is that of the first process; a resumed run keeps it.
    started: float = 0.0
    pid: int = 0
    process_started: float = 0.0
    host: str = ""
    config_hash: str = ""
    # Files of older versions do not name it.
    job: str = ""
    resumes: int = 0

    def is_of(self, config_hash: str, job: str) -> bool:
        """Tells whether a run of this job and configuration may go on with it. The hash alone is the same
        for two jobs.
        """
        return self.config_hash == config_hash and self.job in ("", job)


class StatusWriter:
    """Owns one `status.json`. Creating it writes `running`; continues `started` and `resumes` of an earlier process."""

    def __init__(
        self, path: Path, *, config_hash: str, job: str = "", step: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._clock = clock
        self._redactor = Redactor.from_environ()
        earlier = read_status(path)
        self.current = RunStatus(
            status=RunState.running,
            step=step,
            started=earlier.started if earlier else clock(),
            pid=os.getpid(),
            process_started=process_started(),
            host=socket.gethostname(),
            config_hash=config_hash,
            job=job,
            resumes=earlier.resumes + 1 if earlier else 0,
        )
        self._write()

    def heartbeat(self, step: int | None = None) -> None:
        """Gives a sign of life: a new step is written at once, else nothing within HEARTBEAT_S. Raises DiskError."""
        moved = step is not None and step != self.current.step
        if moved or self._clock() - self.current.heartbeat >= HEARTBEAT_S:
            self.current = replace(self.current, step=self.current.step if step is None else step)
            self._write()

    def ending(self, state: RunState, *, reason: str | None = None, exit_status: int = 0) -> RunStatus:
        """Returns what `finish` would write."""
        said = None if reason is None else self._redactor.text(reason)
        return replace(self.current, status=state, reason=said, exit_status=exit_status)

    def finish(self, state: RunState, *, reason: str | None = None, exit_status: int = 0) -> None:
        """Writes the last word: done, failed, interrupted or requeued. Raises DiskError."""
        self.current = self.ending(state, reason=reason, exit_status=exit_status)
        self._write()

    def _write(self) -> None:
        self.current = replace(self.current, heartbeat=self._clock())
        write_json_atomic(self._path, asdict(self.current))


def read_status(path: Path) -> RunStatus | None:
    """Returns the status; None where the file is missing or not a status."""
    try:
        record = decode_json(read_file(path))
        known = {key: value for key, value in record.items() if key in RunStatus.__dataclass_fields__}
        status = RunStatus(**known | {"status": RunState(known["status"])})
        numbers = (status.step, status.heartbeat, status.started, status.pid, status.process_started, status.resumes)
        return status if all(0 <= number < _LATEST_S for number in numbers) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def process_started() -> float:
    """Returns the unix seconds at which this process began: with the pid it names a process for good."""
    import psutil

    return float(psutil.Process().create_time())


class RunFolder:
    """The paths of one run, and a context manager that holds its lock.

    Raises FolderInUse (on `acquire`) and DiskError.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config_yaml = self.path / "config.yaml"
        self.plan_json = self.path / "plan.json"
        self.events_jsonl = self.path / "events.jsonl"
        self.steps_jsonl = self.path / "steps.jsonl"
        self.evals_jsonl = self.path / "evals.jsonl"
        self.trajectories_folder = self.path / "trajectories"
        self.programs_folder = self.path / "programs"
        # It is there with logger.otel=file.
        self.spans_folder = self.path / "spans"
        # It is there with gateway.keep_traces=rows.
        self.rows_folder = self.path / "rows"
        self.traces_db = self.path / "traces.db"
        self.under_way = self.path / "under_way"  # It has commands of attempts whose step is not recorded yet.
        # rollout.mode=stream has complete groups there that no checkpoint has learned.
        self.queue = self.path / "queue"
        # These are the lists of ids that positions in saved orders refer to.
        self.instances_folder = self.path / "instances"
        self.checkpoints = self.path / "checkpoints"
        self.exports = self.path / "exports"  # It has models of checkpoints, and attempts as a data set.
        self.report_html = self.path / "report.html"
        self.status_json = self.path / "status.json"
        self.summary_json = self.path / "summary.json"
        self.predictions_jsonl = self.path / "predictions.jsonl"
        # It has the predictions by instance, as mini-swe-agent writes it.
        self.preds_json = self.path / "preds.json"
        # It has them as SWE-bench Pro's own evaluation reads them.
        self.pro_patches_json = self.path / "pro_patches.json"
        self.eval_json = self.path / "eval.json"
        self.agent_trajectories = self.path / "trajs"  # It is mini-swe-agent's format, one file a sample.
        self.run_log = self.path / "run.log"
        self.engine_logs = self.path / "engines"  # engine0.log, ... have what servers of engine=vllm say.
        self.weights = self.path / ".weights.tmp"  # These are on their way to engines elsewhere; no copy is made of it.
        self.lock = self.path / ".lock"
        self.copy_of = self.path / ".copy_of"  # In a copy under paths.sync_to it says whose it is.
        self.wandb_id = self.path / "wandb_id.txt"
        self.requeue_json = self.path / "requeue.json"  # It has the SLURM job's starts, and what it asked for.
        self._lock_descriptor: int | None = None

    @property
    def name(self) -> str:
        return self.path.name

    @staticmethod
    def has_any(*files: Path) -> bool:
        """Tells whether one of its files is there, be it damaged; none is in a folder that may not be entered."""
        return any(map(os.path.lexists, files))

    def trajectories(self, step: int) -> Path:
        return self.trajectories_folder / f"step_{step:06d}.jsonl"

    def eval_trajectories(self, step: int) -> Path:
        return self.trajectories_folder / f"eval_{step:06d}.jsonl"

    def programs(self, step: int) -> Path:
        return self.programs_folder / f"step_{step:06d}.jsonl"

    def spans(self, step: int) -> Path:
        return self.spans_folder / f"step_{step:06d}.jsonl"

    def eval_spans(self, step: int) -> Path:
        return self.spans_folder / f"eval_{step:06d}.jsonl"

    def rows(self, step: int) -> Path:
        return self.rows_folder / f"step_{step:06d}.bin"

    def queued_group(self, number: int) -> Path:
        return self.queue / f"group_{number:08d}.jsonl"

    def instances(self, name: str) -> Path:
        """Returns the path of the list of ids of this hash."""
        return self.instances_folder / f"{name}.json"

    def attempt_file(self, instance_id: str, sample: int, kind: str) -> Path:
        """Returns `trajs/INSTANCE/INSTANCE.traj.json` or what else belongs to that attempt; further samples are
        numbered.
        """
        number = f".{sample}" if sample else ""
        name = folder_name(instance_id)
        return self.agent_trajectories / name / f"{name}{number}.{kind}"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:06d}"

    def checkpoint_steps(self) -> list[int]:
        """Returns steps with a checkpoint under its final name, ascending."""
        names = (entry.name for entry in self.checkpoints.glob("step_*") if entry.is_dir())
        return sorted(int(match[1]) for name in names if (match := _STEP_NAME.fullmatch(name)))

    def trajectory_steps(self) -> list[int]:
        """Returns steps with trajectories, ascending."""
        return _steps_in(self.trajectories_folder)

    def program_steps(self) -> list[int]:
        """Returns steps whose timeline is in a file of its own, ascending."""
        return _steps_in(self.programs_folder)

    def overrides(self) -> list[str]:
        """Returns what the run was given, secrets masked; nothing where that was not kept."""
        try:
            content = parse_yaml(read_file(self.path / ".hydra" / "overrides.yaml").decode())
        except (OSError, ValueError, RecursionError, YamlError):
            return []
        return [str(override) for override in content] if isinstance(content, list) else []

    def config_text(self) -> str:
        """Returns the text of `config.yaml`; nothing where it cannot be read."""
        try:
            return read_file(self.config_yaml).decode(errors="replace")
        except OSError:
            return ""

    def config(self) -> dict[str, Any]:
        """Returns what `config.yaml` holds; nothing where it cannot be read."""
        try:
            content = parse_yaml(self.config_text())
        except (YamlError, ValueError, RecursionError):  # the last two: a date that is none, lists in lists
            return {}
        return content if isinstance(content, dict) else {}

    def status(self) -> RunStatus | None:
        return read_status(self.status_json)

    def create(self) -> Self:
        try:
            self.trajectories_folder.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(self.path, error) from error
        return self

    def acquire(self) -> Self:
        """Holds the folder until `release` or the end of this process. Raises FolderInUse naming the other process."""
        if self._lock_descriptor is not None:
            return self
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise disk_error(self.lock, error) from error
        if not _try_lock(descriptor):
            os.close(descriptor)
            raise self._in_use()
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, encode_json({"pid": os.getpid(), "host": socket.gethostname()}), 0)
        except OSError as error:
            os.close(descriptor)
            raise disk_error(self.lock, error) from error
        _held.add(descriptor)
        self._lock_descriptor = descriptor
        return self

    def release(self) -> None:
        if self._lock_descriptor in _held:  # A forked child has lost it already.
            _held.discard(self._lock_descriptor)
            os.close(self._lock_descriptor)
        self._lock_descriptor = None

    def is_locked(self) -> bool:
        """Tells whether a live process, this one included, holds the folder."""
        try:
            descriptor = os.open(self.lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def refuse_locked(self) -> None:
        """Raises FolderInUse as `acquire` would, without a trace in the folder."""
        if self.is_locked():
            raise self._in_use()

    def _in_use(self) -> FolderInUse:
        return FolderInUse(
            f"{self.path} belongs to a live run: {self._holder()}. Two runs never share a folder: "
            "wait for it, stop it, or start this one in a folder of its own (trainer.resume=none)."
        )

    def _holder(self) -> str:
        try:
            record = decode_json(read_file(self.lock))
            return f"process {record['pid']} on {record['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "a process that has not written its number yet"

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"


def _steps_in(folder: Path) -> list[int]:
    stems = (path.stem for path in folder.glob("step_*.jsonl"))
    return sorted(int(match[1]) for stem in stems if (match := _STEP_NAME.fullmatch(stem)))


def runs_of(root: Path, name: str) -> list[RunFolder]:
    """Returns runs under `root/name/`, also one level deeper, and a sweep's under `root/multirun/name/`."""
    below = ((root / name, "*"), (root / name, "*/*"), (root / "multirun" / name, "*/*"))
    return [RunFolder(path.parent) for start, runs in below for path in start.glob(f"{runs}/status.json")]


def find_unfinished(root: Path, name: str, config_hash: str, job: str) -> RunFolder | None:
    """Returns the newest run of this name that can be continued, or None.

    Another process may take it first: `acquire` then raises FolderInUse.
    """
    unfinished = [
        (status.started, str(folder.path), folder)
        for folder in runs_of(root, name)
        if (status := folder.status())
        and status.status is not RunState.done
        and status.is_of(config_hash, job)
        and not folder.is_locked()
    ]
    if not unfinished:
        return None
    return max(unfinished, key=lambda entry: entry[:2])[2]


def _try_lock(descriptor: int) -> bool:
    """Tries for half a second: whoever only asks `is_locked` holds a shared lock for an instant."""
    for _ in range(_ACQUIRE_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_ACQUIRE_PAUSE_S)
        else:
            return True
    return False


def _drop_locks_in_child() -> None:
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_drop_locks_in_child)
